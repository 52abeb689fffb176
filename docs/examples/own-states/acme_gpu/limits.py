"""Raise the limit of locked memory, which RDMA needs to register GPU buffers.

With the default limit of 8 MiB, ``ibv_reg_mr`` fails with "Cannot allocate memory". Sessions read
``/etc/security/limits.d`` at their start: running jobs keep their limit, so nothing is disrupted.

Sources:
    limits.conf(5); pam_limits(8).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from gpustate import Node, Plan, State, Step, diff, ops

PATH = "/etc/security/limits.d/90-acme-memlock.conf"


@dataclass(frozen=True, slots=True)
class Observed:
    """The limits file of a node."""

    text: str | None  # None: the file does not exist


class MemlockLimits(State[Observed]):
    """Sessions may lock as much memory as jobs need.

    Args:
        memlock_mib: the limit in MiB, at least 1; unlimited by default.

    Disruption:
        ``NONE``: new sessions get the new limit.
    """

    name: ClassVar[str] = "acme-memlock"
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    before: ClassVar[tuple[str, ...]] = ("validator",)

    memlock_mib: Annotated[int, Field(ge=1)] | None = None

    def probe(self, node: Node) -> Observed:
        return Observed(node.read_text(PATH))

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return Observed(None)
        limit = "unlimited" if self.memlock_mib is None else str(self.memlock_mib * 1024)
        return Observed(f"* soft memlock {limit}\n* hard memlock {limit}\n")

    def plan(self, observed: Observed) -> Plan:
        return diff(observed, self.desired(observed), paths={"text": PATH})

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        text = self.desired(observed).text
        if "text" not in plan.fields:
            return
        if text is None:
            yield ops.RemoveOwn(PATH)
        else:
            yield ops.PutText(PATH, text)
