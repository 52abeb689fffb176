"""One plan serves all nodes of a run whose answers are equal, and only those."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyinfracases import CASES, Case, filled
from pyinfrajudge import answered, told

from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer, Query
from gpustate.engine.probing import ProbingNode
from gpustate.operations import host

STAT = "user=root group=root mode=-rw-r--r-- atime={0} mtime={0} ctime={0} size=9 '/etc/motd'\n"
MOTD = {"path": "/etc/motd", "mode": "644"}


class Run:
    """The nodes of one run, and how often an operation is evaluated with pyinfra."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared: dict[Any, Any] = {}
        self.evaluations = 0
        evaluate = host._attempt

        def counted(*arguments: Any) -> Any:
            self.evaluations += 1
            return evaluate(*arguments)

        monkeypatch.setattr(host, "_attempt", counted)

    def plan(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        answers: Mapping[str, str],
        name: str = "node",
        **vars: object,
    ) -> list[str]:
        """The commands for one more node."""
        node = InventoryNode(name, vars=vars)
        known: dict[Query[Any], Answer] = {}
        while True:
            probing = ProbingNode(node, known, self.shared)
            planned = host.plan(probing, operation, arguments)
            if planned.complete:
                return [told(command.display) for command in planned.commands]
            known.update(
                zip(probing.missing, answered(tuple(probing.missing), answers), strict=True)
            )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.id)
def test_an_equal_node_gets_the_same_plan_without_pyinfra(
    one: Case, tmp_path: Path, run: Run
) -> None:
    one.prepare(tmp_path)
    arguments = filled(one.arguments, tmp_path)
    first = run.plan(one.operation, arguments, one.answers, "a", rack=1)
    evaluations = run.evaluations
    assert run.plan(one.operation, arguments, one.answers, "b", rack=2) == first
    reads_times = one.operation == "apt.update"
    assert (run.evaluations > evaluations) == reads_times


def test_a_node_with_another_answer_gets_its_own_plan(run: Run) -> None:
    good, bad = STAT.format(1), STAT.format(1).replace("-rw-r--r--", "-rwxrwxrwx")
    assert run.plan("files.file", MOTD, {"stat -c": good}) == []
    assert run.plan("files.file", MOTD, {"stat -c": bad}) == ["chmod 644 /etc/motd"]
    assert run.plan("files.file", MOTD, {"stat -c": good}) == []


def test_times_of_a_file_make_a_difference_only_where_they_are_read(run: Run) -> None:
    run.plan("files.file", MOTD, {"stat -c": STAT.format(1)})
    evaluations = run.evaluations
    run.plan("files.file", MOTD, {"stat -c": STAT.format(2)})
    assert run.evaluations == evaluations
    update = {"cache_time": 3600}
    old, now = {"stat -c": STAT.format(1)}, {"stat -c": STAT.format(4_000_000_000)}
    assert run.plan("apt.update", update, old) != []
    assert run.plan("apt.update", update, now) == []


def test_variables_and_the_name_of_a_node_are_its_own(run: Run, tmp_path: Path) -> None:
    for folder in ("x", "y"):
        commands = run.plan("pyinfradeploys.from_data", {}, {}, folder=str(tmp_path / folder))
        assert commands == [f"mkdir -p {tmp_path}/{folder}/made"]
    (tmp_path / "page.j2").write_text("{{ host.name }} {{ host.data.get('rack') }}\n")
    page = {"src": f"{tmp_path}/page.j2", "dest": f"{tmp_path}/page"}
    (tmp_path / "page").write_text("a 1\n")
    assert run.plan("files.template", page, {}, "a", rack=1) == []
    assert run.plan("files.template", page, {}, "b", rack=1) != []
    assert run.plan("files.template", page, {}, "a", rack=2) != []


def test_another_run_reads_local_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.j2").write_text("one\n")
    (tmp_path / "page").write_text("one\n")
    page = {"src": f"{tmp_path}/page.j2", "dest": f"{tmp_path}/page"}
    assert Run(monkeypatch).plan("files.template", page, {}) == []
    (tmp_path / "page.j2").write_text("two\n")
    assert Run(monkeypatch).plan("files.template", page, {}) != []
