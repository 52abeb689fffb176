"""The interface between labs and :mod:`gpustate_lab.sim`.

It is used in four steps: build the packages into a repository on the controller, install the simulator into the
image, write GPUs and faults into the root of a node, and add or remove faults that are files of a node.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Sequence
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
    "build_toolkits",
    "check",
    "digest",
    "install_script",
    "parse_gpus",
    "sources",
    "switch_fault",
    "write_hardware",
]

#: URL of the repository inside the image build; ``layer.sh`` mounts it.
BOUND = "file:///run/gpustate-lab-repository"


def build_repository(
    destination: Path, distributions: Sequence[str], say: Callable[[str], None]
) -> Repository:
    """Build and sign the simulated packages of distributions, unless they are up to date."""
    with paths.locked(destination.with_suffix(".lock"), wait_s=600, what="the lab's packages"):
        return sim_repository.build(destination, suites=distributions, say=say)


def build_toolkits(destination: Path, versions: Sequence[str], say: Callable[[str], None]) -> None:
    """Build and sign the packages of NVIDIA's container toolkit: the newest, ``versions`` and those that are there."""
    lock = destination.with_name(f"{destination.name}-toolkits.lock")
    with paths.locked(lock, wait_s=1800, what="the packages of NVIDIA's container toolkit"):
        sim_repository.build_toolkits(destination, versions, say)


def digest(repository: Repository, distribution: str) -> str:
    """Return the digest of the image's content: key and indexes of the node packages and kernels."""
    content = hashlib.sha256(repository.key.read_bytes())
    for folder in (f"lab/{distribution}", f"ubuntu/{distribution}"):
        for path in sorted((repository.root / folder).rglob("Packages")):
            if path.parts[-3] in ("lab", "main"):
                content.update(path.read_bytes())
    return content.hexdigest()


def parse_gpus(text: str) -> list[models.GpuModel]:
    return [] if text == NO_GPUS else list(models.parse_gpus(text))


def check(gpus: str, faults: Iterable[str]) -> None:
    """Raise a LabError for an unknown GPU model or a fault that a new node cannot have."""
    count = len(parse_gpus(gpus))
    for fault in faults:
        hardware.check_fault(fault, count)
        node_faults.check_first_boot(fault)


def sources(repository: Repository, distribution: str, base_url: str) -> dict[str, str]:
    """Return the initial apt sources of a node: simulated kernels, no repository of NVIDIA's."""
    return dict(repository.sources(distribution, base_url, include=("lab",)))


def install_script(repository: Repository, distribution: str) -> str:
    """Return the shell script that installs the simulator and two kernels into an image."""
    lines = ["mv /etc/apt/sources.list /run/sources.list"]
    files = sources(repository, distribution, BOUND)
    for path, text in files.items():
        lines.append(f"mkdir -p {shlex.quote(str(Path(path).parent))}")
        lines.append(f"printf %s {shlex.quote(text)} > {shlex.quote(path)}")
    lines.append("apt-get -q update")
    lines.append(
        f"apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false install {shlex.join(repository.image_packages(distribution))}"
    )
    lines.append(f"rm -f {shlex.join(files)}")
    lines.append("mv /run/sources.list /etc/apt/sources.list")
    return "\n".join(lines) + "\n"


def write_hardware(root: Path, node: str, gpus: str, faults: Iterable[str]) -> None:
    """Write GPUs and faults into the root of a node; most take effect on a running node at once."""
    hardware.write(root, node, parse_gpus(gpus), set(faults))


def switch_fault(root: Path, fault: str, on: bool) -> bool:
    """Add or remove a fault that is a file of the node; other faults change nothing here.

    Returns:
        Whether the node needs ``systemctl daemon-reload``.
    """
    return node_faults.switch(root, fault, on, paths.repository_dir() / "cuda/repos")
