"""Derive names of a kernel's packages from its release, on rpm distributions.

In the RHEL family a release ends in the machine and an optional variant; the rest is version and release of the
packages. Oracle's UEK has packages of its own names, kernel-uek-devel and with 64k pages kernel-uek64k-devel. On SUSE it ends in the flavour, and the packages' release may have an additional part
(``6.4.0-150600.23.65`` and ``6.4.0-150600.23.65.1``).

Sources:
    RHEL and Fedora, kernel.spec (kernel-devel, kernel-64k-devel; kernel-devel-matched keeps it beside the kernel);
    Amazon Linux 2023, kernel packages (kernel6.12-devel); SUSE, kernel-binary.spec (kernel-FLAVOUR-devel);
    NVIDIA/yum-packaging-precompiled-kmod, kmod-nvidia.spec: the release without the distribution's tag. NVIDIA driver
    installation guide r615, Oracle Linux (UEK). awslabs and AlmaLinux/wiki#814: what is in -modules-extra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MACHINES = ("x86_64", "aarch64")
MATCHED = "kernel-devel-matched"
#: Packages with headers to query with dnf, as patterns.
DNF_HEADERS = (
    *("kernel-devel", MATCHED, "kernel-64k-devel", "kernel-rt-devel", "kernel[0-9]*-devel"),
    *("kernel-uek-devel", "kernel-uek64k-devel", "kernel-modules", "kernel*-modules-extra"),
)
_RHEL = re.compile(rf"(?P<evr>.+)\.(?:{'|'.join(MACHINES)})(?:\+(?P<variant>[0-9a-z]+))?")
_TAG = re.compile(r"\.(?:el|fc|amzn|azl)[0-9][0-9a-z_]*$")


def parts(manager: str, release: str) -> dict[str, str]:
    """The parts of a kernel's release in package names.

    Returns:
        ``k`` the release; ``e`` version and release of its packages; ``r`` the same without the
        distribution's tag; ``s`` the variant with a dash before it; ``f`` the flavour.
    """
    if manager == "zypper":
        base, _, flavour = release.rpartition("-")
        return {"k": release, "e": base, "r": base, "s": "", "f": flavour}
    match = _RHEL.fullmatch(release)
    evr = match["evr"] if match else release
    variant = (match["variant"] if match else None) or ""
    uek = "uek" if evr.endswith("uek") else ""
    named = {
        "k": release,
        "e": evr,
        "r": _TAG.sub("", evr),
        "s": f"-{uek}{variant}" if uek or variant else "",
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
    """The package with the headers of a kernel, and its version; ``None`` if it is not available."""
    expected = parts(manager, release)["e"]
    for name in header_names(manager, release):
        for version in offers.get(name, ()):
            build = version.rpartition(":")[2]
            if build == expected or (manager == "zypper" and build.startswith(f"{expected}.")):
                return name, version
    return None


def modules(release: str, offers: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Packages of dnf's with further modules of a kernel, as far as they are offered, and their versions."""
    named = parts("dnf", release)
    series = ".".join(release.split(".")[:2])
    names = (
        f"kernel{named['s']}-modules",
        f"kernel{named['s']}-modules-extra",
        f"kernel{series}-modules-extra",
    )
    return {
        name: version
        for name in names
        for version in offers.get(name, ())
        if version.rpartition(":")[2] == named["e"]
    }
