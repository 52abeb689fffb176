"""What labels of Nodes select for the machines of a run: the MIG layout, and the device plugin's configuration.

``nvidia.com/mig.config`` names a layout of the policy's mig-parted file, ``nvidia.com/device-plugin.config`` one of the
policy's configurations. A label is a layer of parameters of its own, stronger than the policy and the inventory, weaker
than the command line. A machine is matched with its Node by name or address, for it has not been reached yet.

Where a label decides and cannot be read, nothing is planned: the policy's own layout would destroy the one that the
label selects.

Sources:
    NVIDIA/mig-parted v0.15: cmd/nvidia-mig-manager. NVIDIA/k8s-device-plugin v0.20: cmd/config-manager,
    internal/rm/device_map.go (with the strategy none a GPU in MIG mode is offered as a whole one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpustate import registry
from gpustate.core.inventory import Inventory, InventoryNode, VarsLayer
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome
from gpustate.core.policy import Policy, build, parameters, resolve
from gpustate.core.state import AnyState
from gpustate.core.where import NOWHERE
from gpustate.documents import Json, JsonView
from gpustate.engine.gate import NodeCheck
from gpustate.errors import ClusterError, GpustateError, PolicyError, RefusedError
from gpustate.formats import deviceplugin
from gpustate.formats.node_programs import AGENTS
from gpustate.formats.pci_gpus import PciGpu
from gpustate.manifests import ClusterSettings
from gpustate.manifests.cluster_part import settings_of
from gpustate.plan.make import Observations, applicable
from gpustate.rollout.access import Accesses
from gpustate.schedulers.mig_state import (
    CONFIG,
    FAILED,
    STATE,
    SUCCESS,
    is_ours,
    is_stale,
    labels_of,
    manager_of,
)

if TYPE_CHECKING:
    from gpustate.schedulers.kubernetes import Kubernetes


PLUGIN = "nvidia.com/device-plugin.config"
_STATES = {CONFIG: "mig", PLUGIN: "device-plugin-config"}
_DONE = (Outcome.UNCHANGED, Outcome.CHANGED)
_AS_WHOLE = (
    "the device plugin's MIG strategy is none: it offers GPUs in MIG mode as whole GPUs, and pods that get one do not "
    "start"
)
_WHOLE = (
    f"{_AS_WHOLE}; set mig.strategy to single or mixed in the policy (mig_strategy of its cluster objects), and apply it "
    "with --cluster-objects"
)
_MAYBE_WHOLE = (
    "pods get its devices only if the device plugin's MIG strategy is single or mixed; with its default, none, it offers "
    "GPUs in MIG mode as whole GPUs, and pods that get one do not start; set MIG_STRATEGY in its DaemonSet (the Helm "
    "chart's migStrategy)"
)
#: The node's own part is not over: the next run tells.
_OPEN = (NodeStatus.LOCKED, NodeStatus.INTERRUPTED, NodeStatus.UNREACHABLE)


@dataclass(slots=True)
class MigNode:
    """A Node whose MIG layout its label selects, or selected.

    Args:
        cluster: of the Node.
        name: of the Node.
        config: value of the label; empty: it is absent, and an earlier run left its state or an open change.
        state: value of the state's label.
        open: a change was begun, by this run or by one that did not end it.
        refused: why the layout cannot be applied; empty: it can.
    """

    cluster: Kubernetes
    name: str
    config: str
    state: str = ""
    open: bool = False
    refused: str = ""


@dataclass(slots=True)
class ByLabel:
    """A policy and an inventory with what labels select.

    Args:
        policy, inventory: with a layer for each label.
        mig: Nodes whose MIG layout is selected, by the inventory's names.
        notes: on labels that are not carried out, by the inventory's names.
        wrong: why the device plugin does not start on a node, by the inventory's names.
    """

    policy: Policy
    inventory: Inventory
    mig: dict[str, MigNode] = field(default_factory=dict[str, MigNode])
    notes: dict[str, str] = field(default_factory=dict[str, str])
    wrong: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def checks(self) -> tuple[NodeCheck, ...]:
        """Refuse nodes whose label selects nothing that exists, and layouts that the device plugin cannot offer."""
        return (self._check,)

    def _check(self, states: Sequence[AnyState], observed: Observations) -> RefusedError | None:
        node = self.mig.get(observed.view.name)
        if node is not None and node.refused:
            return RefusedError(node.refused)
        present = {
            state.name: state for state in states if applicable(state, observed.view) is None
        }
        return _not_offered(self.policy, present, observed.view.facts.pci)

    def describe(self, node: NodeResult) -> None:
        """Add the notes of a node to its result."""
        if node.name in self.notes:
            node.notes.append(self.notes[node.name])
        node.notes += _offered_whole(self.policy, self.inventory, node)

    def ended(self, node: NodeResult) -> None:
        """Record on the Node how the change of its MIG layout ended."""
        self.describe(node)
        if node.name in self.wrong and node.status is NodeStatus.OK:
            node.status, node.reason = NodeStatus.REFUSED, self.wrong[node.name]
        mig = self.mig.get(node.name)
        if mig is None or node.status in _OPEN:
            return
        if mig.refused and node.status is NodeStatus.OK:
            node.status, node.reason = NodeStatus.REFUSED, mig.refused
        state = _state_of(mig, node)
        if state is None or (state == mig.state and not mig.open):
            return
        try:
            mig.cluster.mig.end(mig.name, mig.config, state)
        except GpustateError as error:
            node.notes.append(f"the label of the MIG layout's state was not written: {error}")


def _offered_whole(policy: Policy, inventory: Inventory, result: NodeResult) -> Iterator[str]:
    """Warn of MIG devices that the device plugin offers as whole GPUs, or may offer so where its strategy is unknown."""
    row = next((entry for entry in result.states if entry.state == "mig"), None)
    if row is None or row.outcome not in (*_DONE, Outcome.PENDING):
        return
    node = next(entry for entry in inventory.nodes if entry.name == result.name)
    states = {state.name: state for state in resolve(policy, node, registry.names()).states}
    facts: Json = dict(result.facts)
    if policy.cluster is not None:
        warning = _WHOLE if _strategy(settings_of(policy), states) == "none" else ""
    else:
        kubelet = "Kubernetes" in {AGENTS[name] for name in facts.get("agents") or ()}
        foreign = kubelet and row.outcome is not Outcome.UNCHANGED
        warning = _MAYBE_WHOLE if foreign and not _divides(states) else ""
    gpus = [PciGpu(**entry) for entry in facts.get("pci") or ()]
    if warning and any(_layouts(states["mig"], gpus)):
        yield f"MIG layout {parameters(states['mig'])['config']}: {warning}"


def _divides(states: Mapping[str, AnyState]) -> bool:
    """Whether the node's own states set a MIG strategy that offers MIG devices."""
    labels, plugin = (
        parameters(states[name]) if name in states else {}
        for name in ("gpu-labels", _STATES[PLUGIN])
    )
    configs = plugin.get("configs") or {}
    config = configs.get(plugin.get("selected") or plugin.get("default")) or plugin.get("config")
    flags = (config or {}).get("flags") or {}
    return bool({labels.get("mig_strategy"), flags.get("migStrategy")} & {"single", "mixed"})


