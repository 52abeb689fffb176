"""Whole runs of ``gpustate`` over machines whose cluster answers as strictly as a real one: nothing foreign is touched.

What is written is counted at the API: two controllers at once, holds of others, and clusters that cannot be used.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import shares
from apigate import AFTER, REFUSED, Gate, Trap
from rolloutbed import NEW, OLD, Bed, Ran, finish, wait_until_sprung
from stubcluster import TOKEN, StubCluster

from gpustate.cluster import api
from gpustate.documents import Json
from gpustate.schedulers.kubernetes.members import HOLD
from gpustate.schedulers.kubernetes.rights import CHANGING, rule

pytestmark = pytest.mark.long

LEASE_S = 3.0  # in a hurry
CREDENTIALS = "client.authentication.k8s.io/v1"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"


@pytest.fixture(scope="module")
def shared_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(tmp_path_factory.mktemp("rollout"), 2)
    yield bed
    bed.close()


@pytest.fixture
def bed(shared_bed: Bed) -> Bed:
    """Two machines with the old driver."""
    shared_bed.reset()
    shared_bed.gate.begin()
    shared_bed.gate.skew_s = 0.0
    shared_bed.inventory(gpustate_kubeconfig=str(shared_bed.kubeconfig))
    return shared_bed


# --- two controllers ------------------------------------------------------------------------------


def test_a_second_controller_is_refused_while_the_first_is_at_work(bed: Bed) -> None:
    machine = bed.machines[0]
    machine.stop_at("1")
    hold = bed.hold(machine)
    first = bed.start("--forks", "1")
    assert hold.wait(60.0)
    writes = len(bed.gate.writes)
    second = bed.run("--forks", "1")
    assert second.code == 8
    assert "run of yours is in progress" in second.text
    assert "changes nodes of" in second.text, (
        "n1 is nobody's yet, but the cluster is the first run's"
    )
    theirs = [
        one
        for one in bed.gate.writes[writes:]
        if not one.startswith(("lease renew", "lease publish"))
    ]
    assert theirs == []
    hold.never_again()
    hold.go()
    hold.close()
    assert finish(first).code == 0
    assert bed.wrong() == []


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has further runs know as little of earlier ones as on another machine."""
    return lambda: monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("where", ["lease take 1", "hold n0 1", "note changing n0 1"])
def test_a_dead_controller_is_followed_within_the_time_of_its_lease(
    bed: Bed, where: str, elsewhere: Callable[[], None]
) -> None:
    begun: list[Any] = []
    bed.gate.begin(Trap(where, AFTER, lambda: begun[0].kill(), drop=True))
    begun.append(bed.start("--forks", "1"))
    finish(begun[0])
    elsewhere()
    at = time.monotonic()
    taken: list[float] = []
    bed.gate.begin(Trap("lease take 1", AFTER, lambda: taken.append(time.monotonic() - at)))
    ran = bed.run("--forks", "1")
    assert ran.code == 0, ran.text
    assert "has not renewed its Lease; taking it over" in ran.text
    assert LEASE_S / 2 < taken[0] < LEASE_S + 5.0
    assert bed.wrong() == []


def test_a_controller_that_died_on_this_machine_is_followed_at_once(bed: Bed) -> None:
    begun: list[Any] = []
    bed.gate.begin(Trap("hold n0 1", AFTER, lambda: begun[0].kill(), drop=True))
    begun.append(bed.start("--forks", "1", hurry=False))
    finish(begun[0])
    at = time.monotonic()
    taken: list[float] = []
    bed.gate.begin(Trap("lease take 1", AFTER, lambda: taken.append(time.monotonic() - at)))
    ran = bed.run("--forks", "1", hurry=False)
    assert ran.code == 0, ran.text
    assert "on this machine has ended; taking over its Lease" in ran.text
    assert taken[0] < 30.0, "its Lease is valid for a minute"
    assert bed.wrong() == []


@pytest.mark.proof
def test_a_node_that_cannot_be_released_stays_held_and_is_not_rolled_back(bed: Bed) -> None:
    # For longer than a server that has answered is waited for, which no test shortens.
    trap = Trap("release n0 1", away=REFUSED, away_s=api.PATIENCE_S + 15)
    bed.gate.begin(trap)
    ran = bed.run("--forks", "1", "-l", "n0", "--set", "rollout.rollback_on_failure=true")
    assert trap.sprung, ran.text
    assert ran.code == 1, ran.text
    assert "rolling back" not in ran.text
    assert "n0 stays out of service: it was not released" in ran.text
    assert bed.machines[0].read("driver") == NEW
    bed.gate.wait_back()
    bed.gate.begin()
    assert bed.run().code == 0
    assert bed.wrong() == []


