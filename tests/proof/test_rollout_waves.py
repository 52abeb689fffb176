"""A driver upgrade in waves over machines that answer over ssh, some of which fail and some of which hang.

The cluster is in memory, with an API as strict as the real one (:mod:`stubcluster`); its history is the witness.
20 machines by default, 200 with ``--proof``. A machine that hangs is stopped while its driver is installed: it
accepts connections and says nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forkserver
import pytest
from apigate import HOLD
from rolloutbed import NEW, OLD, SUPPORT, Bed, Machine, Ran

from gpustate.schedulers.lease import CONTROL, PROGRESS

pytestmark = [pytest.mark.node, pytest.mark.proof]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What goes wrong, and what was asked for.

    Args:
        count: machines.
        waves: sizes of the waves of ``--serial 1,10%,50%``.
        fails, hangs: numbers of machines.
        max_failures: of the rollout.
        most: Nodes that may be out of service at a time, as ``--max-unavailable 10%`` or ``20%`` has it.
        share: that percentage.
    """

    count: int
    waves: tuple[int, ...]
    fails: frozenset[int]
    hangs: frozenset[int]
    max_failures: int
    most: int
    share: str
    bound_s: float


SMALL = Scenario(20, (1, 2, 10, 7), frozenset({2, 8, 15}), frozenset({5}), 3, 4, "20%", bound_s=240)
LARGE = Scenario(
    200,
    (1, 20, 100, 79),
    frozenset({15, 40, 60, 120, 160}),
    frozenset({30, 90, 140}),
    5,
    20,
    "10%",
    bound_s=1500,
)


@pytest.fixture
def beds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Bed]]:
    made: list[Bed] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "records"))

    def make(count: int) -> Bed:
        folder = tmp_path / "bed"
        folder.mkdir()
        made.append(Bed(folder, count))
        write_inventory(made[0])
        return made[0]

    yield make
    for bed in made:
        bed.close()


def write_inventory(bed: Bed) -> None:
    """An inventory whose connections notice soon that a machine hangs."""
    args = f"-o UserKnownHostsFile={bed.folder}/known_hosts -o ConnectTimeout=2"
    args += " -o ServerAliveInterval=2 -o ServerAliveCountMax=3"
    kubeconfig = str(bed.kubeconfig)
    bed._write()
    bed.inventory(gpustate_kubeconfig=kubeconfig, ansible_ssh_common_args=args)


def elsewhere(folder: Path, *words: str) -> Ran:
    """Run gpustate as on another machine: it has no record of any run."""
    before = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = str(folder / "elsewhere")
    try:
        command = forkserver.start(list(words), str(SUPPORT / "hurry.py"))
    finally:
        os.environ["XDG_STATE_HOME"] = before
    done = command.wait(60)
    return Ran(done.returncode, done.stdout, done.stderr)


def processes(machine: Machine) -> list[int]:
    """Everything that runs on a machine, and what keeps it up."""
    assert machine._process is not None
    found, todo = [machine._process.pid], [machine._process.pid]
    while todo:
        folder = Path(f"/proc/{todo.pop()}/task")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for task in list(folder.glob("*/children")):
                more = [int(word) for word in task.read_text().split()]
                found += more
                todo += more
    return found


def hang(machine: Machine) -> None:
    """Stop everything on it."""
    for pid in processes(machine):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def held(bed: Bed) -> dict[str, str]:
    """Phase of every Node that is held, by name."""
    found: dict[str, str] = {}
    for node in bed.cluster.all("nodes"):
        record = node["metadata"]["annotations"].get(HOLD)
        if record:
            found[node["metadata"]["name"]] = json.loads(record)["phase"]
    return found


class Hangs:
    """Stops machines as soon as their change has begun."""

    def __init__(self, bed: Bed, numbers: frozenset[int]) -> None:
        self.bed = bed
        self.left = {bed.machines[number].name: bed.machines[number] for number in numbers}
        self._over = threading.Event()
        for machine in self.left.values():
            machine.stop_at("every")
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self.left and not self._over.wait(0.2):
            phases = held(self.bed)
            for name, machine in list(self.left.items()):
                if phases.get(name) == "changing":
                    del self.left[name]
                    hang(machine)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def repair(bed: Bed, numbers: set[int], hung: frozenset[int]) -> None:
    """Machines of these numbers work again; one that hung is switched off and on."""
    for number in numbers:
        machine = bed.machines[number]
        (machine.folder / "broken").unlink(missing_ok=True)
        if number in hung:
            machine.stop()
            machine.stop_at("0")
            machine.start(bed.folder)
    write_inventory(bed)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What it returns, once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
    return found


