"""The nodes of a result: changed, not finished, unchanged. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.plan.groups import Group
from gpustate.plan.overview import QUIET, overview


@dataclass(frozen=True, slots=True)
class Results:
    """Groups of nodes by how the run ended for them."""

    changed: Sequence[Group]
    failed: Sequence[Group]
    unchanged: Sequence[Group]

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of nodes, as in the line for grep: a node that changed and failed counts twice."""
        failed = [group for group in self.failed if any(map(_has_changed, group.node["states"]))]
        return {
            "Changed": len(self.names([*self.changed, *failed])),
            "Not finished": len(self.names(self.failed)),
            "Unchanged": len(self.names(self.unchanged)),
        }

    @staticmethod
    def names(groups: Sequence[Group]) -> list[str]:
        """Names of the nodes of some groups."""
        return [name for group in groups for name in group.names]


def _has_changed(state: Mapping[str, Any]) -> bool:
    return state["outcome"] in ("changed", "reboot pending")


def sorted_groups(document: Mapping[str, Any]) -> Results:
    """The groups of a ``gpustate.result/1``."""
    groups = overview(document).groups
    failed = [group for group in groups if group.node["status"] != "ok"]
    good = [group for group in groups if group.node["status"] == "ok"]
    changed = [g for g in good if any(state["outcome"] not in QUIET for state in g.node["states"])]
    return Results(changed, failed, [group for group in good if group not in changed])
