"""``gpustate status`` shows who is out of service, and why, from the schedulers alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from gpustate.cli.main import cli
from gpustate.core.inventory import InventoryNode
from gpustate.rollout import access
from gpustate.schedulers.base import Hold, Member

SCHEMA = Path(__file__).parents[3] / "gpustate/cli/schema/status.json"
HELD = Hold("r1", "ann@ops1", "CHG-7", "changing", "2026-11-24T10:00:00Z")
MEMBERS = (
    Member("a", True, True),
    Member("b", True, False, hold=HELD),
    Member("c", True, False, foreign=("cordoned by bob",)),
    Member("d", False, True),
    Member("e", False, True, counts=False),
)


class FakeScheduler:
    title = "Kubernetes at test"

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        return MEMBERS

    def leave(self) -> None:
        pass


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def call(self: access.Accesses, node: InventoryNode, kind: str) -> Any:
        return FakeScheduler() if kind == "Kubernetes" and self.named else None

    monkeypatch.setattr(access.Accesses, "__call__", call)
    monkeypatch.setattr(access.Accesses, "_kubernetes", lambda self, path: None)
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {gpu1: {}, gpu2: {}}, vars: {gpustate_kubeconfig: k}}\n")
    return path


def run(*words: object) -> str:
    done = CliRunner().invoke(cli, ["status", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_only_those_out_of_service_are_listed_with_the_next_step(inventory: Path) -> None:
    text = run("-i", inventory)
    assert "b  changing  Kubernetes at test" in text
    assert "since 2026-11-24T10:00:00Z by ann@ops1, run r1: CHG-7" in text
    assert "next: if run r1 is dead: gpustate resume r1" in text
    assert "cordoned by bob" in text
    assert "not ready" in text
    assert "\na  " not in f"\n{text}"
    assert text.endswith("nodes=4 in_service=1 out_of_service=3\n")


def test_the_document_fits_its_schema(inventory: Path) -> None:
    document = json.loads(run("-i", inventory, "-o", "json", "--all"))
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert [row["name"] for row in document["members"]] == ["a", "b", "c", "d"]
    assert document["members"][1]["hold"]["phase"] == "changing"


def test_an_inventory_without_a_scheduler_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {gpu1: {}}}\n")
    done = CliRunner().invoke(cli, ["status", "-i", str(path)])
    assert done.exit_code == 1
    assert "names no scheduler" in done.output + str(done.exception)
