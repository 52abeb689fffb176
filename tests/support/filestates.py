"""Small states over plain files, for tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gpustate import Disruption, Node, Plan, Policy, State, Step, diff, ops
from gpustate.core.inventory import Connection, Inventory, InventoryNode
from gpustate.engine import fleet


@dataclass(frozen=True, slots=True)
class Seen:
    """A file's text."""

    text: str | None


class FileState(State[Seen]):
    """A file holds a text."""

    path: str = "/nowhere"
    text: str = "x"
    cost: str = "none"
    script: str = ""

    def probe(self, node: Node) -> Seen:
        return Seen(node.read_text(self.path))

    def desired(self, observed: Seen) -> Seen:
        return Seen(None if self.absent else self.text)

    def plan(self, observed: Seen) -> Plan:
        return diff(
            observed,
            self.desired(observed),
            costs={"text": Disruption.parse(self.cost)},
            paths={"text": self.path},
        )

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        if self.script:
            yield ops.Run(self.script, "the script")
        elif self.absent:
            yield ops.RestoreOriginal(self.path)
        else:
            yield ops.PutText(self.path, self.text)


class First(FileState):
    """The first file."""

    name: ClassVar[str] = "first"


class Second(FileState):
    """A file that can only be looked at behind the first."""

    name: ClassVar[str] = "second"
    needs: ClassVar[tuple[str, ...]] = ("first",)
    known_after: ClassVar[tuple[str, ...]] = ("first",)
    worst: ClassVar[Disruption] = Disruption.RESTART


class Third(FileState):
    """A file of its own."""

    name: ClassVar[str] = "third"


class LightFirst(FileState):
    """As ``First``, with a name that a project's states may have."""

    name: ClassVar[str] = "light-first"


class LightSecond(FileState):
    """As ``Second``."""

    name: ClassVar[str] = "light-second"
    needs: ClassVar[tuple[str, ...]] = ("light-first",)
    known_after: ClassVar[tuple[str, ...]] = ("light-first",)
    worst: ClassVar[Disruption] = Disruption.RESTART


Runner = Callable[..., fleet.FleetResult]


def here(state_folder: Path) -> InventoryNode:
    """This machine, with gpustate's own things in a folder of the test."""
    return InventoryNode(
        "here",
        vars={"gpustate_state_folder": str(state_folder)},
        connection=Connection(kind="local"),
    )


def request(node: InventoryNode, *states: State[Any], **more: Any) -> fleet.Request:
    """A run over one node."""
    return fleet.Request(Policy(*states), Inventory("test", (node,)), **{"apply": True, **more})


def file_state(
    name: str,
    *,
    needs: tuple[str, ...] = (),
    known_after: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    before: tuple[str, ...] = (),
    worst: Disruption = Disruption.NONE,
) -> type[FileState]:
    """A class of file states with a name and edges of its own."""
    attributes: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f"The file of {name}.",
        "name": name,
        "needs": needs,
        "known_after": known_after,
        "after": after,
        "before": before,
        "worst": worst,
    }
    return type(f"FileState_{name}", (FileState,), attributes)