@pytest.mark.proof
def test_a_dead_controller_is_followed_after_a_minute_with_the_real_times(
    bed: Bed, elsewhere: Callable[[], None]
) -> None:
    begun: list[Any] = []
    bed.gate.begin(Trap("hold n0 1", AFTER, lambda: begun[0].kill(), drop=True))
    begun.append(bed.start("--forks", "1", hurry=False))
    finish(begun[0])
    elsewhere()
    at = time.monotonic()
    taken: list[float] = []
    bed.gate.begin(Trap("lease take 1", AFTER, lambda: taken.append(time.monotonic() - at)))
    assert bed.run("--forks", "1", hurry=False).code == 0
    assert 40.0 < taken[0] < 75.0
    assert bed.wrong() == []


def test_a_controller_that_slept_through_its_lease_changes_nothing_that_another_holds(
    bed: Bed,
) -> None:
    begun: list[Any] = []
    reached = Trap("hold n0 1", AFTER, lambda: os.kill(begun[0].pid, signal.SIGSTOP))
    bed.gate.begin(reached)
    begun.append(bed.start("--forks", "1"))
    wait_until_sprung(reached, begun[0])
    bed.gate.begin()
    second = bed.run("--forks", "1")
    assert second.code == 0, second.text
    assert bed.wrong() == []
    bed.gate.begin()
    os.kill(begun[0].pid, signal.SIGCONT)
    first = finish(begun[0])
    assert first.code != 0
    changes = ("hold", "note", "release", "patch", "delete")
    assert [one for one in bed.gate.writes if one.startswith(changes)] == []
    assert "n0 was returned to service by someone else" in first.text
    assert bed.wrong() == []


def test_an_apply_that_finds_nothing_to_do_leaves_the_hold_of_a_living_run_alone(bed: Bed) -> None:
    machine = bed.machines[0]
    bed.gate.begin()
    begun = bed.start("--forks", "1", "-l", "n0")
    reached = Trap("delete nvidia-device-plugin 1", AFTER, lambda: os.kill(begun.pid, signal.SIGSTOP))  # fmt: skip
    bed.gate.trap = reached
    wait_until_sprung(reached, begun)
    assert machine.read("driver") == NEW
    with renewed(bed):
        second = bed.run("-l", "n0")
    assert second.code == 0, second.text
    assert "stays out of service" in second.text
    assert HOLD in bed.cluster.node("n0")["metadata"]["annotations"]
    os.kill(begun.pid, signal.SIGCONT)
    assert finish(begun).code == 0
    bed.run()
    assert bed.wrong() == []


