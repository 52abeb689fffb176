"""The table of states says of each what its tests prove, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import statetable

from gpustate import registry


@pytest.fixture(scope="module")
def rows() -> list[statetable.Row]:
    return statetable.rows()


def test_no_state_has_a_blank_row(rows: list[statetable.Row]) -> None:
    assert {row.state for row in rows} == set(registry.names())
    assert [row.state for row in rows if row.blank] == []


def test_every_state_is_proven_on_a_node(rows: list[statetable.Row]) -> None:
    assert [row.state for row in rows if not row.tests] == []


def test_a_state_that_nothing_tests_is_a_blank_row() -> None:
    row = statetable.Row("x")
    assert row.blank
    row.take("Ubuntu", statetable.RECORDED)
    assert not row.blank
    row.take("Ubuntu", statetable.REAL_NODE)
    row.take("Ubuntu", statetable.SIMULATED)
    assert row.cells == {"Ubuntu": "real node"}


GOOD = 'from labnodes import x\ndef test_a(node12): apply(get("docker")())\n'


@pytest.mark.parametrize(
    ("declared", "text", "said"),
    [
        ('{"nothing": ("real node", "debian12")}', GOOD, "there is no such state"),
        ('{"docker": ("golden file only", "debian12")}', GOOD, "is none of"),
        ('{"podman": ("real node", "debian12")}', GOOD, "no test there asks for that state"),
        ('{"docker": ("real node", "rhel")}', GOOD, "starts a node of rhel"),
        ('{"docker": ("real node", "plan9")}', GOOD, "starts a node of plan9"),
        ('{"docker": ("real node",)}', GOOD, "on which distribution"),
    ],
)
def test_a_declaration_that_the_tests_do_not_bear_out_is_refused(
    declared: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "tests/node/test_x.py"
    module.parent.mkdir(parents=True)
    module.write_text(f"PROVES = {declared}\n{text}")
    monkeypatch.setattr(statetable, "TOP", tmp_path)
    with pytest.raises(statetable.Unproven, match=said):
        statetable.rows([module])
