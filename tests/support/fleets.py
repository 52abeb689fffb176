"""Fleets in memory: many nodes with a few distinct plans, walked by the engine itself.

The states are the real ones of a Kubernetes node. What they observe on a node is what they assume before
any answer is there, with some of them settled already; only the way to the node is left out, and its
probe, whose cost is counted apart.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import yaml

from gpustate import presets
from gpustate.core.facts import FactsQuery, NodeFacts, NodeView
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.node import Node
from gpustate.core.policy import Policy
from gpustate.core.queries import Answer, Query
from gpustate.core.state import AnyState
from gpustate.engine import fleet, walk
from gpustate.formats.pci_gpus import PciGpu
from gpustate.plan.make import Observations, applicable

T = TypeVar("T")

KERNELS = ("6.1.0-28-amd64", "6.1.0-31-amd64", "6.12.57+deb13-amd64")
MODELS = ("2330", "20b0", "2901", "26b9")
#: How much of the stack is there already, state by state in their order.
SETTLED = (0, 2, 3, 5, 7)

_STEPS = (
    '[{"state": "driver", "label": "install the driver\'s 4 packages"}, '
    '{"state": "containerd", "label": "restart containerd.service"}, '
    '{"state": "validator", "label": "validate the node"}]'
)


class StandIn(Node):
    """A node that answers as probes assume before there is an answer."""

    def __init__(self, name: str, facts: NodeFacts) -> None:
        self.name, self.vars, self.known = name, {}, facts

    def query(self, query: Query[T]) -> T:
        if isinstance(query, FactsQuery):
            return self.known  # type: ignore[return-value]
        return query.placeholder()


def _priority(kind: int) -> dict[str, Any]:
    return {"gpustate": {"driver-repository": {"pin_priority": 600 + kind}}}


def journal(number: int) -> bytes:
    """What a node says of its last run: a driver that took minutes, differently on each."""
    at = 1_795_000_000 + number
    ends = (at + 150 + number % 90, at + 260 + number % 90, at + 290 + number % 90)
    lines = [f"boot {at - 9000}", f"run 20261001-070000-{number:06x}-1", f"steps {_STEPS}"]
    lines.append(f'{{"e":"start","t":{at}}}')
    for step, end in enumerate(ends, 1):
        lines += [
            f'{{"e":"intent","i":{step},"t":{at}}}',
            f'{{"e":"result","i":{step},"rc":0,"t":{end}',
        ]
        at = end
    return "\n".join([*lines, f'{{"e":"end","stopped":0,"t":{at}}}']).encode()


@dataclass(slots=True)
class Fleet:
    """Some nodes, and a policy for them.

    Args:
        nodes: how many.
        plans: how many distinct plans they have, at most 20.
        journals: every how many-th node has a journal; 0: none.
        probe_s: CPU seconds that went into the looks.
    """

    nodes: int
    plans: int
    journals: int = 2
    policy: Policy = field(default_factory=presets.kubernetes_node)
    probe_s: float = 0.0
    observations_by_node: dict[str, Observations] = field(default_factory=dict[str, Observations])

    def __post_init__(self) -> None:
        kinds = [self._look(kind) for kind in range(self.plans)]
        for number in range(self.nodes):
            # Every node's answers are objects of its own, as they are when they came from afar.
            observations = copy.deepcopy(kinds[number * self.plans // self.nodes])
            name = f"gpu{number + 1:04}"
            observations.view = replace(
                observations.view, name=name, facts=replace(observations.view.facts, boot_id=name)
            )
            self.observations_by_node[name] = observations

    def _look(self, kind: int) -> Observations:
        gpu = MODELS[kind % len(MODELS)]
        pci = tuple(PciGpu(f"0000:{bus:02x}:00.0", gpu, "030200", None) for bus in range(8))
        kernel = KERNELS[kind % len(KERNELS)]
        facts = replace(FactsQuery().placeholder(), kernel=kernel, pci=pci)
        observations = Observations(NodeView("node", (), {}, facts))
        node = StandIn("node", facts)
        for number, state in enumerate(fleet.ordered(self.policy.states)):
            observed = state.probe(node)
            done = number < SETTLED[kind // len(MODELS) % len(SETTLED)]
            observations.observed[state.name] = state.desired(observed) if done else observed
        return observations

    def write_inventory(self, folder: Path) -> Path:
        """The nodes as an inventory: racks of nodes with the same plan, each with a parameter of its own."""
        racks: dict[str, Any] = {}
        for number, name in enumerate(self.observations_by_node):
            kind = number * self.plans // self.nodes
            rack = racks.setdefault(f"rack{kind + 1}", {"hosts": {}, "vars": _priority(kind)})
            rack["hosts"][name] = {}
        path = folder / "inventory.yml"
        path.write_text(yaml.safe_dump({"all": {"children": racks}}), encoding="utf-8")
        return path

    def request(self, loaded: Inventory, **more: Any) -> fleet.Request:
        """A run that plans them all."""
        return fleet.Request(self.policy, loaded, **more)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Within, the engine walks these nodes."""
        with (
            patch.object(fleet, "Session", Session),
            patch.object(walk, "probe_states", self._look_at),
        ):
            yield

    def _look_at(
        self,
        node: InventoryNode,
        states: Sequence[AnyState],
        answerer: Any,
        extra: Sequence[Query[Any]],
        shared: dict[Any, Any],
    ) -> tuple[Observations, NodeFacts, dict[Query[Any], Answer]]:
        began = time.thread_time()
        observations = self.observations_by_node[node.name]
        for state in states:
            if applicable(state, observations.view) is not None:
                observations.observed.pop(state.name, None)
        number = int(node.name.removeprefix("gpu"))
        told = journal(number) if self.journals and number % self.journals == 0 else b""
        known: dict[Query[Any], Answer] = {
            query: Answer(0, told if type(query).__name__ == "TimingsQuery" else b"")
            for query in extra
        }
        self.probe_s += time.thread_time() - began
        return observations, observations.view.facts, known


class Session:
    """A connection that is always there."""

    def __init__(self, node: InventoryNode) -> None:
        self.node = node
        self.execs = self.connections = 1

    def connect(self) -> None:
        """Already."""

    def close(self) -> None:
        """Never."""

    def answer(self, queries: Sequence[Query[Any]], before: str = "") -> list[Answer]:
        raise AssertionError("the looks are given")

    def holds(self) -> bool:
        return True