def _not_offered(
    policy: Policy, states: Mapping[str, AnyState], pci: Iterable[PciGpu]
) -> RefusedError | None:
    """Why the device plugin does not start with the MIG layout of a node; ``None``: it does."""
    if policy.cluster is None or "mig" not in states:
        return None
    strategy = _strategy(settings_of(policy), states)
    if strategy not in ("single", "mixed"):
        return None
    problem, fix = misfit(_layouts(states["mig"], pci), strategy)
    if not problem:
        return None
    return RefusedError(f"MIG layout {parameters(states['mig'])['config']}: {problem}", fix=fix)


def misfit(layouts: Iterable[tuple[str, ...]], strategy: str) -> tuple[str, str]:
    """Why pods can use no GPU of a MIG layout with a strategy of the device plugin, and what fits; empty: they can.

    Args:
        layouts: the MIG profiles of each GPU; empty for one without MIG mode, ``no device`` for one that is not divided.
        strategy: none, single or mixed.
    """
    profiles = dict.fromkeys(profile for layout in layouts for profile in layout or ("no MIG",))
    if strategy == "none":
        return (_AS_WHOLE, "") if profiles.keys() - {"no MIG"} else ("", "")
    if "no device" in profiles:
        return (
            f"GPUs in MIG mode get no device, and with the MIG strategy {strategy} the device plugin does not start then",
            "select a layout with devices, such as all-1g.10gb, or set mig.strategy to none in the policy",
        )
    if strategy == "single" and len(profiles) > 1:
        return (
            "with the MIG strategy single the device plugin needs one profile on all GPUs of a node, and the layout has "
            f"{', '.join(profiles)}",
            "set mig.strategy to mixed in the policy (mig_strategy of its cluster objects), or select another layout",
        )
    return "", ""


