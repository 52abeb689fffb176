"""Asks dnf or zypper about the driver: what is installed, held and offered, and which module stream is enabled.

dnf and zypper take a second for an answer, so it is kept as long as their files say the same. Nothing is fetched.

Surprising: on RHEL 8 and 9 and Amazon Linux 2023 dnf hides every driver that is not of the enabled module stream.
What the repository has at all is asked for (``module_hotfixes``), and the stream that fits is enabled with
the set. A transaction that was killed leaves a package in two versions, both of which rpm takes for installed.

Sources:
    dnf(8), modularity, and the file it keeps of an enabled stream (/etc/dnf/modules.d/NAME.module); dnf.conf(5);
    zypper(8), search. NVIDIA driver installation guide r615: streams of the module nvidia-driver.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.shared_probes import KEPT, RPM_KEY
from gpustate.formats import driverset, fabric, kernelnames, rpm
from gpustate.formats.dpkg import Candidate, Package

STREAM_PATH = "/etc/dnf/modules.d/nvidia-driver.module"
MODULE = "nvidia-driver"
#: What the answer of a node with rpm begins with.
MARK = "=rpm "
WITHOUT = "=without versionlock"
_INSTALLED = ("*nvidia*", "cuda-drivers*", "libnvsdm*", "nv-prefer-signed*")
#: Precompiled modules, of which most have a version and a kernel in their names: patterns of dnf's.
_BUILT = ("kmod*-nvidia*", "nvidia-open-kmod")
#: Packages of which several versions are there side by side, each with modules for kernels of its own.
_SIDE_BY_SIDE = re.compile(r"kmod-.*(?<!-dkms)$|.*-kmp-")
#: Packages beside the driver's own that move with it where they are installed.
_BESIDE = tuple(
    name
    for stem in (fabric.FABRIC_MANAGER, fabric.IMEX, "libnvidia-nscq", "libnvsdm")
    for name in fabric.names(stem)
)


@dataclass(frozen=True, slots=True)
class Rpm:
    """What a node with rpm says of its driver's packages.

    Args:
        packages: those that belong to the driver, or may.
        offers: versions that repositories have, the newest first, by name.
        stream: enabled stream of the module ``nvidia-driver``.
        streams: all of them; none where the repository has no modules.
        can_hold: the package manager can hold packages.
        twice: packages of one architecture that are installed in two versions.
    """

    packages: Mapping[str, Package]
    offers: Mapping[str, tuple[Candidate, ...]]
    stream: str | None
    streams: tuple[str, ...]
    twice: tuple[str, ...]
    can_hold: bool


def script(names: tuple[str, ...], flavoured: tuple[str, ...]) -> str:
    """A fragment that prints nothing on a node with apt.

    Args:
        names: packages to ask for.
        flavoured: names with ``{f}`` for the flavour of each kernel, on SUSE.
    """
    dnf = " ".join((*names, *_BESIDE, *_BUILT, *kernelnames.DNF_HEADERS))
    zypper = " ".join((*names, *_BESIDE))
    more = " ".join(name.replace("{f}", "$1") for name in ("kernel-{f}-devel", *flavoured))
    fragment = shell.load(
        "rpmask",
        "gpustate.states.driver",
        MARK=MARK,
        FORMAT=rpm.QUERY_FORMAT,
        INSTALLED=" ".join(_INSTALLED),
        DNF_NAMES=dnf,
        ZYPPER_NAMES=zypper,
        MODULE=MODULE,
        STREAM=STREAM_PATH,
        # The same question has the same place: another policy asks for other names.
        KEPT_AS=hashlib.sha256(f"{dnf}{zypper}{more}".encode()).hexdigest()[:16],
    )
    return (
        f"{rpm.FAMILY}{KEPT}"
        f'names_of_flavour() {{ names="$names {more}"; }}\n'
        f'rpm_key() {{ RPM_KEY="{RPM_KEY}"; }}\n{fragment}'
    )


def parse(text: str) -> Rpm:
    """Read the answer; it begins with :data:`MARK`."""
    head, _, tail = text.partition("\n")
    manager = head.removeprefix(MARK)
    rows, _, tail = tail.partition("=locks\n")
    locks, _, tail = tail.partition("=stream\n")
    stream, _, tail = tail.partition("=offers\n")
    installed = rpm.parse_query(rows)
    if manager == "dnf":
        held = rpm.held_by_dnf(rpm.versionlocks(locks), installed)
    else:
        held = rpm.held_by_zypper(locks, installed)
    offers = rpm.parse_repoquery(tail) if manager == "dnf" else rpm.parse_search(tail)
    versions = Counter(row.name for row in rpm.parse_rows(rows))
    twice = tuple(sorted(n for n, many in versions.items() if many > 1 and _moves(n, installed)))
    streams = re.findall(r"^=stream (\S+)$", tail, re.MULTILINE)
    packages = rpm.parse_query(rows, held)
    can_hold = WITHOUT not in rows
    return Rpm(packages, offers, stream.strip() or None, tuple(streams), twice, can_hold)


def _moves(name: str, installed: Mapping[str, Package]) -> bool:
    return driverset.is_member(name, installed[name].version) and not _SIDE_BY_SIDE.match(name)
