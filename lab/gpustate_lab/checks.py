"""Check the requirements of a lab on this machine: programs, root, kernel features.

Each check tries the operation on a small scale and cleans up. Permissions depend on user, container runtime
and kernel configuration, which cannot be evaluated otherwise.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab import paths, programs
from gpustate_lab.command import run, search_path
from gpustate_lab.process import CGROUP_ROOT, cgroup_hierarchies
from gpustate_lab.requirements import PROGRAMS


def missing() -> list[str]:
    """Return one line for each unmet requirement, cheap checks first."""
    lines = _missing_programs()
    if os.geteuid() != 0:
        return ["not root, which namespaces, mounts and bridges require; use sudo", *lines]
    if lines:
        return lines
    checks: tuple[Callable[[], str | None], ...] = (_cgroups, _namespaces, _overlay, _bridge)
    return [line for check in checks if (line := check()) is not None]


def require() -> None:
    """Raise a LabError that lists all unmet requirements."""
    lines = missing()
    if lines:
        raise LabError(f"this machine cannot run a lab: {'; '.join(lines)}")


def require_root() -> None:
    if os.geteuid() != 0:
        raise LabError("not root, which namespaces, mounts and bridges require", fix="use sudo")


def _missing_programs() -> list[str]:
    lines = [
        f"{program} is not installed (apt install {package})"
        for program, package in PROGRAMS.items()
        if shutil.which(program, path=search_path()) is None
    ]
    go = programs.missing()
    if go is not None:
        lines.append(f"cannot build NVIDIA's container toolkit: {go}")
    return lines


def _failure(*argv: str) -> str | None:
    """Return why a command fails here; ``None`` if it succeeds."""
    result = run(argv, timeout_s=30, check=False)
    if result.returncode == 0:
        return None
    lines = (result.stderr or result.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit {result.returncode}"


def _cgroups() -> str | None:
    for hierarchy in cgroup_hierarchies():
        if not os.access(hierarchy, os.W_OK) or os.statvfs(hierarchy).f_flag & os.ST_RDONLY:
            return f"{hierarchy} is read-only; in a container, use --privileged"
        return None
    return f"no cgroup hierarchy for systemd below {CGROUP_ROOT}"


def _namespaces() -> str | None:
    name = f"gpustate-try-{os.getpid()}"
    why = _failure("ip", "netns", "add", name)
    if why is not None:
        return f"cannot create network namespaces ({why}); in a container, use --privileged"
    why = _failure("ip", "netns", "delete", name)
    if why is None:
        why = _failure("unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "true")
    return None if why is None else f"cannot create namespaces ({why})"


def _overlay() -> str | None:
    state_dir = paths.state_dir()
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".try-", dir=state_dir) as folder:
            for name in ("lower", "upper", "work", "root"):
                Path(folder, name).mkdir()
            options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
            # In a mount namespace of its own, so that nothing stays mounted whatever happens.
            why = _failure(
                "unshare",
                "--mount",
                "mount",
                "-t",
                "overlay",
                "-o",
                options,
                "lab",
                f"{folder}/root",
            )
    except OSError as error:
        return f"cannot write to {state_dir} ({error.strerror}); set {paths.STATE_VARIABLE}"
    if why is None:
        return None
    return f"cannot mount overlayfs in {state_dir} ({why}); set {paths.STATE_VARIABLE} to a directory on ext4, xfs or tmpfs"


def _bridge() -> str | None:
    why = _failure(
        "unshare",
        "--net",
        "sh",
        "-c",
        "ip link add name glb0 type bridge && ip link add name glv0 type veth peer name glv1",
    )
    return None if why is None else f"cannot create a bridge and veth pair ({why})"
