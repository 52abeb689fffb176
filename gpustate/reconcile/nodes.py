"""The Nodes that are machines of a run, and the labels by which NVIDIA's components run there.

Sources:
    NVIDIA/gpu-operator v26.7, controllers/state_manager.go (gpuStateLabels, hasOperandsDisabled, hasMIGCapableGPU):
    the labels of each kind of workload; NVIDIA/k8s-driver-manager v0.12, cmd/driver-manager: ``pre-installed``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.cluster.pods import Machine, NodeIndex, Unregistered, Verdict
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.inventory import LABELS
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.policy import Policy
from gpustate.core.where import parse
from gpustate.documents import Json
from gpustate.errors import ClusterError, RefusedError
from gpustate.formats.node_programs import AGENTS
from gpustate.formats.pci_gpus import PciGpu
from gpustate.formats.words import listed
from gpustate.manifests.build import node_labels
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.components.driver import OWNER_LABEL
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import System
from gpustate.manifests.systems import has_gpus, system_of

PRESENT = "nvidia.com/gpu.present"
OPERANDS = f"{DEPLOY}operands"
WORKLOAD = "nvidia.com/gpu.workload.config"
CONTAINER, PASSTHROUGH, VGPU = "container", "vm-passthrough", "vm-vgpu"
#: A driver of the host keeps the driver container off the Node.
_PRE_INSTALLED = "pre-installed"

#: Components by kind of workload, as the GPU Operator labels them.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    CONTAINER: (
        *("driver", "container-toolkit", "device-plugin", "gpu-feature-discovery", "dcgm"),
        *("dcgm-exporter", "node-status-exporter", "operator-validator", "client"),
    ),
    PASSTHROUGH: (
        *("sandbox-device-plugin", "sandbox-validator", "vfio-manager", "kata-manager"),
        *("cc-manager", "client"),
    ),
    VGPU: (
        *("sandbox-device-plugin", "vgpu-manager", "vgpu-device-manager", "sandbox-validator"),
        *("cc-manager", "client"),
    ),
}
_KATA_PLUGIN = "kata-sandbox-device-plugin"
_MIG_MANAGER = "mig-manager"
#: Components that may be states of the node, with the same name; then their pods stay away.
_ON_HOST = ("driver", "container-toolkit", "dcgm", "dcgm-exporter")
#: GPU models that the GPU Operator knows to be MIG capable without the label of GPU feature discovery.
_MIG_MODELS = ("h100", "a100", "a30")
_IDS = ("boot_id", "machine_id", "system_uuid")
_WITHOUT_EFFECT = (Outcome.NOT_APPLICABLE, Outcome.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Member:
    """A machine of a run, and its Node.

    Args:
        result: of the machine.
        node: as the cluster has it.
    """

    result: NodeResult
    node: Json

    @property
    def name(self) -> str:
        """The name of the Node."""
        return str(self.node["metadata"]["name"])

    @property
    def has_gpus(self) -> bool:
        """Whether the machine has GPUs on PCI."""
        return bool(_gpus(self.result))


def members(nodes: Sequence[Json], results: Iterable[NodeResult]) -> list[Member]:
    """The machines of a run that are Nodes of a cluster, by the name of the Node."""
    index = NodeIndex(nodes)
    members_of_run: list[Member] = []
    for result in results:
        try:
            node = index.match(_machine(result), any_boot=True)
        except Verdict:
            continue  # not reached, of another cluster, or not joined
        members_of_run.append(Member(result, node))
    return sorted(members_of_run, key=lambda member: member.name)


def check_cluster(nodes: Sequence[Json], results: Iterable[NodeResult], server: str) -> None:
    """Refuse a cluster to which no machine of a run belongs, although a kubelet runs on one.

    A machine without a kubelet may join later.

    Raises:
        RefusedError: the kubeconfig is that of another cluster.
    """
    index = NodeIndex(nodes)
    kubelets: list[str] = []
    for result in results:
        try:
            index.match(_machine(result), any_boot=True)
        except Unregistered:
            if _runs_kubelet(result):
                kubelets.append(result.name)
            continue
        except Verdict:
            pass  # several Nodes may be it: they are of this cluster
        return
    if kubelets:
        raise RefusedError(
            f"nothing is written: no Node of the cluster is {listed(kubelets, 3, ' or ')}, where a kubelet runs",
            place=server,
            fix="check that the kubeconfig is for these nodes' cluster, and why their kubelets do not register: journalctl -u kubelet",
        )


def _machine(result: NodeResult) -> Machine:
    boot, machine, system = (str(result.facts.get(name) or "") for name in _IDS)
    return Machine(boot, machine, system)


def _runs_kubelet(result: NodeResult) -> bool:
    facts: dict[str, Any] = dict(result.facts)
    return any(AGENTS.get(agent) == "Kubernetes" for agent in facts.get("agents") or ())


def systems_of(nodes: Iterable[Json], run_nodes: Iterable[Member]) -> list[System]:
    """The systems of a cluster's Nodes with GPUs, by the labels of node feature discovery.

    Args:
        nodes: of the cluster.
        run_nodes: those of the run.

    Raises:
        ClusterError: a Node lacks them, so that its driver's image is not known.
    """
    gpu_nodes = {member.name for member in run_nodes if member.has_gpus}
    systems: dict[System, None] = {}
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        if not has_gpus(labels) and name not in gpu_nodes:
            continue
        system = system_of(labels)
        if system is None:
            raise ClusterError(
                f"Node {name} has GPUs, and no labels of node feature discovery that name its system",
                fix="install node feature discovery, or list the systems in gpustate.yaml next to the policy",
            )
        systems[system] = None
    return sorted(systems, key=lambda system: (system.name, system.version, system.kernel))


def labels_of(run_nodes: Iterable[Member], policy: Policy) -> dict[str, dict[str, str]]:
    """The labels of each Node; without GPUs none, and those with a failure keep what they have."""
    fit = (member for member in run_nodes if member.result.status is NodeStatus.OK)
    return {member.name: _labels(member, policy) for member in fit}


def _labels(member: Member, policy: Policy) -> dict[str, str]:
    if not member.has_gpus:
        return {}
    live = member.node["metadata"].get("labels") or {}
    labels = {PRESENT: "true"}
    if live.get(OPERANDS) == "false":
        return labels
    states = states_of(member.result, policy)
    workload = _workload(live, states)
    names = list(COMPONENTS[workload])
    if workload == PASSTHROUGH and "kata" in states:
        names[names.index("sandbox-device-plugin")] = _KATA_PLUGIN
    if workload == CONTAINER:
        labels |= node_labels(settings_of(policy), states)
        if _mig_capable(member):
            names.append(_MIG_MANAGER)
        owner = _owner(member.name, live, policy)
        labels |= {OWNER_LABEL: owner} if owner else {}
    for name in names:
        host = name in _ON_HOST and name in states
        labels[f"{DEPLOY}{name}"] = _PRE_INSTALLED if host else "true"
    return dict(sorted(labels.items()))


def _owner(name: str, labels: Mapping[str, str], policy: Policy) -> str:
    """The NVIDIADriver whose containers run on a Node; empty if there is none.

    Raises:
        ClusterError: several select it.
    """
    drivers = [driver for driver in settings_of(policy).drivers if driver.owner]
    view = NodeView(name, (), {LABELS[-1]: dict(labels)}, NodeFacts())
    owners = [
        driver.owner
        for driver in drivers
        if driver.condition and parse(driver.condition).holds(view)
    ]
    if len(owners) > 1:
        raise ClusterError(
            f"several NVIDIADrivers select Node {name}: {', '.join(owners)}",
            fix="remove a label of the Node, or change a selector",
        )
    defaults = [driver.owner for driver in drivers if not driver.condition]
    return next(iter((*owners, *defaults)), "")


def states_of(result: NodeResult, policy: Policy) -> set[str]:
    """States that are present on a node."""
    present = {state.name for state in policy.states if not state.absent}
    return {row.state for row in result.states if row.outcome not in _WITHOUT_EFFECT} & present


def _workload(live: Mapping[str, str], states: Collection[str]) -> str:
    """The kind of workload: that of the Node's label, else by what the policy set up.

    A machine whose GPUs are bound for virtual machines has none for containers, whatever the label.
    """
    label = live.get(WORKLOAD, "")
    if "vfio" in states or "kata" in states:
        return label if label in (PASSTHROUGH, VGPU) else PASSTHROUGH
    return VGPU if label == VGPU else CONTAINER


def _gpus(result: NodeResult) -> list[PciGpu]:
    facts: dict[str, Any] = dict(result.facts)
    devices = (PciGpu(**row) for row in facts.get("pci") or ())
    return [device for device in devices if device.is_gpu]


def _mig_capable(member: Member) -> bool:
    """As the GPU Operator judges it; where it knows no better, by the machine's own GPUs."""
    live = member.node["metadata"].get("labels") or {}
    if live.get("nvidia.com/vgpu.host-driver-version"):
        return False
    if "nvidia.com/mig.capable" in live:
        return bool(live["nvidia.com/mig.capable"] == "true")
    product = live.get("nvidia.com/gpu.product", "").lower()
    is_mig_model = any(model in product for model in _MIG_MODELS)
    return is_mig_model or any(gpu.mig_capable for gpu in _gpus(member.result))
