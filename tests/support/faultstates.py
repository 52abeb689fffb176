"""A policy whose application has something of everything that a broken connection could spoil.

A file of more than one SSH packet, a step that must not be done twice (it appends to a counter),
one that takes a while, so that there is something to follow, and a second stage.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpustate import Node, Plan, Policy, State, Step, diff, ops

#: Does not get smaller by compression: with a payload of several packets, a part of it can be lost.
LARGE = b64encode(b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(2200))).decode() + "\n"
SLOW_S = 0.3


@dataclass(frozen=True, slots=True)
class Seen:
    """A file's text."""

    text: str | None


class _File(State[Seen]):
    """A file of the node's folder."""

    folder: str = "/nowhere"
    file: ClassVar[str]
    text: ClassVar[str]

    def probe(self, node: Node) -> Seen:
        return Seen(node.read_text(f"{self.folder}/{self.file}"))

    def desired(self, observed: Seen) -> Seen:
        return Seen(self.text)

    def plan(self, observed: Seen) -> Plan:
        return diff(
            observed, self.desired(observed), costs={}, paths={"text": f"{self.folder}/{self.file}"}
        )

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        yield ops.PutText(f"{self.folder}/{self.file}", self.text)


class Large(_File):
    """A file of several packets."""

    name: ClassVar[str] = "fault-large"
    file: ClassVar[str] = "large"
    text: ClassVar[str] = LARGE


class Counted(_File):
    """A step that is done once: it leaves a line each time."""

    name: ClassVar[str] = "fault-counted"
    file: ClassVar[str] = "counted"
    text: ClassVar[str] = "done\n"

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        yield ops.Run(_once(f"{self.folder}/{self.file}", SLOW_S), "count")


class Last(_File):
    """A second stage."""

    name: ClassVar[str] = "fault-last"
    file: ClassVar[str] = "last"
    text: ClassVar[str] = "done\n"
    needs: ClassVar[tuple[str, ...]] = ("fault-counted",)
    known_after: ClassVar[tuple[str, ...]] = ("fault-counted",)

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        yield ops.Run(_once(f"{self.folder}/{self.file}", 0), "count again")


def _once(path: str, seconds: float) -> str:
    """What has an effect each time it is done: one more line in the count beside the file."""
    return (
        f'echo "$R" >>{path}.count; sleep {seconds}; echo done >{path}.part; mv {path}.part {path}'
    )


policy = Policy(Large(), Counted(), Last())
