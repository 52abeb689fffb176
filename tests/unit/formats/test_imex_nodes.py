from __future__ import annotations

import pytest

from gpustate.formats import imex

ONE = "5e1b0a8e-0000-4000-8000-00000000cafe.32766"
TWO = "5e1b0a8e-0000-4000-8000-00000000cafe.2"


def test_addresses_take_their_usual_form_and_keep_their_order() -> None:
    given = ("10.0.0.2", "10.0.0.1", "2001:DB8:0::1", "tray-3.rack.example")
    assert imex.checked_nodes(given) == (
        "10.0.0.2",
        "10.0.0.1",
        "2001:db8::1",
        "tray-3.rack.example",
    )


@pytest.mark.parametrize(
    "bad",
    ["", "10.0.0", "10.0.0.300", "a b", "-a", "a\nb", "é", "10.0.0.1/24", "a" * 300, "a..b", "#"],
)
def test_what_is_no_address_and_no_name_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="neither an IP address nor a host name"):
        imex.checked_nodes(("10.0.0.1", bad))


def test_one_address_twice_is_refused_however_it_is_written() -> None:
    with pytest.raises(ValueError, match="listed twice"):
        imex.checked_nodes(("2001:db8::1", "2001:DB8:0::1"))


def test_domains_are_named_by_cluster_and_clique() -> None:
    assert imex.checked_domains({ONE.upper(): ("10.0.0.1",)}) == {ONE: ("10.0.0.1",)}
    for bad in ("", "rack1", ONE.partition(".")[0], ONE + "x"):
        with pytest.raises(ValueError, match="is not CLUSTER-UUID"):
            imex.checked_domains({bad: ("10.0.0.1",)})
    with pytest.raises(ValueError, match="has no nodes"):
        imex.checked_domains({ONE: ()})
    with pytest.raises(ValueError, match="in two domains"):
        imex.checked_domains({ONE: ("10.0.0.1",), TWO: ("10.0.0.1",)})


@pytest.mark.parametrize(
    ("nodes", "own", "has"),
    [
        (("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "tray2"), True),
        (("10.0.0.1",), ("10.0.0.2", "tray2"), False),
        (("2001:db8::1",), ("2001:DB8:0::1",), True),
        (("tray1", "tray2"), ("10.0.0.2", "tray2"), True),
        (("alias",), ("10.0.0.2", "tray2"), True),  # only a resolver could tell
    ],
)
def test_a_list_of_addresses_has_the_node_in_it(
    nodes: tuple[str, ...], own: tuple[str, ...], has: bool
) -> None:
    assert imex.has_own(nodes, own) is has


def test_a_list_is_read_as_the_daemon_does_and_written_without_comments() -> None:
    assert imex.parse_nodes("10.0.0.1\n\n# a comment\n 10.0.0.2 # mine\n") == (
        "10.0.0.1",
        "10.0.0.2",
    )
    assert imex.render(("10.0.0.1", "10.0.0.2")) == "10.0.0.1\n10.0.0.2\n"


def test_what_a_node_says_is_read_whatever_is_missing() -> None:
    said = imex.parse(
        "masked=1\naddress=10.0.0.1\naddress=n1\nchannels=2\nstatus=READY\nnonsense\n"
    )
    assert said == imex.ImexReport(True, "", ("10.0.0.1", "n1"), 2, "READY")
    assert imex.parse("") == imex.ImexReport()
    assert imex.parse("channels=many\n").channels == 0
