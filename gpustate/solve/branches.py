"""Driver branches: the kind of each, and its end of support.

A policy may name a channel instead of a branch: ``latest-lts``, ``latest-production``,
``latest-new-feature``, or ``latest`` for any. It selects the newest suitable branch of that kind.

Surprising: a branch that is not listed (a newer one, a private build) has no kind, so only ``latest``
selects it.

Sources:
    NVIDIA data center driver documentation, r615 and r620: supported drivers and CUDA toolkit versions;
    NVIDIA/gpu-driver-container, versions.mk; read 2026-11-29.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpustate.formats import driverset


@dataclass(frozen=True, slots=True)
class Branch:
    """A driver branch.

    Args:
        kind: ``lts``, ``production`` or ``new-feature``.
        ends: last month of support, as ``2028-06``; ``past`` where it is over and the month is unknown.
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
    615: Branch("new-feature", "past"),
    620: Branch("lts", "2029-09"),
}


#: Channels, which a policy may name instead of a version.
LATEST = "latest"
CHANNELS = (LATEST, "latest-lts", "latest-production", "latest-new-feature")


def in_channel(version: str, channel: str) -> bool:
    """Whether a channel such as ``latest-lts`` includes a driver version."""
    if channel == LATEST:
        return True
    branch = BRANCHES.get(driverset.branch_of(version))
    return branch is not None and channel == f"{LATEST}-{branch.kind}"


def support_ended(version: str, month: str) -> str | None:
    """Last month of support of a driver's branch; ``None`` while it is supported in ``month`` (``2026-11``)."""
    branch = BRANCHES.get(driverset.branch_of(version))
    if branch is None or (branch.ends != "past" and branch.ends >= month):
        return None
    return branch.ends
