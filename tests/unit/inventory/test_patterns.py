from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.errors import InventoryError
from gpustate.inventory import load, select
from gpustate.plan.ranges import fold

from .conftest import Write

HOSTS = "[rack1]\ngpu-01\ngpu-02\n[rack2]\ngpu-03\n[empty]\n"


def names(inventory: Inventory) -> list[str]:
    return [node.name for node in inventory]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("gpu-1", "--limit: 'gpu-1' is neither a node nor a group; did you mean gpu-01"),
        ("rack1:!gpu-O1", "--limit: 'gpu-O1' is neither a node nor a group; did you mean gpu-01"),
        ("zzz", "'zzz' is neither a node nor a group; groups: all, empty, rack1, rack2"),
        ("x*", "--limit: 'x*' matches no node and no group"),
        ("rack1:!rack1", "matches none of the 3 nodes in hosts"),
        ("empty", "matches none of the 3 nodes in hosts"),
        ("rack1[7]", "'rack1[7]' is beyond the 2 nodes of 'rack1'"),
        ("~gpu-(", "'~gpu-(' is not a valid pattern: missing ), unterminated subpattern"),
        ("rack1[0:", "--limit: 'rack1[0:' has an unmatched bracket; write gpu[0]"),
        ("rack1:!gpu-01]", "has an unmatched bracket"),
        ("", "--limit: '' is empty"),
        (" , ", "--limit: ' , ' is empty"),
        ("!", "a '!' or '&' is not followed by a pattern"),
        ("@", "'@' is not followed by a file name"),
        ("@nowhere", "nowhere: no such file"),
    ],
)
def test_a_limit_that_selects_nothing_is_an_error(write: Write, pattern: str, message: str) -> None:
    source = write("hosts", HOSTS)
    with pytest.raises(InventoryError) as caught:
        load(source, limit=pattern)
    assert message in str(caught.value)
    with pytest.raises(InventoryError) as caught:
        select(load(source), pattern)
    assert message in str(caught.value)


def test_a_wildcard_that_excludes_nothing_is_no_error(write: Write) -> None:
    assert len(load(write("hosts", HOSTS), limit="all:!x*")) == 3


def test_a_file_holds_a_pattern_a_line(write: Write) -> None:
    source = write("hosts", HOSTS)
    write("limit.txt", "# the first rack\n\nrack1\n!gpu-02\n")
    assert names(load(source, limit="@limit.txt")) == ["gpu-01"]
    assert names(load(source, limit="@limit.txt,gpu-03")) == ["gpu-01", "gpu-03"]


def test_exclude_takes_away_and_must_leave_something(write: Write) -> None:
    source = write("hosts", HOSTS)
    assert names(load(source, exclude="rack1")) == ["gpu-03"]
    assert names(load(source, limit="rack1", exclude="gpu-02")) == ["gpu-01"]
    with pytest.raises(InventoryError, match="is neither a node nor a group"):
        load(source, exclude="gpu-2")
    with pytest.raises(InventoryError, match="exclude 'all' excludes all 3 nodes in hosts"):
        load(source, exclude="all")


def test_selecting_keeps_the_order_of_the_inventory_and_trims_the_groups(write: Write) -> None:
    part = select(load(write("hosts", HOSTS)), "rack2,gpu-01")
    assert names(part) == ["gpu-01", "gpu-03"]
    assert part.groups["rack1"] == ("gpu-01",)
    assert names(select(part, "rack1")) == ["gpu-01"]


def test_an_inventory_made_by_hand_has_the_groups_of_its_nodes() -> None:
    inventory = Inventory("x", (InventoryNode("a", ("g",)), InventoryNode("b")))
    assert names(select(inventory, "g")) == ["a"]
    assert names(select(inventory, "all:!g")) == ["b"]


def test_an_ipv6_address_is_one_pattern() -> None:
    inventory = Inventory("x", (InventoryNode("2001:db8::1"), InventoryNode("b")))
    assert names(select(inventory, "2001:db8::1")) == ["2001:db8::1"]
    assert names(select(inventory, "!2001:db8::1")) == ["b"]


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("gpu[1,3]", "gpu1 gpu3"),
        ("gpu[1-3,10]", "gpu1 gpu2 gpu3 gpu10"),
        ("gpu[1-9]", "gpu1 gpu2 gpu3"),
        ("gpu[2-3], rack[1-2]-gpu[08-11]", "gpu2 gpu3 rack1-gpu08 rack2-gpu11"),
        ("gpu:!gpu[1,10]", "gpu2 gpu3"),
        ("gpu[1-3]:&gpu[2-3]", "gpu2 gpu3"),
        ("gpu[0]", "gpu1"),
        ("gpu[0:1],rack1-*", "gpu1 gpu2 rack1-gpu08"),
        ("gpu[1-2]*", "gpu1 gpu2 gpu10"),
        ("~gpu[13]$", "gpu1 gpu3"),
    ],
)
def test_names_as_plans_show_them_are_accepted(write: Write, pattern: str, wanted: str) -> None:
    listed = "[gpu]\ngpu1\ngpu2\ngpu3\ngpu10\n[racks]\nrack1-gpu08\nrack2-gpu11\n"
    if "08-11" in pattern:
        listed += "rack1-gpu09\nrack1-gpu10\nrack1-gpu11\nrack2-gpu08\nrack2-gpu09\nrack2-gpu10\n"
        wanted = "gpu2 gpu3 rack1-gpu08 rack2-gpu11 " + " ".join(listed.split()[-6:])
    assert names(load(write("hosts", listed), limit=pattern)) == wanted.split()


@settings(max_examples=tries(50, 16), deadline=None)
@given(
    st.sets(st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(-[a-z][0-9]{1,2})?", fullmatch=True), min_size=1)
)
def test_what_a_plan_prints_selects_exactly_those_nodes(some: set[str]) -> None:
    others = {f"{name}x" for name in some}
    whole = Inventory("i", tuple(InventoryNode(name) for name in sorted(some | others)))
    assert {*names(select(whole, ", ".join(fold(some))))} == some


def test_a_name_of_a_list_that_nobody_has_is_an_error(write: Write) -> None:
    source = write("hosts", "gpu1\ngpu2\n")
    for pattern, message in (
        ("gpu[1,33]", "'gpu33' is neither a node nor a group"),
        ("gpu[7-9]", "'gpu[7-9]' matches no node and no group"),
        ("gpu[3-1]", "'gpu[3-1]': 3 is greater than 1"),
        ("gpu[1-999999999]", "expands to 999999999 names"),
    ):
        with pytest.raises(InventoryError) as caught:
            load(source, limit=pattern)
        assert message in str(caught.value)
