"""A policy whose change costs a GPU reset, and has a second stage: what a rollout is needed for.

A driver that was installed twice shows in the count beside its file. It fails while there is a file ``broken``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpustate import Disruption, Node, Plan, Policy, State, Step, diff, ops


@dataclass(frozen=True, slots=True)
class Installed:
    """Text of a file; ``None`` where there is none."""

    version: str | None


class _Version(State[Installed]):
    """A file of the node's folder has a version in it."""

    folder: str = "/nowhere"
    version: str = "2"
    file: ClassVar[str]
    worst: ClassVar[Disruption] = Disruption.RESET

    def probe(self, node: Node) -> Installed:
        text = node.read_text(f"{self.folder}/{self.file}")
        return Installed(None if text is None else text.strip())

    def desired(self, observed: Installed) -> Installed:
        return Installed(self.version)

    def plan(self, observed: Installed) -> Plan:
        return diff(observed, self.desired(observed), costs={"version": Disruption.RESET})

    def apply(self, observed: Installed, plan: Plan) -> Iterator[Step]:
        path = f"{self.folder}/{self.file}"
        yield ops.Run(
            f"[ ! -e {self.folder}/broken ] || exit 3; "
            f'echo "$R" >>{path}.count; echo {self.version} >{path}.part; mv {path}.part {path}',
            f"install {self.file} {self.version}",
        )


class Driver(_Version):
    """The driver."""

    name: ClassVar[str] = "rollout-driver"
    file: ClassVar[str] = "driver"


class Firmware(_Version):
    """What is installed in a second stage, once the driver is there."""

    name: ClassVar[str] = "rollout-firmware"
    file: ClassVar[str] = "firmware"
    needs: ClassVar[tuple[str, ...]] = ("rollout-driver",)
    known_after: ClassVar[tuple[str, ...]] = ("rollout-driver",)

    def apply(self, observed: Installed, plan: Plan) -> Iterator[Step]:
        path = f"{self.folder}/{self.file}"
        yield ops.Run(f'echo "$R" >>{path}.begun', "prepare firmware")
        yield ops.PutText(path, f"{self.version}\n")


policy = Policy(Driver(), Firmware())