def cordons(bed: Bed) -> list[str]:
    """Nodes in the order in which they were first cordoned."""
    order: dict[str, None] = {}
    for moment in bed.cluster.history:
        order.update(dict.fromkeys(sorted(moment.held)))
    return list(order)


def check_budget_and_order(bed: Bed, scenario: Scenario) -> None:
    """Never more out of service than allowed; no node of a wave before the wave before it was over."""
    assert max(len(moment.held) for moment in bed.cluster.history) <= scenario.most
    wave_of: dict[str, int] = {}
    names = iter(bed.machines)
    for wave, size in enumerate(scenario.waves):
        wave_of |= {next(names).name: wave for _ in range(size)}
    waves = [wave_of[name] for name in cordons(bed)]
    assert waves == sorted(waves)


@pytest.mark.parametrize("scenario", [SMALL, LARGE], ids=["20", "200"])
def test_waves_stop_at_the_threshold_resume_and_leave_only_the_failed_held(
    beds: Callable[[int], Bed], scenario: Scenario, tmp_path: Path
) -> None:
    bed = beds(scenario.count)
    inventory = str(bed.folder / "inventory.yml")
    for number in scenario.fails:
        (bed.machines[number].folder / "broken").touch()
    hangs = Hangs(bed, scenario.hangs)
    words = ["--serial", "1,10%,50%", "--max-failures", str(scenario.max_failures)]
    words += ["--max-unavailable", scenario.share, "-o", "json", "--set", "drain.timeout_s=120"]
    command = bed.start(*words)

    wait_for(lambda: set(held(bed).values()) & {"changing"})
    shown = wait_for(
        lambda: rollout_of(elsewhere(tmp_path, "status", "-i", inventory, "-o", "json"))
    )
    assert len(shown["nodes"]) == scenario.count
    assert shown["waves"] == len(scenario.waves)
    assert {"queued"} < {node["phase"] for node in shown["nodes"]}

    done = command.wait(scenario.bound_s)
    first = Ran(done.returncode, done.stdout, done.stderr).document
    failed = {row["name"] for row in first["nodes"] if row["status"] in ("failed", "unreachable")}
    assert f"(--max-failures {scenario.max_failures})" in str(first["notes"]), done.stderr
    assert first["skipped"], "it stopped before the end"
    assert len(failed) >= scenario.max_failures
    assert set(held(bed)) == failed, "nothing else stays out of service"
    assert set(held(bed).values()) == {"failed"}
    check_budget_and_order(bed, scenario)
    begun = set(cordons(bed))
    assert begun == {row["name"] for row in first["nodes"] if row["status"] != "refused"}

    bad = scenario.fails | scenario.hangs
    numbers = {number for number in bad if bed.machines[number].name in failed}
    repair(bed, numbers, scenario.hangs)
    bed.cluster.history.clear()
    resumed = forkserver.start(
        ["rollout", "resume", first["run"], "--yes"], str(SUPPORT / "hurry.py")
    ).wait(scenario.bound_s)
    hangs.close()
    second = json.loads(resumed.stdout)
    left = {bed.machines[number].name for number in bad - numbers}
    again = {row["name"] for row in second["nodes"] if row["status"] in ("failed", "unreachable")}
    assert again == left, resumed.stderr
    assert not second.get("skipped")
    assert held(bed) == dict.fromkeys(left, "failed")
    assert max(len(moment.held) for moment in bed.cluster.history) <= scenario.most
    for machine in bed.machines:
        if machine.name not in left:
            assert machine.read("driver") == machine.read("firmware") == NEW
    for lease in bed.cluster.all("leases"):
        assert not {PROGRESS, CONTROL} & lease["metadata"].get("annotations", {}).keys()


