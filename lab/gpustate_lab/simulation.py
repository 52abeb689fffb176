"""The seam to :mod:`gpustate_lab.sim`: which of its parts a lab uses, and when.

Four moments: the packages are built into a repository on the controller, the nodes' own part of
them is installed into the image, each node's GPUs and faults are written into its root, and a fault
that is a file of the node is put there or removed.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpustate_lab import paths
from gpustate_lab.sim import hardware, models, node_faults
from gpustate_lab.sim import repository as sim_repository
from gpustate_lab.sim.repository import Repository
from gpustate_lab.spec import NO_GPUS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Repository",
    "build_repository",
    "check",
    "digest",
    "install_script",
    "parse_gpus",
    "sources",
    "switch_fault",
    "write_hardware",
]

#: Where ``layer.sh`` shows the repository to the script that runs in the image.
BOUND = "file:///run/gpustate-lab-repository"


def build_repository(destination: Path, say: Callable[[str], None]) -> Repository:
    """Build the simulated packages and sign them, or find them built."""
    with paths.locked(destination.with_suffix(".lock"), wait_s=600, what="the lab's packages"):
        if not destination.exists():
            say("packages: building the simulated NVIDIA packages and their repository")
        return sim_repository.build(destination, say=say)


def digest(repository: Repository) -> str:
    """Of what goes into the image: the key and the lists of the node's own packages."""
    content = hashlib.sha256(repository.key.read_bytes())
    for path in sorted((repository.root / "lab").rglob("Packages")):
        content.update(path.read_bytes())
    return content.hexdigest()


def parse_gpus(text: str) -> list[models.GpuModel]:
    return [] if text == NO_GPUS else list(models.parse_gpus(text))


def check(gpus: str, faults: Iterable[str]) -> None:
    """Raise a LabError for a GPU model or a fault that a new node cannot have."""
    count = len(parse_gpus(gpus))
    for fault in faults:
        hardware.check_fault(fault, count)
        node_faults.check_first_boot(fault)


def sources(repository: Repository, distribution: str, base_url: str) -> dict[str, str]:
    """The apt sources a node starts with: its simulated kernels, nothing of NVIDIA's."""
    return dict(repository.sources(distribution, base_url, include=("lab",)))


def install_script(repository: Repository, distribution: str) -> str:
    """What puts the simulator and two kernels into an image, as a shell script."""
    lines = ["mv /etc/apt/sources.list /run/sources.list"]
    files = sources(repository, distribution, BOUND)
    for path, text in files.items():
        lines.append(f"mkdir -p {shlex.quote(str(Path(path).parent))}")
        lines.append(f"printf %s {shlex.quote(text)} > {shlex.quote(path)}")
    lines.append("apt-get -q update")
    lines.append(
        f"apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false install {shlex.join(repository.image_packages)}"
    )
    lines.append(f"rm -f {shlex.join(files)}")
    lines.append("mv /run/sources.list /etc/apt/sources.list")
    return "\n".join(lines) + "\n"


def write_hardware(root: Path, node: str, gpus: str, faults: Iterable[str]) -> None:
    """Write a node's GPUs and faults into its root; on a running node most take effect at once."""
    hardware.write(root, node, parse_gpus(gpus), set(faults))


def switch_fault(root: Path, fault: str, on: bool) -> bool:
    """Put a fault that is a file of the node there, or remove it; others change nothing here.

    Returns:
        Whether the node's systemd has to read its units anew.
    """
    # NVIDIA's packages are the same files for every suite.
    packages = paths.repository_dir() / f"cuda/repos/{sim_repository.SUITES[0]}/x86_64"
    return node_faults.switch(root, fault, on, packages)
