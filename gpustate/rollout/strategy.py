"""How a rollout goes through its nodes, as the command line and ``gpustate.api`` take it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gpustate.core.change import Disruption
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.rollout import RolloutPolicy
from gpustate.engine import fleet
from gpustate.errors import ClusterError, InventoryError, UsageError
from gpustate.inventory import patterns
from gpustate.rollout import windows
from gpustate.rollout.decide import Place, Rollout
from gpustate.rollout.waves import cut

#: Waves of a change that costs ``drain`` or more, where nothing else is set: one node first, a tenth next.
SERIAL = ("1", "10%", "50%")
#: Nodes of a cluster that may be out of service at a time, where nothing else is set; as the GPU Operator.
MAX_UNAVAILABLE = "25%"
#: Inventory variables: maintenance windows of a node, and its NVLink domain.
WINDOW, DOMAIN = "gpustate_window", "gpustate_nvlink_domain"
#: Label of Nodes of one NVLink domain, by NVIDIA's GPU feature discovery.
CLIQUE = "nvidia.com/gpu.clique"
_UNITS = {"s": 1, "m": 60, "h": 3600}
_MOST_S = 7 * 86400
#: Values of a label, by node.
Labels = Callable[[str], Mapping[str, str]]


def _no_labels(key: str) -> Mapping[str, str]:
    """No cluster is known."""
    return {}


def seconds(text: str, place: str) -> float:
    """A duration as ``90s``, ``30m``, ``2h``.

    Raises:
        UsageError: it is none, or longer than a week.
    """
    match = re.fullmatch(r"(\d{1,7})([smh])", text)
    length = int(match[1]) * _UNITS[match[2]] if match else -1
    if not 0 <= length <= _MOST_S:
        raise UsageError(
            f"{place}: invalid duration {text[:40]!r}", fix="write 90s, 30m or 2h, up to a week"
        )
    return float(length)


@dataclass(frozen=True, slots=True)
class Strategy(RolloutPolicy):
    """How a rollout goes through its nodes; values as in the section ``rollout`` of a policy."""

    def beside(self, policy: RolloutPolicy) -> Strategy:
        """The same with a policy's values where it has defaults."""
        default = RolloutPolicy()
        values = {field.name: getattr(policy, field.name) for field in fields(RolloutPolicy)}
        return replace(
            self,
            **{
                name: value
                for name, value in values.items()
                if getattr(self, name) == getattr(default, name)
            },
        )

    def sizes(self, worst: Disruption) -> tuple[str, ...]:
        """Sizes of the waves of a change that costs so much; empty: there is one."""
        waves = worst >= Disruption.DRAIN or bool(self.soak)
        if self.canary.isdecimal():
            return (self.canary, *(self.serial or (SERIAL[1:] if waves else ("100%",))))
        return self.serial or (SERIAL if waves else ())

    def foreseen(
        self, inventory: Inventory, changing: Mapping[str, Disruption] | None = None
    ) -> Rollout:
        """The rollout as far as it is known without the nodes' clusters; arguments and errors as of :meth:`rollout`."""
        return replace(self, spread="").rollout(inventory, 1, time.time(), changing=changing)

    @property
    def watched(self) -> bool:
        """It takes its time, so it is a rollout of its clusters from the first moment on."""
        return bool(self.canary or self.soak or self.window or self.spread)

    def rollout(
        self,
        inventory: Inventory,
        slots: int,
        now: float,
        labels: Labels = _no_labels,
        held: Collection[str] = (),
        changing: Mapping[str, Disruption] | None = None,
    ) -> Rollout:
        """The rollout of some nodes; those that are held come first, for they are out of service already.

        Nodes that do not change are in the last wave, so that the first one shows what the change does.

        Args:
            inventory: its nodes.
            slots: nodes at work at a time.
            now: seconds since the epoch.
            labels: labels of the nodes' Node objects.
            held: names of the nodes that an earlier run holds.
            changing: what it costs nodes that change; ``None``: that is not known, and no node may change for long.

        Raises:
            UsageError: an option is invalid, or keeps nodes from ever beginning.
            InventoryError: a variable of a node is invalid.
        """
        nodes = sorted(inventory.nodes, key=lambda node: node.name not in held)
        soak_s = seconds(self.soak, "rollout.soak") if self.soak else 0.0
        if self.soak_pods and not soak_s:
            raise UsageError(
                "rollout.soak_pods without a soak time",
                fix="add for example --set rollout.soak=30m",
            )
        canaries = (
            patterns.select(inventory, self.canary, "rollout.canary", among=" of this run").nodes
            if self.canary and not self.canary.isdecimal()
            else ()
        )
        first = frozenset(node.name for node in canaries)
        sizes = self.sizes(max((changing or {}).values(), default=Disruption.NONE))
        shares = fleet.batch_sizes(sizes, len(nodes))
        domains = _domains(nodes, labels) if sizes or first else {}
        active = [node for node in nodes if changing is None or node.name in changing]
        waves = cut(active, shares, first, domains) or [[]]
        waves[-1] += [n.name for n in nodes if changing is not None and n.name not in changing]
        wave_of = {name: number for number, names in enumerate(waves) for name in names}
        racks = _racks(nodes, self.spread, labels)
        general = windows.parse(self.window, "rollout.window")
        places = [
            Place(
                node.name,
                wave_of[node.name],
                racks.get(node.name, ""),
                _windows(node, general, now),
                changing is None or node.name in changing,
                domains.get(node.name, ""),
            )
            for node in nodes
        ]
        return Rollout(tuple(places), max(1, slots), self.max_failures, soak_s)


