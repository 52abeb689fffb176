"""A run and its outcome as plain data, for the event stream, the webhook, the audit log and reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.engine.maintenance import out_of_service
from gpustate.formats.masking import mask, mask_data
from gpustate.formats.words import json_text
from gpustate.plan.ranges import fold

_HASHED_MIB = 64


@dataclass(frozen=True, slots=True)
class Run:
    """A run: who runs what, where and why.

    Args:
        run: its id.
        verb, source: the command and its policy or plan.
        inventory, limit: the nodes.
        person: user@host of the controller.
        reason: the ticket or reason.
        nodes: number of nodes.
        waves: number of nodes of each wave; empty: all at once.
        plan: id of the saved plan, if there is one.
        digest: SHA-256 of the file ``source``; empty if it is not a file.
        command: its words, without the limit.
    """

    run: str
    verb: str
    source: str
    inventory: str = ""
    limit: str = ""
    person: str = ""
    reason: str = ""
    nodes: int = 0
    waves: tuple[int, ...] = ()
    plan: str = ""
    digest: str = ""
    command: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As documents have it, secrets masked; empty values are left out."""
        values = {
            "verb": self.verb,
            "source": self.source,
            "digest": self.digest,
            "plan": self.plan,
            "inventory": self.inventory,
            "limit": self.limit,
            "person": self.person,
            "reason": self.reason,
            "nodes": self.nodes,
            "waves": list(self.waves),
            "command": list(self.command),
        }
        present = {key: value for key, value in values.items() if value or key == "nodes"}
        data: dict[str, Any] = mask_data(present)
        return data


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Args:
        exit_code: of the command.
        summary: the line for grep; empty if the run failed as a whole.
        nodes: results of the nodes.
        skipped: nodes that were not started.
        interrupted: it was stopped early by its user.
        stopped: why it stopped early; empty: it did not.
        error: why the run failed as a whole.
    """

    exit_code: int
    summary: str = ""
    nodes: Sequence[NodeResult] = ()
    skipped: Sequence[str] = ()
    interrupted: bool = False
    stopped: str = ""
    error: str = ""

    def data(self) -> dict[str, Any]:
        """As documents have it, secrets masked; node names are folded into ranges."""
        by_status: dict[str, list[str]] = {}
        for node in self.nodes:
            by_status.setdefault(node.status.value, []).append(node.name)
        failed = [
            {"node": node.name, "status": node.status.value, "reason": reason_of(node)}
            for node in self.nodes
            if node.status is not NodeStatus.OK
        ]
        values: dict[str, Any] = {
            "exit_code": self.exit_code,
            "summary": self.summary,
            "interrupted": self.interrupted,
            "counts": {status: len(names) for status, names in sorted(by_status.items())},
            "nodes": {status: fold(names) for status, names in sorted(by_status.items())},
            "changed": fold(node.name for node in self.nodes if node.changed),
            "failed": failed,
            "held": held(self.nodes),
            "skipped": fold(self.skipped),
        }
        reasons = {"stopped": self.stopped, "error": self.error}
        values |= {key: reason for key, reason in reasons.items() if reason}
        data: dict[str, Any] = mask_data(values)
        return data


def one_line(data: Mapping[str, Any]) -> bytes:
    """A document as one line of JSON, secrets masked."""
    text = json_text(mask(json.dumps(mask_data(data), ensure_ascii=False)))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def reason_of(node: NodeResult) -> str:
    """Why a node did not succeed: its own reason, else that of its first failed state."""
    reasons = (node.reason, *(state.reason for state in node.states))
    return next((reason for reason in reasons if reason), "")


def held(nodes: Sequence[NodeResult]) -> list[dict[str, str]]:
    """Nodes that stay out of service after the run, each with the note that says so, or its reason."""
    return [{"node": node.name, "why": why} for node in nodes for why in out_of_service(node)]


def digest_of(source: str) -> str:
    """SHA-256 of a file; empty if it cannot be read or is too large."""
    try:
        path = Path(source)
        if not path.is_file() or path.stat().st_size > _HASHED_MIB << 20:
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def run_of(
    run: str,
    verb: str,
    source: str,
    context: Mapping[str, Any],
    *,
    reason: str = "",
    nodes: int = 0,
    waves: Sequence[int] = (),
    plan: str = "",
) -> Run:
    """A run from the context of its document, see :mod:`gpustate.cli.context`."""
    return Run(
        run,
        verb,
        source,
        inventory=str(context.get("inventory") or ""),
        limit=str(context.get("limit") or ""),
        person=str(context.get("person") or ""),
        reason=" ".join(reason.split()),
        nodes=nodes,
        waves=tuple(waves),
        plan=plan,
        digest=digest_of(source),
        command=tuple(map(str, context.get("retry") or ())),
    )
