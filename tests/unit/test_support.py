"""What README, docs and refusals say of supported systems is one table, and tests show every line of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import statetable
import supporttable

from gpustate import registry, support
from gpustate.states.preflight import Observed, PreflightPassed
from gpustate.support import Kind, Level, Support

TESTS = Path(__file__).parents[1]
IDS = [row.name for row in support.TABLE]


@pytest.mark.parametrize("page", supporttable.PAGES, ids=lambda page: page.name)
def test_the_pages_have_the_table(page: Path) -> None:
    text = page.read_text("utf-8")
    assert supporttable.written(text) == text, "python tests/support/supporttable.py writes it"


def refused(distribution: str) -> str:
    return PreflightPassed().refuse(Observed(distribution=distribution)) or ""


def test_preflight_refuses_what_the_table_does_not_have_and_nothing_else() -> None:
    for name in support.ids(Kind.DISTRIBUTION):
        assert "unsupported distribution" not in refused(name)
    refusal = refused("fedora42")
    assert (
        f"unsupported distribution fedora42: use one of {support.summary(Kind.DISTRIBUTION)}"
        in refusal
    )


def test_a_refusal_says_how_each_distribution_was_tested() -> None:
    summary = support.summary(Kind.DISTRIBUTION)
    assert summary.startswith("debian12, debian13 (tested on the real thing); ")
    for level in Level:
        assert f"({level.value})" in summary


def test_no_name_is_there_twice() -> None:
    for kind in Kind:
        names = support.ids(kind)
        assert len(names) == len(set(names))
        assert all(support.level(kind, name) for name in names)
    assert support.level(Kind.DISTRIBUTION, "beos5") is None


@pytest.mark.parametrize("row", support.TABLE, ids=IDS)
def test_every_line_names_tests_that_are_there(row: Support) -> None:
    assert row.tests
    for name in row.tests:
        assert (TESTS / name).is_file(), name
        on_node = not name.startswith("unit/")
        assert on_node == (row.level is not Level.RECORDED), name


@pytest.mark.parametrize(
    "row", [row for row in support.TABLE if row.kind is Kind.DISTRIBUTION], ids=lambda row: row.name
)
def test_the_level_of_a_distribution_is_what_its_tests_show(row: Support) -> None:
    families = {"amzn": "amazon", "rocky": "rhel", "sles": "suse", "ubuntu": "ubuntu"}
    for name in row.ids:
        os_id = name.rstrip("0123456789")
        for module in row.tests:
            text = (TESTS / module).read_text("utf-8")
            if row.level is Level.RECORDED:
                assert f'"{os_id}"' in text or os_id in text.lower(), (module, os_id)
                continue
            shown = {word for how in statetable.declared(TESTS / module).values() for word in how}
            wanted = name if os_id == "debian" else families[os_id]
            assert wanted in shown, (module, wanted)


@pytest.mark.parametrize(
    "row", [row for row in support.TABLE if row.kind is Kind.SCHEDULER], ids=lambda row: row.name
)
def test_a_scheduler_names_states_that_exist(row: Support) -> None:
    assert set(row.ids) <= set(registry.names())


def test_runtimes_have_the_level_that_their_tests_on_nodes_declare() -> None:
    rows = {row.ids[0]: row for row in supporttable.runtimes()}
    assert rows["containerd"].level is Level.REAL
    assert "node/test_containerd.py" in rows["containerd"].tests
    assert rows["crio"].level is Level.REAL
    for row in rows.values():
        assert row.level is not Level.RECORDED, f"{row.name}: no test on a node declares it"
        for test in row.tests:
            assert (TESTS / test).is_file()


def test_every_runtime_of_a_preset_is_in_the_table() -> None:
    from gpustate import presets

    assert set(presets._RUNTIMES) <= {row.ids[0] for row in supporttable.runtimes()}
