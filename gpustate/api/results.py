"""Results of the functions of :mod:`gpustate.api`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.change import Disruption
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy
from gpustate.errors import UsageError
from gpustate.files import write_private
from gpustate.formats.json_pages import dumps
from gpustate.formats.masking import mask, mask_data
from gpustate.formats.words import json_text

ClusterNodes = Mapping[Kubeconfig, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a run.

    Args:
        run: id of the run; ``runs/ID`` on the nodes it changed.
        nodes: one result per node, in the inventory's order, secrets masked.
        exit_code: as of the command line; pending changes are not counted.
        summary: the line for grep: ``nodes=2 ok=2 changed=0 ...``.
        interrupted: ``stop`` ended it early.
        notes: settings of the policy or the inventory that have no effect.
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
        """All nodes succeeded."""
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
        return mask(json_text(dumps(mask_data(self.document))) + "\n")

    def save(self, path: str | Path) -> None:
        """Write the document to a file, readable by its owner only.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            write_private(Path(path), self.to_json().encode())
        except OSError as error:
            raise UsageError(
                f"cannot write the file ({error.strerror})", place=str(path)
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult(Result):
    """Pending changes; ``document`` is a ``gpustate.plan/1``, which ``gpustate apply`` accepts.

    Args:
        policy: the planned policy, including secrets.
        pending: some node would change.
        cluster_nodes: all Nodes of the clusters whose Nodes were listed for it.
    """

    policy: Policy = field(repr=False)
    pending: bool
    cluster_nodes: ClusterNodes = field(default_factory=dict[Kubeconfig, Any], repr=False)

    @property
    def moving(self) -> frozenset[str]:
        """Names of the nodes that a program of an earlier run was changing while they were planned."""
        return frozenset(node.name for node in self.nodes if node.moving)

    @property
    def disruption(self) -> Disruption:
        """Worst disruption of the plan on any node."""
        return max(
            (state.worst for node in self.nodes for state in node.states), default=Disruption.NONE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftResult(Result):
    """Drift of nodes from the policy.

    Args:
        cluster_nodes: all Nodes of the clusters whose Nodes were listed for it.
    """

    cluster_nodes: ClusterNodes = field(default_factory=dict[Kubeconfig, Any], repr=False)

    @property
    def drifted(self) -> tuple[str, ...]:
        """Names of the nodes that differ from the policy."""
        return tuple(node.name for node in self.nodes if node.drifted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult(Result):
    """Result of an apply; ``document`` is a ``gpustate.result/1``.

    Args:
        skipped: names of nodes that were not started because the run stopped early.
        stopped: why it stopped early; empty: it did not.
    """

    skipped: tuple[str, ...]
    stopped: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the nodes that were changed."""
        return tuple(node.name for node in self.nodes if node.changed)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the nodes that did not succeed."""
        return tuple(node.name for node in self.nodes if node.status is not NodeStatus.OK)
