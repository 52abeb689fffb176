"""Nodes that someone else took out of service are recognised, each by its own sign."""

from __future__ import annotations

import pytest

from gpustate.documents import Json
from gpustate.schedulers import foreign


def node(
    *,
    unschedulable: bool = False,
    manager: str = "",
    taints: tuple[tuple[str, str], ...] = (),
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Json:
    fields = (
        [
            {
                "manager": manager,
                "time": "2026-01-01T00:00:00Z",
                "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
            }
        ]
        if manager
        else []
    )
    return {
        "metadata": {
            "name": "n1",
            "labels": labels or {},
            "annotations": annotations or {},
            "managedFields": fields,
        },
        "spec": {
            "unschedulable": unschedulable,
            "taints": [{"key": key, "effect": effect} for key, effect in taints],
        },
    }


def holders(
    one: Json, *, held: bool = False, maintenances: tuple[Json, ...] = (), operator: bool = True
) -> tuple[str, ...]:
    return foreign.holders(
        one, held=held, own_manager="gpustate", maintenances=maintenances, operator=lambda: operator
    )


def test_a_node_in_service_is_held_by_nobody() -> None:
    usual = node(
        taints=(("nvidia.com/gpu", "NoSchedule"), ("node.kubernetes.io/unreachable", "NoExecute")),
        labels={
            "nvidia.com/gpu-driver-upgrade-state": "upgrade-done",
            "nvidia.com/mig.config.state": "success",
        },
        annotations={"machineconfiguration.openshift.io/state": "Done"},
    )
    assert holders(usual) == ()


UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
SIGNS = [
    ("cordon", node(unschedulable=True, manager="kubectl-cordon"), "cordoned by kubectl-cordon"),
    ("autoscaler", node(taints=(("ToBeDeletedByClusterAutoscaler", "NoSchedule"),)), "cluster-autoscaler"),
    ("karpenter", node(taints=(("karpenter.sh/disrupted", "NoSchedule"),)), "Karpenter"),
    ("out-of-service", node(taints=(("node.kubernetes.io/out-of-service", "NoExecute"),)), "out of service"),
    ("cloud", node(taints=(("aws-node-termination-handler/spot-itn", "NoSchedule"),)), "its cloud"),
    ("maintenance", node(taints=(("example.net/maintenance", "NoSchedule"),)), "example.net/maintenance"),
    ("operator", node(labels={UPGRADE: "cordon-required"}), "GPU Operator"),
    ("operator-waits", node(labels={UPGRADE: "upgrade-required"}), "has not begun (nvidia.com/gpu-driver-upgrade-state=upgrade-required)"),
    ("operator-failed", node(labels={UPGRADE: "upgrade-failed"}), "set the label to upgrade-required to try again"),
    ("operator-validates", node(labels={UPGRADE: "validation-required"}), "without a pod of nvidia-operator-validator"),
    ("mig-manager", node(labels={"nvidia.com/mig.config.state": "pending"}), "MIG manager"),
    ("nvsentinel", node(labels={"dgxc.nvidia.com/nvsentinel-state": "draining"}), "NVSentinel"),
    ("nvsentinel-cordon", node(labels={"k8saas.nvidia.com/cordon-by": "NVSentinel"}), "cordoned by NVSentinel"),
    ("quarantine", node(annotations={"quarantineHealthEvent": "{}"}), "NVSentinel quarantined"),
    ("kured", node(annotations={"kured.dev/reboot-in-progress": "now"}), "kured"),
    ("nodewright", node(annotations={"skyhook.nvidia.com/cordon_os": "true"}), "NodeWright cordoned"),
    ("skyhook", node(taints=(("skyhook.nvidia.com", "NoSchedule"),)), "NodeWright works"),
    ("openshift", node(annotations={"machineconfiguration.openshift.io/state": "Working"}), "Machine Config Operator"),
    ("sunk", node(taints=(("sunk.coreweave.com/lock", "NoExecute"),)), "SUNK"),
]  # fmt: skip


@pytest.mark.parametrize(("held", "sign"), [(h, s) for h in (False, True) for s in SIGNS], ids=str)
def test_every_sign_is_seen_and_named(held: bool, sign: tuple[str, Json, str]) -> None:
    _, one, words = sign
    (found,) = holders(one, held=held)
    assert words in found


def test_a_state_of_an_operator_that_is_gone_is_left_over() -> None:
    (words,) = holders(node(labels={UPGRADE: "upgrade-required"}), operator=False)
    assert words.endswith(f"remove it: kubectl label node n1 {UPGRADE}-")
    assert holders(node(labels={UPGRADE: "upgrade-done"}), operator=False) == ()


def test_a_maintenance_object_names_its_requestor() -> None:
    one = {
        "metadata": {"name": "m", "namespace": "ops"},
        "spec": {"nodeName": "n1", "requestorID": "network-operator"},
    }
    assert holders(node(), maintenances=(one,)) == ("NodeMaintenance ops/m of network-operator",)
    elsewhere = {**one, "spec": {"nodeName": "n2"}}
    assert holders(node(), maintenances=(elsewhere,)) == ()


def test_our_own_cordon_is_not_foreign_unless_someone_cordoned_again() -> None:
    ours = node(unschedulable=True, manager="gpustate")
    assert holders(ours, held=True) == ()
    assert holders(ours, held=False) == ("cordoned by gpustate",)
    again = node(unschedulable=True, manager="kubectl-cordon")
    assert holders(again, held=True) == ("cordoned by kubectl-cordon",)