def _strategy(settings: ClusterSettings, states: Mapping[str, AnyState]) -> str:
    """The MIG strategy of a node's device plugin; empty: unknown, or there is no device plugin."""
    plugin, config, state = settings.device_plugin, settings.config, states.get(_STATES[PLUGIN])
    selected = parameters(state).get("selected", "") if state is not None else ""
    if not plugin.enabled or any("mig-strategy" in arg for arg in plugin.args):
        return ""
    strategy = plugin.env.get("MIG_STRATEGY") or settings.mig_strategy
    if strategy or config is None:
        return strategy or "none"
    if config.data is None:
        return ""
    text = config.data.get(selected or config.default, "")
    try:
        return deviceplugin.read(text, config.name).mig_strategy or "none"
    except PolicyError:
        return ""


def _layouts(mig: AnyState, pci: Iterable[PciGpu]) -> list[tuple[str, ...]]:
    """The MIG profiles of each of a node's GPUs; empty for one without MIG mode."""
    from gpustate.mig import builtin  # only for policies with MIG layouts

    if mig.absent:
        return []
    values = parameters(mig)
    path = values.get("file")
    text = values["contents"][path] if path else None
    config = builtin.file_of(text, path or "").config(values["config"])
    layouts: list[tuple[str, ...]] = []
    for index, gpu in enumerate(gpu for gpu in pci if gpu.is_gpu):
        entry = config.entry_for(index, gpu.device_id)
        if entry is None and gpu.mig_capable:
            continue  # it stays as it is
        divided = entry is not None and entry.enabled and gpu.mig_capable
        layouts.append(tuple(entry.devices) or ("no device",) if entry and divided else ())
    return layouts


def _state_of(mig: MigNode, node: NodeResult) -> str | None:
    """Value of the state's label; ``None``: it stays as it is."""
    if not mig.config:
        return ""
    if mig.refused:
        return FAILED
    outcome = next((row.outcome for row in node.states if row.state == "mig"), None)
    if outcome in (None, Outcome.NOT_APPLICABLE):
        return FAILED if node.status is NodeStatus.FAILED and outcome is None else None
    return SUCCESS if outcome in _DONE else FAILED


def by_label(policy: Policy, inventory: Inventory, access: Accesses | None) -> ByLabel:
    """Read the labels of the Nodes of an inventory, if the policy leaves something to them.

    Args:
        policy: for all nodes.
        inventory: the nodes.
        access: to their clusters; ``None``: none is read.

    Raises:
        ClusterError: a cluster cannot be read.
        PolicyError: the policy's file of MIG layouts is invalid.
    """
    names = {state.name for state in policy.states}
    template = settings_of(policy).mig
    decided = [label for label, state in _STATES.items() if state in names]
    if template is not None and "mig" not in names:
        decided.append(CONFIG)
    if access is None or not decided or not access.has_clusters:
        return ByLabel(policy, inventory)
    nodes = _nodes(access, decided, certain=bool(names & set(_STATES.values())))
    mig = {name: node for name, node in nodes.items() if _is_about_mig(node[1])}
    if mig and "mig" not in names and template is not None:
        policy = policy.with_states(*policy.states, _state(template))
    elif "mig" not in {state.name for state in policy.states}:
        mig = {}
    return _Layers(policy, inventory, nodes, mig).made()


def of_every_label(policy: Policy) -> Policy:
    """A policy with the state that labels of Nodes add, for all nodes: its removal does not depend on what they say now."""
    template = settings_of(policy).mig
    if template is None or "mig" in {state.name for state in policy.states}:
        return policy
    return policy.with_states(*policy.states, build(registry.get("mig"), template))


def _nodes(
    access: Accesses, labels: Iterable[str], *, certain: bool
) -> dict[str, tuple[Kubernetes, Json]]:
    """The Nodes of machines, by the inventory's names.

    Raises:
        ClusterError: a cluster cannot be read, and a state of the policy depends on it.
    """
    try:
        return access.nodes()
    except ClusterError as error:
        if not certain:
            return {}
        raise ClusterError(
            f"the labels {' and '.join(labels)} of the Nodes cannot be read: {error}",
            fix=error.fix or "--ignore-scheduler applies the policy without its Nodes' labels",
        ) from None


def _is_about_mig(node: Json) -> bool:
    return bool(labels_of(node).get(CONFIG)) or is_ours(node) or is_stale(node)