def rollout_of(ran: Ran) -> dict[str, Any] | None:
    """The rollout that status shows, once it has published its nodes."""
    assert ran.code == 0, ran.text
    rows: list[dict[str, Any]] = ran.document["rollouts"]
    return rows[0] if rows and rows[0]["nodes"] else None


def test_a_colleague_pauses_resumes_and_aborts_a_rollout_from_another_machine(
    beds: Callable[[int], Bed], tmp_path: Path
) -> None:
    bed = beds(10)
    inventory = str(bed.folder / "inventory.yml")
    command = bed.start("--serial", "1,1,1,2", "--forks", "2")
    wait_for(lambda: len(cordons(bed)) >= 2)
    paused = elsewhere(tmp_path, "pause", "-i", inventory)
    assert paused.code == 0, paused.text
    assert "no further node is started" in paused.out
    wait_for(lambda: not held(bed) and rollout_state(tmp_path, inventory) == "paused")
    begun = cordons(bed)
    time.sleep(4)
    assert cordons(bed) == begun
    lifted = elsewhere(tmp_path, "resume", "-i", inventory)
    assert "continues; it was paused by" in lifted.out, lifted.text
    wait_for(lambda: len(cordons(bed)) > len(begun))
    aborted = elsewhere(tmp_path, "abort", "-i", inventory)
    assert aborted.code == 0, aborted.text
    done = command.wait(60)
    assert done.returncode == 6, done.stdout + done.stderr
    assert "Stopped: aborted by" in done.stdout
    assert "Not started: " in done.stdout
    assert held(bed) == {}
    begun = cordons(bed)
    assert len(begun) < len(bed.machines)
    for machine in bed.machines:  # one that was still drained returned unchanged
        assert (machine.read("driver"), machine.read("firmware")) in ((NEW, NEW), (OLD, ""))


def rollout_state(folder: Path, inventory: str) -> str:
    """What the rollout is doing, as status shows it."""
    shown = rollout_of(elsewhere(folder, "status", "-i", inventory, "-o", "json"))
    return str(shown["state"]) if shown else ""


def upgrade_of(version: str) -> list[str]:
    """Options of an apply with this version, one node out of service at a time."""
    states = [f'rollout-{what}.version="{version}"' for what in ("driver", "firmware")]
    return [*(word for one in states for word in ("--set", one)), "--max-unavailable", "1"]


def test_a_failed_node_with_nothing_to_roll_back_returns_to_service_and_its_wave_goes_back(
    beds: Callable[[int], Bed],
) -> None:
    bed = beds(3)
    assert bed.run().code == 0
    (bed.machines[1].folder / "broken").touch()
    bed.cluster.history.clear()
    failed = bed.run(*upgrade_of("3"), "--set", "rollout.rollback_on_failure=true", "-o", "json")
    assert failed.code == 7, failed.text
    rows = {row["name"]: row for row in failed.document["nodes"]}
    assert {row["status"] for row in rows.values()} == {"rolled back"}, failed.text
    assert "install driver 3 ended with 3" in rows["n1"]["reason"]
    assert "n1 failed in the same wave" in rows["n0"]["reason"]
    assert {machine.read("driver") for machine in bed.machines} == {NEW}
    assert held(bed) == {}
    log = Path(os.environ["XDG_STATE_HOME"]) / "gpustate/audit.jsonl"
    assert json.loads(log.read_text().splitlines()[-1])["held"] == []
    assert max(len(moment.held) for moment in bed.cluster.history) == 1


def test_a_node_that_an_earlier_run_holds_comes_first(beds: Callable[[int], Bed]) -> None:
    bed = beds(3)
    (bed.machines[2].folder / "broken").touch()
    failed = bed.run(*upgrade_of(NEW), "--forks", "1")
    assert failed.code == 1, failed.text
    assert held(bed) == {"n2": "failed"}
    (bed.machines[2].folder / "broken").unlink()
    done = bed.run(*upgrade_of("3"), "--forks", "1")
    assert done.code == 0, done.text
    assert held(bed) == {}
    assert {machine.read("driver") for machine in bed.machines} == {"3"}
