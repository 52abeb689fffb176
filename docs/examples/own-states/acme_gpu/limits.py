"""Raise the limit of locked memory, which RDMA registers GPU buffers against.

A job that may lock 8 MiB fails in ``ibv_reg_mr`` with "Cannot allocate memory" on a node with
terabytes free. Sessions read ``/etc/security/limits.d`` when they begin: jobs that run keep the
limit they have, so that nothing is disrupted.

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
    """The file as one node has it."""

    text: str | None  # None: the file does not exist


class MemlockLimits(State[Observed]):
    """Sessions may lock as much memory as jobs need.

    Args:
        memlock_mib: the limit in MiB, 1 or more; no limit when not given.

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