@contextmanager
def renewed(bed: Bed) -> Iterator[None]:
    """The Lease is renewed although its controller stands still."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.3):
            with bed.cluster.lock:
                for lease in bed.cluster.objects["leases"].values():
                    lease["spec"]["renewTime"] = datetime.now(UTC).isoformat()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# --- holds of others ------------------------------------------------------------------------------


def taint(key: str, effect: str = "NoSchedule") -> Json:
    return {"spec": {"taints": [{"key": key, "effect": effect}]}}


def label(key: str, value: str) -> Json:
    return {"metadata": {"labels": {key: value}}}


def annotation(key: str, value: str) -> Json:
    return {"metadata": {"annotations": {key: value}}}


#: Who works on a Node: how that shows, and how it is named.
FOREIGN: tuple[tuple[Json, str], ...] = (
    ({"spec": {"unschedulable": True}}, "cordoned by kubectl-cordon"),
    (taint("ToBeDeletedByClusterAutoscaler"), "cluster-autoscaler deletes it"),
    (taint("karpenter.sh/disrupted"), "Karpenter replaces it"),
    (taint("node.kubernetes.io/out-of-service", "NoExecute"), "marked as out of service"),
    (taint("aws-node-termination-handler/spot-itn"), "its cloud terminates it"),
    (taint("node.cloudprovider.kubernetes.io/shutdown"), "its cloud shut it down"),
    (taint("example.net/maintenance"), "taint example.net/maintenance:NoSchedule"),
    (taint("site.example/drain", "NoExecute"), "taint site.example/drain:NoExecute"),
    (taint("skyhook.nvidia.com"), "NodeWright works on it"),
    (taint("sunk.coreweave.com/lock", "NoExecute"), "SUNK holds it"),
    (label(UPGRADE, "drain-required"), f"{UPGRADE}=drain-required"),
    (label("nvidia.com/mig.config.state", "pending"), "NVIDIA's MIG manager changes it"),
    (label("dgxc.nvidia.com/nvsentinel-state", "draining"), "NVSentinel handles a fault"),
    (label("k8saas.nvidia.com/cordon-by", "NVSentinel"), "cordoned by NVSentinel"),
    (annotation("kured.dev/reboot-in-progress", "2026"), "kured reboots it"),
    (annotation("machineconfiguration.openshift.io/state", "Working"), "Machine Config Operator"),
    (annotation("skyhook.nvidia.com/cordon_os", "true"), "NodeWright cordoned it"),
)  # fmt: skip


def test_nothing_that_someone_else_works_on_is_touched_and_each_of_them_is_named(
    tmp_path: Path,
) -> None:
    assert len(FOREIGN) >= 12
    bed = Bed(tmp_path, len(FOREIGN) + 2)
    *held, maintained, free = bed.machines
    try:
        for machine, (patch, _) in zip(held, FOREIGN, strict=True):
            bed.cluster.write(f"/api/v1/nodes/{machine.name}", patch, "kubectl-cordon")
        bed.cluster.objects["nodemaintenances"] = {
            "m": {
                "metadata": {"name": "m", "namespace": "ops"},
                "spec": {"nodeName": maintained.name, "requestorID": "network-operator"},
            }
        }
        before = {one.name: bed.cluster.node(one.name) for one in bed.machines}
        pods = {one["metadata"]["uid"]: one["spec"].get("nodeName") for one in bed.cluster.all("pods")}  # fmt: skip
        planned = bed.run("-o", "json", verb="plan").document["nodes"]
        ran = bed.run("-o", "json")
        rows = {row["name"]: row for row in ran.document["nodes"]}
        plans = {row["name"]: " ".join(row["notes"]) for row in planned}
        assert ran.code == 5, ran.text
        words = [*(words for _, words in FOREIGN), "NodeMaintenance ops/m of network-operator"]
        for machine, text in zip([*held, maintained], words, strict=True):
            assert rows[machine.name]["status"] == "refused", rows[machine.name]
            assert text in rows[machine.name]["reason"]
            assert text in plans[machine.name]
            assert machine.read("driver") == OLD
            assert bed.cluster.node(machine.name) == before[machine.name], "not one byte of it"
        assert rows[free.name]["status"] == "ok", rows[free.name]
        assert free.read("driver") == NEW
        of_nodes = {one.split()[-2] for one in bed.gate.writes if one.startswith(("hold", "note", "release", "patch"))}  # fmt: skip
        assert of_nodes == {free.name}
        now = {one["metadata"]["uid"]: one["spec"].get("nodeName") for one in bed.cluster.all("pods")}  # fmt: skip
        gone = {node for uid, node in pods.items() if uid not in now}
        assert gone == {free.name}
    finally:
        bed.close()


# --- clusters that cannot be used -----------------------------------------------------------------


def refused(bed: Bed, ran: Ran, code: int, *words: str) -> None:
    """Each of the machines has one reason in one line, and nothing was written."""
    assert ran.code == code, ran.text
    for word in words:
        assert word in ran.text, ran.text
    assert "Traceback" not in ran.text
    assert "a bug in gpustate" not in ran.text
    assert bed.gate.writes == []
    assert {machine.read("driver") for machine in bed.machines} == {OLD}
    assert not any((machine.folder / "state/runs").exists() for machine in bed.machines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the kubeconfig (No such file or directory)"),
        ("{", "not a kubeconfig"),
        (
            '{"clusters": [], "contexts": [], "current-context": "x"}',
            "its current context 'x' does not exist",
        ),
    ],
)
@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_bad_kubeconfig_is_one_error(
    bed: Bed, tmp_path: Path, text: str | None, words: str, by: str
) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    if by == "variable":
        bed.inventory(gpustate_kubeconfig=str(file))
    given = ["--kubeconfig", str(file)] if by == "option" else []
    refused(bed, bed.run(*given), 1, words, str(file))
    planned = bed.run(*given, verb="plan")
    assert words in planned.text
    assert "Traceback" not in planned.text


def test_a_server_that_is_not_there_is_one_error(bed: Bed) -> None:
    bed.gate.close()
    try:
        refused(
            bed, bed.run(), 5, f"API server {bed.gate.url} is unreachable:", "Connection refused"
        )
    finally:
        bed.gate.open()


@pytest.mark.parametrize("right", shares.share("missing rights", CHANGING, most=3), ids=" ".join)
def test_a_missing_right_is_named_with_its_rule(bed: Bed, right: tuple[str, str, str]) -> None:
    bed.cluster.denied = {right}
    refused(bed, bed.run("-l", "n0"), 5, rule(*right))


def test_all_missing_rights_are_named_at_once(bed: Bed) -> None:
    bed.cluster.denied = set(CHANGING)
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, group, resource in CHANGING:
        verbs.setdefault((group, resource), []).append(verb)
    rules = [rule(words, *place) for place, words in verbs.items()]
    refused(bed, bed.run(), 5, *rules)
    planned = bed.run(verb="plan")
    assert rules[0] in planned.text


def test_an_expired_token_is_one_error(bed: Bed) -> None:
    bed.cluster.token = "the next one"
    refused(bed, bed.run(), 5, "list nodes: Unauthorized", "token or certificate is expired")


def login(bed: Bed, folder: Path, output: str) -> Path:
    """A kubeconfig whose user is a program that prints this."""
    program = folder / "get-token"
    program.write_text(f"#!/bin/sh\necho run >>{folder}/runs\necho '{output}'\n")
    program.chmod(0o755)
    config = json.loads(bed.kubeconfig.read_text())
    settings = {"apiVersion": CREDENTIALS, "command": str(program), "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": settings}
    file = folder / "managed"
    file.write_text(json.dumps(config))
    return file


def test_a_managed_clusters_login_program_is_run_once(bed: Bed, tmp_path: Path) -> None:
    status = {"token": TOKEN, "expirationTimestamp": "2099-01-01T00:00:00Z"}
    answer = {"kind": "ExecCredential", "apiVersion": CREDENTIALS, "status": status}
    file = login(bed, tmp_path, json.dumps(answer))
    ran = bed.run("--kubeconfig", str(file))
    assert ran.code == 0, ran.text
    assert bed.wrong() == []
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"token": "old", "expirationTimestamp": "2026-01-02T03:04:05Z"},
         ("list nodes: Unauthorized", "get-token of the kubeconfig returned credentials that the server refuses, which expired at 2026-01-02T03:04:05Z")),
        ({}, ("get-token, which the kubeconfig", "printed an ExecCredential without token")),
    ],
)  # fmt: skip
def test_a_login_without_success_is_one_error(
    bed: Bed, tmp_path: Path, status: Json, words: tuple[str, ...]
) -> None:
    answer = {"kind": "ExecCredential", "apiVersion": CREDENTIALS, "status": status}
    file = login(bed, tmp_path, json.dumps(answer))
    refused(bed, bed.run("--kubeconfig", str(file)), 5, *words)
    planned = bed.run("--kubeconfig", str(file), verb="plan")
    assert words[-1] in planned.text
    assert "Traceback" not in planned.text


def test_the_kubeconfig_of_another_cluster_is_refused(bed: Bed, tmp_path: Path) -> None:
    other = StubCluster({"n0": ("boot", "machine", "uuid"), "n1": ("boot1", "machine1", "uuid1")})
    gate = Gate(other.answer)
    gate.open()
    try:
        ran = bed.run("--kubeconfig", str(gate.kubeconfig(tmp_path, TOKEN)))
        refused(bed, ran, 5, "no Node of the cluster is this machine", gate.url)
        assert gate.writes == []
    finally:
        gate.close()


@pytest.mark.parametrize(("skew_s", "words"), [(3600, "s ahead of"), (-3600, "s behind")])
def test_a_clock_that_is_off_is_one_error(bed: Bed, skew_s: float, words: str) -> None:
    bed.gate.skew_s = skew_s
    refused(bed, bed.run(), 5, f"{words} the API server's", "synchronize both clocks")


def test_a_change_that_fails_stays_held_with_the_reason_until_it_is_fixed(bed: Bed) -> None:
    (bed.machines[0].folder / "broken").touch()
    ran = bed.run("-l", "n0")
    assert ran.code == 1
    assert "n0 stays out of service" in ran.text
    node = bed.cluster.node("n0")
    assert node["spec"]["unschedulable"]
    assert '"phase": "failed"' in node["metadata"]["annotations"][HOLD]
    (bed.machines[0].folder / "broken").unlink()
    assert bed.run().code == 0
    assert bed.wrong() == []
