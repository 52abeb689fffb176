"""Repositories made by hand for the solver: the names of the vendor's and of Debian's packages, no content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpustate import PciGpu
from gpustate.solve import packages
from gpustate.solve.packages import Package, Repository, Universe, unresolved_names
from gpustate.solve.problem import Blocks, Problem
from gpustate.solve.request import DriverRequest
from gpustate.states.driver.gpus import module_type

VENDOR = Repository("NVIDIA", "/", "", "https://vendor.test/cuda")
DEBIAN = Repository("Debian", "bookworm", "non-free", "https://debian.test/debian")
H100, B200, V100 = "2330", "2901", "1db4"


def stanza(name: str, version: str, depends: str = "", more: str = "", digest: str = "a") -> str:
    """One package as an index has it."""
    needs = f"Depends: {depends}\n" if depends else ""
    return (
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n{needs}{more}"
        f"SHA256: {digest * 64}\nSize: 1000\n\n"
    )


def vendor(version: str, *, digest: str = "a") -> str:
    """A driver under the names of NVIDIA's repository for Debian."""
    v = f"{version}-1"
    rows = [
        (
            "nvidia-driver-cuda",
            f"libcuda1 (= {v}), libnvidia-ml1 (= {v}), nvidia-persistenced (= {v})",
        ),
        ("nvidia-kernel-open-dkms", f"dkms, firmware-nvidia-gsp (= {v})"),
        ("nvidia-kernel-dkms", f"dkms, firmware-nvidia-gsp (= {v})"),
        ("firmware-nvidia-gsp", ""),
        ("libcuda1", "libc6 (>= 2.28)"),
        ("libnvidia-ml1", "libc6"),
        ("nvidia-persistenced", f"libnvidia-ml1 (= {v})"),
        ("nvidia-fabricmanager" if version >= "580" else f"nvidia-fabricmanager-{version[:3]}", ""),
    ]
    return "".join(stanza(name, v, needs, digest=digest) for name, needs in rows)


def debian(version: str, opened: str | None = None) -> str:
    """A driver under the names of Debian's archive; the open modules may be of another version."""
    v, o = f"{version}-1", f"{opened or version}-1"
    rows = [
        ("nvidia-smi", v, f"libnvidia-ml1 (= {v})"),
        ("libcuda1", v, "libc6"),
        ("libnvidia-ml1", v, "libc6"),
        ("nvidia-kernel-dkms", v, "dkms"),
        ("nvidia-open-kernel-dkms", o, "dkms"),
    ]
    return "".join(stanza(*row) for row in rows)


OTHERS = ("dkms", "libc6")


def universe(
    *indexes: tuple[str, Repository],
    others: Iterable[str] = OTHERS,
    pinned_away: Sequence[str] = (),
) -> Universe:
    """What these indexes offer together."""
    from dataclasses import replace

    found = [p for text, where in indexes for p in packages.parse(text, where)]
    found = [replace(p, forbidden=p.repository.origin in pinned_away) for p in found]
    leaves = [
        Package(name, "2.36-9", Repository("Debian", "bookworm", "main"), leaf=True)
        for name in others
    ]
    return Universe((*found, *leaves))


def problem(
    wanted: DriverRequest,
    offered: Universe,
    *gpus: str,
    blocks: Blocks = lambda version, module_type: (),
    os_id: str = "debian",
    scheme: str = "",
) -> Problem:
    """A problem on a node with these GPUs."""
    pci = tuple(PciGpu(f"0000:0{n}:00.0", device, "030200", None) for n, device in enumerate(gpus))

    def modules(branch: int, kind: str) -> tuple[str | None, str]:
        found, why = module_type(pci, branch, kind)
        return found, why or ""

    return Problem(wanted, offered, os_id, modules, blocks, scheme=scheme)


__all__ = [
    "B200",
    "DEBIAN",
    "H100",
    "V100",
    "VENDOR",
    "debian",
    "problem",
    "stanza",
    "universe",
    "unresolved_names",
    "vendor",
]