def _state(template: JsonView) -> AnyState:
    """The state ``mig`` for nowhere; layers of labelled nodes say more."""
    return build(registry.get("mig"), {**template, "only": NOWHERE})


@dataclass(slots=True)
class _Layers:
    """Adds layers to the nodes of an inventory; nodes with equal labels share them."""

    policy: Policy
    inventory: Inventory
    found: Mapping[str, tuple[Kubernetes, Json]]
    mig: Mapping[str, tuple[Kubernetes, Json]]
    _shared: dict[tuple[str, ...], Json] = field(default_factory=dict[tuple[str, ...], Json])

    def made(self) -> ByLabel:
        """The policy and the inventory with them."""
        result = ByLabel(self.policy, self.inventory)
        nodes: list[InventoryNode] = []
        for node in self.inventory.nodes:
            if node.name in self.mig:
                node = self._with_layout(node, result)
            if node.name in self.found:
                node = self._with_plugin(node, result)
            nodes.append(node)
        result.inventory = replace(self.inventory, nodes=tuple(nodes))
        return result

    def _with_layout(self, node: InventoryNode, result: ByLabel) -> InventoryNode:
        cluster, item = self.mig[node.name]
        name = item["metadata"]["name"]
        config, status = labels_of(item).get(CONFIG, ""), labels_of(item).get(STATE, "")
        if not config:
            result.mig[node.name] = MigNode(cluster, name, "", status, is_ours(item))
            if status:
                result.notes[node.name] = (
                    f"label {CONFIG} of Node {name} is absent: apply removes its {STATE}={status}"
                )
            return node
        manager = manager_of(item, cluster.nodes.daemon_sets())
        if manager:
            result.notes[node.name] = (
                f"{CONFIG}={config} of Node {name} is carried out by NVIDIA's MIG manager (DaemonSet {manager}); "
                "gpustate leaves the MIG layout alone"
            )
            return self._layered(node, "mig", {"only": NOWHERE}, CONFIG, name)
        state = next(item_state for item_state in self.policy.states if item_state.name == "mig")
        why = _invalid(state, config)
        result.mig[node.name] = MigNode(cluster, name, config, status, is_ours(item), why)
        if why:
            result.notes[node.name] = why
            return self._layered(node, "mig", {"only": NOWHERE}, CONFIG, name)
        values: Json = {"config": config}
        if parameters(state).get("in_use", "refuse") == "refuse":
            values["in_use"] = "drain"
        if state.only is not None and state.only.text == NOWHERE:
            values["only"] = None
        return self._layered(node, "mig", values, CONFIG, name)

    def _with_plugin(self, node: InventoryNode, result: ByLabel) -> InventoryNode:
        _, item = self.found[node.name]
        name = item["metadata"]["name"]
        config = labels_of(item).get(PLUGIN, "")
        state = next(
            (candidate for candidate in self.policy.states if candidate.name == _STATES[PLUGIN]),
            None,
        )
        if state is None or not config:
            return node
        configs = parameters(state).get("configs") or {}
        if config not in configs:
            names = ", ".join(sorted(configs)) or "no named configurations"
            label = f"{PLUGIN}={config} of Node {name}"
            result.notes.setdefault(node.name, f"{label} is not used: the policy has {names}")
            plugin = settings_of(self.policy).config
            if plugin is not None and plugin.data is not None:
                result.wrong[node.name] = (
                    f"label {label} names no configuration, and the device plugin does not start there; "
                    f"set one that the policy has: {names}"
                )
            return node
        return self._layered(node, state.name, {"selected": config}, PLUGIN, name)

    def _layered(
        self, node: InventoryNode, state: str, values: Json, label: str, name: str
    ) -> InventoryNode:
        key = (state, *(f"{key_name}={value}" for key_name, value in values.items()))
        shared = self._shared.setdefault(key, {state: values})
        layers = tuple(node.layers)
        if not layers and node.vars.get("gpustate") is not None:
            origin = node.origins.get("gpustate", "inventory")
            layers = (VarsLayer("node", node.name, node.vars["gpustate"], origin),)
        added = VarsLayer("node", node.name, shared, f"label {label} of Node {name}")
        return replace(node, layers=(*layers, added))


def _invalid(state: AnyState, config: str) -> str:
    """Why a layout of this name cannot be applied; empty: it can."""
    try:
        build(type(state), {**parameters(state), "config": config})
    except PolicyError as error:
        return f"label {CONFIG}={config}: {error}"
    return ""
