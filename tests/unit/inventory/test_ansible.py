"""The reader and ansible-core agree on every case of ``tests/golden/inventory``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpustate.inventory import load, select

GOLDEN = Path(__file__).parents[2] / "golden" / "inventory"
CASES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def golden(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))
    return found


def test_every_case_has_a_result_and_says_which_ansible_wrote_it() -> None:
    assert len(CASES) >= 25
    assert sorted(path.name for path in (GOLDEN / "cases").iterdir()) == CASES
    assert {golden(case)["ansible_core"] for case in CASES} == {"2.19.14"}


@pytest.mark.parametrize("case", CASES)
def test_nodes_groups_and_variables_are_those_of_ansible(case: str) -> None:
    expected = golden(case)
    inventory = load(str(GOLDEN / expected["source"]))
    found = {
        node.name: {"groups": list(node.groups), "vars": dict(node.vars)} for node in inventory
    }
    assert json.loads(json.dumps(found)) == expected["nodes"]


@pytest.mark.parametrize("case", CASES)
def test_groups_have_the_members_of_ansible_in_its_order(case: str) -> None:
    expected = golden(case)
    inventory = load(str(GOLDEN / expected["source"]))
    found = {name: list(members) for name, members in inventory.groups.items()}
    if case == "diamond":
        # Two levels below a group, Ansible's own order changes from run to run.
        found = {name: sorted(members) for name, members in found.items()}
        expected["groups"] = {name: sorted(m) for name, m in expected["groups"].items()}
    assert found == expected["groups"]


@pytest.mark.parametrize(("pattern", "names"), golden("patterns")["patterns"].items())
def test_a_limit_pattern_selects_what_it_selects_in_ansible(pattern: str, names: list[str]) -> None:
    source = str(GOLDEN / golden("patterns")["source"])
    assert sorted(node.name for node in load(source, limit=pattern)) == sorted(names)
    assert [n.name for n in select(load(source), pattern)] == [
        n.name for n in load(source, limit=pattern)
    ]
