"""Driver branches: of which kind each is, and until when it is supported.

A policy may name a kind instead of a branch: ``latest-lts``, ``latest-production``,
``latest-new-feature``, or ``latest`` for any. The newest branch of the kind that fits is meant.

Surprising: a branch that is not listed (a newer one, a house build) is of no kind, so only ``latest``
reaches it.

Sources:
    NVIDIA data center driver documentation, r615: supported drivers and CUDA toolkit versions;
    NVIDIA/gpu-driver-container, versions.mk; read 2026-08-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpustate.formats import driverset


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch.

    Args:
        kind: ``lts``, ``production`` or ``new-feature``.
        ends: month after which NVIDIA supports it no longer, as ``2028-06``; ``past`` where that
            month is over and not known.
    """

    kind: str
    ends: str


BRANCHES: Mapping[int, Branch] = {
    470: Branch("lts", "past"),
    535: Branch("lts", "2026-06"),
    550: Branch("production", "past"),
    560: Branch("new-feature", "past"),
    565: Branch("new-feature", "past"),
    570: Branch("production", "past"),
    575: Branch("new-feature", "past"),
    580: Branch("lts", "2028-06"),
    590: Branch("new-feature", "past"),
    595: Branch("production", "2027-03"),
    610: Branch("new-feature", "2026-08"),
}


#: What a policy may write instead of a version.
LATEST = "latest"
CHANNELS = (LATEST, "latest-lts", "latest-production", "latest-new-feature")


def in_channel(version: str, channel: str) -> bool:
    """A driver version belongs to what ``latest-...`` means."""
    if channel == LATEST:
        return True
    branch = BRANCHES.get(driverset.branch_of(version))
    return branch is not None and channel == f"{LATEST}-{branch.kind}"


def support_ended(version: str, month: str) -> str | None:
    """When support of a driver's branch ended, seen from a month (``2026-11``); ``None``: it has not."""
    branch = BRANCHES.get(driverset.branch_of(version))
    if branch is None or (branch.ends != "past" and branch.ends >= month):
        return None
    return branch.ends
