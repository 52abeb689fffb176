"""mig-manager's label protocol, on Nodes of a cluster in memory that answers as an API server does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apigate import Gate
from stubcluster import TOKEN, StubCluster

from gpustate.cluster.api import connect
from gpustate.schedulers import foreign
from gpustate.schedulers.base import NotDrainedError
from gpustate.schedulers.mig_labels import MigLabels
from gpustate.schedulers.mig_state import (
    CONFIG,
    FAILED,
    RUN_ANNOTATION,
    STATE,
    SUCCESS,
    is_ours,
    manager_of,
)
from gpustate.schedulers.nvidia_pods import FOR_MIG as PAUSED

DEPLOY = "nvidia.com/gpu.deploy."


class Bench:
    """One Node, and the protocol on it; its clock only runs while it sleeps."""

    def __init__(self, folder: Path) -> None:
        self.cluster = StubCluster({"n1": ("b", "m", "u")})
        self.gate = Gate(lambda request: self.cluster.answer(request))
        self.gate.open()
        self.api = connect(str(self.gate.kubeconfig(folder, TOKEN)))
        self.now = 0.0
        self.meanwhile = lambda: None
        self.mig = MigLabels(self.api, self._sleep, lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def label(self, **labels: str | None) -> None:
        self.cluster.edit_node("n1", {"metadata": {"labels": dict(labels)}})

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.cluster.node("n1")["metadata"]["labels"]
        return found

    @property
    def ours(self) -> str | None:
        return self.cluster.node("n1")["metadata"]["annotations"].get(RUN_ANNOTATION)

    def plugin(self) -> dict[str, Any]:
        return next(
            one
            for one in self.cluster.objects["pods"].values()
            if one["metadata"]["labels"]["app"] == "nvidia-device-plugin"
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.api.close()
    found.gate.close()


def never() -> bool:
    return False


def said(_: str) -> None:
    pass


def test_a_change_goes_from_pending_to_success(bench: Bench) -> None:
    bench.label(**{CONFIG: "all-1g"})
    bench.mig.begin("n1", "r1")
    assert (bench.labels[STATE], bench.ours) == ("pending", "r1")
    bench.mig.rebooting("n1")
    assert (bench.labels[STATE], bench.ours) == ("rebooting", "r1")
    bench.mig.end("n1", "all-1g", SUCCESS)
    assert (bench.labels[STATE], bench.ours) == ("success", None)
    writes = list(bench.gate.writes)
    bench.mig.end("n1", "all-1g", SUCCESS)
    assert bench.gate.writes == writes


def test_a_label_that_was_changed_meanwhile_stays_pending(bench: Bench) -> None:
    bench.label(**{CONFIG: "all-1g"})
    bench.mig.begin("n1", "r1")
    bench.label(**{CONFIG: "all-2g"})
    bench.mig.end("n1", "all-1g", SUCCESS)
    assert (bench.labels[STATE], bench.ours) == ("pending", "r1")


def test_a_label_that_was_removed_ends_without_a_state(bench: Bench) -> None:
    bench.mig.begin("n1", "r1")
    bench.mig.end("n1", "", "")
    assert STATE not in bench.labels
    assert bench.ours is None


def test_programs_with_open_gpus_are_kept_away_and_come_back(bench: Bench) -> None:
    bench.label(
        **{
            f"{DEPLOY}device-plugin": "true",
            f"{DEPLOY}dcgm": "false",
            f"{DEPLOY}driver": "true",
            CONFIG: "a",
        }
    )
    plugin = bench.plugin()
    plugin["spec"]["nodeSelector"] = {f"{DEPLOY}device-plugin": "true"}

    def leaves() -> None:
        if bench.now >= 3:
            bench.cluster.objects["pods"].pop(f"nvidia/{plugin['metadata']['name']}", None)

    bench.meanwhile = leaves
    bench.mig.begin("n1", "r1")
    bench.mig.nvidia_pods.pause("n1", said, never)
    assert bench.now == 3
    assert bench.labels[f"{DEPLOY}device-plugin"] == PAUSED
    assert bench.labels[f"{DEPLOY}dcgm"] == "false"
    assert bench.labels[f"{DEPLOY}driver"] == "true"
    bench.mig.nvidia_pods.resume("n1", is_ours)
    assert bench.labels[f"{DEPLOY}device-plugin"] == "true"
    assert bench.labels[f"{DEPLOY}dcgm"] == "false"


def test_programs_that_do_not_leave_are_named(bench: Bench) -> None:
    bench.label(**{f"{DEPLOY}device-plugin": "true"})
    bench.plugin()["spec"]["nodeSelector"] = {f"{DEPLOY}device-plugin": "true"}
    with pytest.raises(NotDrainedError, match=r"nvidia/nvidia-device-plugin-\d+ did not leave"):
        bench.mig.nvidia_pods.pause("n1", said, never)
    assert bench.now > 300


def test_labels_that_the_mig_manager_paused_are_its_own(bench: Bench) -> None:
    bench.label(**{f"{DEPLOY}device-plugin": PAUSED})
    bench.mig.nvidia_pods.resume("n1", is_ours)
    assert bench.labels[f"{DEPLOY}device-plugin"] == PAUSED


def test_pending_is_a_foreign_hold_unless_it_is_ours(bench: Bench) -> None:
    bench.label(**{STATE: "pending"})
    node = bench.cluster.node("n1")
    assert foreign.holders(node, held=False, own_manager="gpustate")
    bench.mig.begin("n1", "r1")
    node = bench.cluster.node("n1")
    assert foreign.holders(node, held=False, own_manager="gpustate") == ()
    bench.mig.end("n1", "", FAILED)


def test_the_mig_manager_is_found_where_its_pods_run() -> None:
    selector = {f"{DEPLOY}mig-manager": "true"}
    daemon_set = {
        "metadata": {"name": "nvidia-mig-manager", "namespace": "gpu-operator"},
        "spec": {"template": {"metadata": {"labels": {}}, "spec": {"nodeSelector": selector}}},
    }
    other = {"metadata": {"name": "other", "namespace": "x"}, "spec": {}}
    here: dict[str, Any] = {"metadata": {"labels": selector}}
    there: dict[str, Any] = {"metadata": {"labels": {f"{DEPLOY}mig-manager": "false"}}}
    assert manager_of(here, [other, daemon_set]) == "gpu-operator/nvidia-mig-manager"
    assert manager_of(there, [other, daemon_set]) == ""
    assert manager_of(here, [other]) == ""