def _windows(
    node: InventoryNode, general: tuple[windows.Window, ...], now: float
) -> tuple[tuple[windows.Window, ...], ...]:
    """The windows that a node has to be in, all of them.

    Raises:
        UsageError: there is no minute of the week in which it is.
    """
    text = node.text(WINDOW, "a maintenance window", "write for example 'Sat 22:00-05:00 UTC'")
    node_windows = windows.parse(text, node.origins.get(WINDOW))
    if not windows.both(general, node_windows, now):
        raise UsageError(
            f"{node.name}: its {WINDOW} {text!r} is never open inside of rollout.window",
            place=node.origins.get(WINDOW),
            fix="change one of them, or exclude the node",
        )
    return tuple(some for some in (general, node_windows) if some)


def _domains(nodes: Sequence[InventoryNode], labels: Labels) -> dict[str, str]:
    """The NVLink domain of nodes that are in one, by the inventory, else by their cluster."""
    domains = {
        node.name: node.text(DOMAIN, "a name", "name the NVLink domain of the node")
        for node in nodes
    }
    try:
        cliques = labels(CLIQUE)
    except ClusterError:
        cliques = {}  # a node that has to be drained reports what is wrong with its cluster
    return {name: domain or cliques.get(name, "") for name, domain in domains.items()}


def _racks(nodes: Sequence[InventoryNode], spread: str, labels: Labels) -> dict[str, str]:
    """The rack of nodes that are in one.

    Raises:
        UsageError: no node has one.
    """
    if not spread:
        return {}
    values: Mapping[str, object] = {
        node.name: node.vars[spread] for node in nodes if spread in node.vars
    }
    if not values and "/" in spread:
        values = labels(spread)
    for node in nodes:
        if node.name in values and not isinstance(values[node.name], str | int):
            raise InventoryError(
                f"{spread} of {node.name} is not a name", place=node.origins.get(spread)
            )
    racks = {name: f"{spread}={value}" for name, value in values.items()}
    if not any(node.name in racks for node in nodes):
        raise UsageError(
            f"rollout.spread {spread}: no node has this variable or label",
            fix="set it in the inventory, for example in group_vars of each rack",
        )
    return racks


#: One wave, without further conditions.
STRATEGY = Strategy()
