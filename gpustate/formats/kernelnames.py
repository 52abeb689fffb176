"""What a kernel's release says about the packages that belong to it, on rpm distributions.

On RHEL and its kin a release ends in the machine, and in a variant where there is one; everything before is
version and release of the packages. On SUSE it ends in the flavour, and the packages' release may go on where
the kernel's ends (``6.4.0-150600.23.65`` and ``6.4.0-150600.23.65.1``).

Sources:
    RHEL and Fedora, kernel.spec (kernel-devel, kernel-64k-devel; kernel-devel-matched keeps it beside the kernel);
    Amazon Linux 2023, kernel packages (kernel6.12-devel); SUSE, kernel-binary.spec (kernel-FLAVOUR-devel);
    NVIDIA/yum-packaging-precompiled-kmod, kmod-nvidia.spec: the release without the distribution's tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MACHINES = ("x86_64", "aarch64")
MATCHED = "kernel-devel-matched"
#: Packages with headers that dnf is asked about; patterns of dnf's.
DNF_HEADERS = ("kernel-devel", MATCHED, "kernel-64k-devel", "kernel-rt-devel", "kernel[0-9]*-devel")
_RHEL = re.compile(rf"(?P<evr>.+)\.(?:{'|'.join(MACHINES)})(?:\+(?P<variant>[0-9a-z]+))?")
_TAG = re.compile(r"\.(?:el|fc|amzn|azl)[0-9][0-9a-z_]*$")


def parts(manager: str, release: str) -> dict[str, str]:
    """What stands for a kernel in names of packages.

    Returns:
        ``k`` the release; ``e`` version and release of its packages; ``r`` the same without the
        distribution's tag; ``s`` the variant with a dash before it; ``f`` the flavour.
    """
    if manager == "zypper":
        base, _, flavour = release.rpartition("-")
        return {"k": release, "e": base, "r": base, "s": "", "f": flavour}
    found = _RHEL.fullmatch(release)
    evr = found["evr"] if found else release
    variant = found["variant"] if found else None
    named = {
        "k": release,
        "e": evr,
        "r": _TAG.sub("", evr),
        "s": f"-{variant}" if variant else "",
        "f": "",
    }
    return named


def header_names(manager: str, release: str) -> tuple[str, ...]:
    """Packages that may have the headers of a kernel, the usual one first."""
    named = parts(manager, release)
    if manager == "zypper":
        return (f"kernel-{named['f']}-devel",)
    series = ".".join(release.split(".")[:2])
    return (f"kernel{named['s']}-devel", f"kernel{series}-devel")


def headers(
    manager: str, release: str, offers: Mapping[str, Sequence[str]]
) -> tuple[str, str] | None:
    """The package with the headers of a kernel, and its version; ``None`` where it is not offered."""
    wanted = parts(manager, release)["e"]
    for name in header_names(manager, release):
        for version in offers.get(name, ()):
            bare = version.rpartition(":")[2]
            if bare == wanted or (manager == "zypper" and bare.startswith(f"{wanted}.")):
                return name, version
    return None
