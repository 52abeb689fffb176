"""Naming schemes of driver packages on apt and rpm distributions. Pure.

Surprising: NVIDIA's rpm packages have the same names in every branch. On RHEL 8 and 9 a module stream
selects the branch, on RHEL 10 and Fedora the version alone.

Sources:
    NVIDIA driver installation guide r615, RHEL family and Fedora: compute-only sets, module streams;
    NVIDIA/yum-packaging-precompiled-kmod (prebuilt modules, which are not solved for here).
"""

from __future__ import annotations

from dataclasses import replace

from gpustate.formats import driverschemes
from gpustate.formats.driverschemes import Scheme

#: ``ID`` of os-release where NVIDIA's rpm packages are installed with dnf.
RPM_SYSTEMS = driverschemes.RHEL

#: Possible package names of the fabric manager, the usual one last.
FABRIC_MANAGERS = (
    *("nvidia-fabricmanager-{branch}", "nvidia-fabric-manager", "nvidia-fabricmanager"),
)
_RPM = replace(driverschemes.of("rhel")[0], prebuilt=())


def of(os_id: str) -> tuple[Scheme, ...]:
    """Naming schemes of a distribution, the vendor's first."""
    if os_id in RPM_SYSTEMS:
        return (replace(_RPM, os_id=os_id),)
    return tuple(scheme for scheme in driverschemes.SCHEMES if scheme.os_id == os_id)


def fabric_managers(branch: int) -> tuple[str, ...]:
    """Possible package names of a branch's fabric manager, the usual one last."""
    return tuple(name.replace("{branch}", str(branch)) for name in FABRIC_MANAGERS)
