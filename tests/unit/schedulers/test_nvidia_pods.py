"""NVIDIA's programs that have GPUs open leave a Node before its driver is changed, and come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apigate import Gate
from stubcluster import TOKEN, Answer, Request, StubCluster

from gpustate.cluster.api import connect
from gpustate.core.drain import DrainPolicy
from gpustate.manifests.ownership import applied_labels
from gpustate.schedulers.base import Scope, Why
from gpustate.schedulers.kubernetes import Kubernetes
from gpustate.schedulers.mig_state import RUN_ANNOTATION
from gpustate.schedulers.nvidia_pods import FOR_DRIVER

PLUGIN, FEATURES = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.gpu-feature-discovery"  # fmt: skip
PRESENT = "nvidia.com/gpu.present"
WHY = Why("20261124-1", "ann@ops1", "driver 580")


class Bench:
    """One Node whose device plugin runs by its label, and leaves within three seconds."""

    def __init__(self, folder: Path) -> None:
        self.cluster = StubCluster({"n1": ("b", "m", "u")})
        self.writes = 0
        self.gate = Gate(self._answer)
        self.gate.open()
        self.api = connect(str(self.gate.kubeconfig(folder, TOKEN)))
        self.now = 0.0
        self.said: list[str] = []
        self.scheduler = Kubernetes(self.api, sleep=self._sleep, clock=lambda: self.now)
        self.label(**{PLUGIN: "true", FEATURES: "false"})
        pods = self.cluster.objects["pods"].values()
        self.plugin = next(
            one for one in pods if one["metadata"]["labels"]["app"] == "nvidia-device-plugin"
        )
        self.plugin["spec"]["nodeSelector"] = {PLUGIN: "true"}

    def _answer(self, request: Request) -> Answer:
        self.writes += request.writes and "/nodes/" in request.path
        return self.cluster.answer(request)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= 3 and self.labels[PLUGIN] != "true":
            self.cluster.objects["pods"].pop(f"nvidia/{self.plugin['metadata']['name']}", None)

    def label(self, **labels: str) -> None:
        self.cluster.edit_node("n1", {"metadata": {"labels": labels}})

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.cluster.node("n1")["metadata"]["labels"]
        return found

    def drain(self, scope: Scope) -> None:
        (member,) = self.scheduler.members()
        held = self.scheduler.hold(member, WHY)
        self.scheduler.drain(held, scope, DrainPolicy(), self.said.append, lambda: False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.api.close()
    found.gate.close()


def test_they_leave_when_the_node_is_drained_and_come_back_when_it_is_released(
    bench: Bench,
) -> None:
    bench.drain(Scope.GPU)
    assert bench.labels[PLUGIN] == FOR_DRIVER
    assert bench.labels[FEATURES] == "false"
    assert any("have GPUs open" in text for text in bench.said)
    (member,) = bench.scheduler.members(fresh=True)
    assert bench.scheduler.release(member) == ""
    assert bench.labels[PLUGIN] == "true"
    assert bench.labels[FEATURES] == "false"


def test_they_stay_for_a_reboot_which_ends_them(bench: Bench) -> None:
    bench.drain(Scope.ALL)
    assert bench.labels[PLUGIN] == "true"


def test_a_mig_label_s_protocol_pauses_them_itself(bench: Bench) -> None:
    bench.cluster.edit_node("n1", {"metadata": {"annotations": {RUN_ANNOTATION: "20261124-1"}}})
    bench.drain(Scope.GPU)
    assert bench.labels[PLUGIN] == "true"


def test_what_another_tool_has_paused_stays_paused(bench: Bench) -> None:
    bench.label(**{PLUGIN: FOR_DRIVER})
    (member,) = bench.scheduler.members()
    bench.scheduler.release(member)
    assert bench.labels[PLUGIN] == FOR_DRIVER


def test_a_run_that_lost_its_node_to_another_leaves_them_paused(bench: Bench) -> None:
    bench.drain(Scope.GPU)
    (member,) = bench.scheduler.members(fresh=True)
    bench.scheduler.hold(member, Why("20261124-2", "bob@ops2", "driver 590"))
    assert "20261124-2" in bench.scheduler.release(member)
    assert bench.labels[PLUGIN] == FOR_DRIVER


def test_a_release_is_one_write_to_the_node(bench: Bench) -> None:
    bench.drain(Scope.GPU)
    (member,) = bench.scheduler.members(fresh=True)
    before = bench.writes
    bench.scheduler.release(member)
    assert bench.writes - before == 1


def test_labels_that_gpustate_has_applied_stay_its_own(bench: Bench) -> None:
    node = bench.api.node("n1")
    bench.api.apply_labels(node, {PLUGIN: "true", PRESENT: "true"})
    bench.drain(Scope.GPU)
    assert bench.labels[PLUGIN] == FOR_DRIVER
    (member,) = bench.scheduler.members(fresh=True)
    bench.scheduler.release(member)
    assert bench.labels == {PLUGIN: "true", FEATURES: "false", PRESENT: "true"}
    assert applied_labels(bench.cluster.node("n1")) == {PLUGIN, PRESENT}


def test_labels_of_others_do_not_become_gpustates(bench: Bench) -> None:
    bench.drain(Scope.GPU)
    (member,) = bench.scheduler.members(fresh=True)
    bench.scheduler.release(member)
    assert bench.labels[PLUGIN] == "true"
    assert applied_labels(bench.cluster.node("n1")) == set()
