"""The first lines of README and of docs/lab.md on a fresh Debian, in a clone, and a plan of a node from there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpustate import __version__
from gpustate_lab import paths
from gpustate_lab.api import Lab
from gpustate_lab.host import unmount_all
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.proof, pytest.mark.node]

TOP = Path(__file__).parents[2]
#: What a person installs before; pipx brings Python, pip and venv.
PACKAGES = ("pipx", "ca-certificates")
#: This machine's way to a package index, for the root has none of its own.
TRUST = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def run(*words: str | Path, timeout: float = 540) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=timeout, cwd=TOP
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def root(lab_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root of Debian 12 with pipx and nothing of gpustate."""
    folder = tmp_path_factory.mktemp("root")
    downloads = paths.cache_dir() / "downloads" / "debian12"
    downloads.mkdir(parents=True, exist_ok=True)
    run(
        *("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        *(f"--cache-dir={downloads}", "bookworm", folder),
    )
    for name in TRUST:
        if os.path.exists(name):
            (folder / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, folder / name.lstrip("/"))
    run("mount", "-t", "proc", "proc", folder / "proc")
    yield folder
    unmount_all(folder)
    shutil.rmtree(folder)


def inside(root: Path, script: str, timeout: float = 540) -> str:
    """Run a shell script in the root as a person would, on this machine's network."""
    index = [f"{key}={value}" for key, value in os.environ.items() if key.startswith("PIP_INDEX")]
    start = ("env", "-i", "HOME=/root", "PATH=/root/.local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return run(
        "chroot", root, *start, "LC_ALL=C.UTF-8", *index, "sh", "-euc", script, timeout=timeout
    )


def test_gpustate_is_installed_by_pipx_and_plans_a_node(
    root: Path, lab_factory: Callable[[LabSpec], Lab]
) -> None:
    lab = lab_factory(LabSpec(nodes=1, images=("debian12",), gpus=("2xH100",)))
    run("git", "checkout-index", "--all", f"--prefix={root}/root/gpustate/")
    typed = [
        next(
            line.split("  #")[0].strip()
            for line in (TOP / page).read_text().splitlines()
            if "pipx" in line
        )
        for page in ("README.md", "docs/lab.md")
    ]
    assert typed == ["pipx install .", "pipx inject gpustate ./lab"]
    inside(root, f"cd /root/gpustate; {'; '.join(typed)}")
    assert "Manage disposable test nodes" in inside(root, "gpustate lab --help")
    assert inside(root, "gpustate --version") == f"gpustate {__version__}\n"

    # The inventory names its key by path.
    copy = root / str(lab.directory).lstrip("/")
    copy.mkdir(parents=True)
    run("mount", "--bind", lab.directory, copy)
    plan = inside(root, f"gpustate plan nouveau -i {lab.inventory}")
    assert "gpu1" in plan
    assert "nodes=1 ok=1 changed=1" in plan
    inside(root, f"gpustate apply nouveau -i {lab.inventory} --yes")
    assert "nodes=1 ok=1 changed=0" in inside(root, f"gpustate plan nouveau -i {lab.inventory}")
