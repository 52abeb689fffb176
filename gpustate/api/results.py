"""What the functions of :mod:`gpustate.api` return."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpustate.core.change import Disruption
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy
from gpustate.errors import UsageError
from gpustate.files import write_private
from gpustate.formats.json_pages import dumps
from gpustate.formats.masking import masked, masked_data
from gpustate.formats.words import json_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What every run has.

    Args:
        run: id of the run; ``runs/ID`` on the nodes it changed.
        nodes: one result a node, in the inventory's order, secrets masked.
        exit_code: what the command line would end with; pending changes are not counted.
        summary: the line for grep: ``nodes=2 ok=2 changed=0 ...``.
        interrupted: ``stop`` ended it early.
        notes: what has no effect and may be a mistake, in the policy or the inventory.
        document: the JSON document of the run, described by its schema.
    """

    run: str
    nodes: tuple[NodeResult, ...]
    exit_code: int
    summary: str
    interrupted: bool
    notes: tuple[str, ...]
    document: dict[str, Any] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Every node ended well."""
        return self.exit_code == 0

    def node(self, name: str) -> NodeResult:
        """The result of one node.

        Raises:
            KeyError: the run had no such node.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def to_json(self) -> str:
        """The document as the command line prints it, secrets masked."""
        return masked(json_text(dumps(masked_data(self.document))) + "\n")

    def save(self, path: str | Path) -> None:
        """Write the document to a file, readable by its owner only.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            write_private(Path(path), self.to_json().encode())
        except OSError as error:
            raise UsageError(f"cannot be written ({error.strerror})", place=str(path)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult(Result):
    """What would change; ``document`` is a ``gpustate.plan/1``, which ``gpustate apply`` takes too.

    Args:
        policy: what was planned, secrets included.
        pending: some node would change.
    """

    policy: Policy = field(repr=False)
    pending: bool

    @property
    def disruption(self) -> Disruption:
        """The worst that applying the plan may cost any node."""
        return max(
            (state.worst for node in self.nodes for state in node.states),
            default=Disruption.NONE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftResult(Result):
    """Drift of nodes from the policy."""

    @property
    def drifted(self) -> tuple[str, ...]:
        """Names of the nodes that differ from the policy."""
        return tuple(node.name for node in self.nodes if node.drifted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult(Result):
    """What an apply did; ``document`` is a ``gpustate.result/1``.

    Args:
        skipped: names of nodes that were never started, because a batch before failed.
    """

    skipped: tuple[str, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the nodes that are different from before."""
        return tuple(node.name for node in self.nodes if node.changed)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the nodes that did not end well."""
        return tuple(node.name for node in self.nodes if node.status is not NodeStatus.OK)
