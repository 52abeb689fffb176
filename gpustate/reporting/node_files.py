"""What a support bundle has of one node: logs, versions, configuration, in one query."""

from __future__ import annotations

import base64
import re
import shlex
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.explain.script import UNITS

#: Seconds for everything of a node.
LIMIT_S = 90
#: Bytes of one item; the end counts.
ITEM_BYTES = 256 << 10
#: Items of one node.
_MOST = 200
_NAME = re.compile(r"[A-Za-z0-9._/@-]{1,200}")


@dataclass(frozen=True, slots=True)
class Item:
    """One file of a bundle.

    Args:
        name: path below the node's folder.
        text: content.
        status: exit status of the command behind it; 0: a good one.
        cut: the beginning is missing.
    """

    name: str
    text: str
    status: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Collected:
    """Answer of a node.

    Args:
        items: in the order of collection.
        absent: names of what the node does not have.
        complete: the time was enough for all of them.
    """

    items: tuple[Item, ...] = ()
    absent: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class CollectQuery(Query[Collected]):
    """Query all items.

    Args:
        run: id of the run; empty: the newest.
        lines: last lines of each log.
    """

    run: str
    lines: int

    def script(self) -> str:
        text = shell.load(
            "collect",
            "gpustate.reporting",
            run=self.run,
            units=" ".join(UNITS),
            lines=str(self.lines),
            limit=str(ITEM_BYTES),
        )
        return f"export G; timeout -k 1 {LIMIT_S} sh -c {shlex.quote(text)} || :"

    def parse(self, answer: Answer) -> Collected:
        items: dict[str, Item] = {}
        absent: list[str] = []
        complete = False
        for line in answer.text.splitlines():
            kind, _, fields = line.partition(" ")
            name, _, data = fields.partition(" ")
            complete = complete or line == "complete"
            if kind not in ("item", "absent") or not _safe(name):
                continue
            if kind == "absent":
                absent.append(name)
            elif len(items) < _MOST:
                items[name] = _item(name, data)
        return Collected(tuple(items.values()), tuple(absent), complete)

    def placeholder(self) -> Collected:
        return Collected()


def _safe(name: str) -> bool:
    """A path that stays inside its folder, whatever the node says."""
    parts = name.split("/")
    return bool(_NAME.fullmatch(name)) and not {"", ".", ".."} & set(parts)


def _item(name: str, data: str) -> Item:
    try:
        raw = base64.b64decode(data, validate=True)
    except ValueError:
        return Item(name, "", 1)
    content, _, status = raw.rpartition(b"\n")
    number = int(status) if status.isdigit() else 1
    return Item(name, content.decode("utf-8", "replace"), number, len(raw) >= ITEM_BYTES)
