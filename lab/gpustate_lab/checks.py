"""Whether this machine can and may run a lab: programs, root, and what the kernel allows.

Each check tries the thing itself on something small and leaves nothing, because permissions come
from too many places (user, container runtime, kernel configuration) to be worked out.
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
    """One line for each thing that stands in the way, the cheap checks first; empty when none."""
    lines = _missing_programs()
    if os.geteuid() != 0:
        return ["not root: namespaces, mounts and bridges need it; use sudo", *lines]
    if lines:
        return lines
    checks: tuple[Callable[[], str | None], ...] = (_cgroups, _namespaces, _overlay, _bridge)
    return [line for check in checks if (line := check()) is not None]


def require() -> None:
    """Raise one LabError that names everything :func:`missing` found."""
    lines = missing()
    if lines:
        raise LabError(f"no lab on this machine: {'; '.join(lines)}")


def require_root() -> None:
    if os.geteuid() != 0:
        raise LabError("not root: namespaces, mounts and bridges need it", fix="use sudo")


def _missing_programs() -> list[str]:
    lines = [
        f"{program} is not installed (Debian package {package})"
        for program, package in PROGRAMS.items()
        if shutil.which(program, path=search_path()) is None
    ]
    go = programs.missing()
    if go is not None:
        lines.append(f"NVIDIA's container toolkit cannot be built: {go}")
    return lines


def _refusal(*argv: str) -> str | None:
    """Why ``argv`` does not work here; ``None`` when it does."""
    result = run(argv, timeout_s=30, check=False)
    if result.returncode == 0:
        return None
    said = (result.stderr or result.stdout).strip().splitlines()
    return said[-1] if said else f"exit {result.returncode}"


def _cgroups() -> str | None:
    for hierarchy in cgroup_hierarchies():
        if not os.access(hierarchy, os.W_OK) or os.statvfs(hierarchy).f_flag & os.ST_RDONLY:
            return f"{hierarchy} is read-only; in a container: run it with --privileged"
        return None
    return f"no cgroup hierarchy for systemd below {CGROUP_ROOT}"


def _namespaces() -> str | None:
    name = f"gpustate-try-{os.getpid()}"
    why = _refusal("ip", "netns", "add", name)
    if why is not None:
        return f"network namespaces are not allowed here ({why}); in a container: run it with --privileged"
    why = _refusal("ip", "netns", "delete", name)
    if why is None:
        why = _refusal("unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "true")
    return None if why is None else f"namespaces are not allowed here ({why})"


def _overlay() -> str | None:
    state_dir = paths.state_dir()
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".try-", dir=state_dir) as folder:
            for name in ("lower", "upper", "work", "root"):
                Path(folder, name).mkdir()
            options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
            # In a mount namespace of its own, so that nothing stays mounted whatever happens.
            why = _refusal(
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
        return f"{state_dir} cannot be written ({error.strerror}); set {paths.STATE_VARIABLE}"
    if why is None:
        return None
    return f"overlayfs cannot be mounted in {state_dir} ({why}); set {paths.STATE_VARIABLE} to a folder on ext4, xfs or tmpfs"


def _bridge() -> str | None:
    why = _refusal(
        "unshare",
        "--net",
        "sh",
        "-c",
        "ip link add name glb0 type bridge && ip link add name glv0 type veth peer name glv1",
    )
    return None if why is None else f"no bridge or veth in this kernel ({why})"
