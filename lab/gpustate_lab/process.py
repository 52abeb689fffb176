"""Start, find and kill the processes of a lab, by pid and start time or by cgroup.

Each node has its own cgroups, named after lab and node. nspawn puts a node's systemd into ``payload`` below
the cgroup it was started in; two systemd in one ``payload`` would kill each other's services.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpustate.errors import LabError
from gpustate_lab import daemon
from gpustate_lab.command import search_path

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_PREFIX = "gpustate-lab"


def cgroup_hierarchies(root: Path = CGROUP_ROOT) -> tuple[Path, ...]:
    """Return all hierarchies: one (v2), or systemd's two and one for each controller (v1)."""
    if (root / "cgroup.controllers").exists():
        return (root,)
    mounted = sorted(path.parent.resolve() for path in root.glob("*/cgroup.procs"))
    # ``cpu`` and ``cpuacct`` may be links to one hierarchy.
    return tuple(dict.fromkeys(mounted))


def make_cgroups(name: str) -> list[str]:
    """Create the cgroup ``name`` (``<lab>/<node>``) in every hierarchy.

    Containers of a node are below its cgroup in every hierarchy, so they are killed and removed with it.
    """
    made = []
    for hierarchy in cgroup_hierarchies():
        path = hierarchy
        for part in (CGROUP_PREFIX, *name.split("/")):
            path = path / part
            path.mkdir(exist_ok=True)
            _inherit_cpuset(path)
        made.append(str(path))
    return made


def _inherit_cpuset(path: Path) -> None:
    """Copy the parent's cpuset: a new v1 ``cpuset`` group has no CPUs, so no process could join it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = path / name
        if (
            (path / "cgroup.clone_children").exists()
            and file.exists()
            and not file.read_text().strip()
        ):
            file.write_text((path.parent / name).read_text())


def cgroup_pids(name: str) -> set[int]:
    """Return all processes in the cgroup ``name`` and below."""
    pids: set[int] = set()
    for hierarchy in cgroup_hierarchies():
        # os.walk ignores groups that are removed meanwhile; Path.rglob does not.
        for folder, _, _ in os.walk(hierarchy / CGROUP_PREFIX / name):
            try:
                text = Path(folder, "cgroup.procs").read_text()
            except OSError:  # the group was removed meanwhile
                continue
            pids.update(int(line) for line in text.split())
    return pids - {0, os.getpid()}


def kill_cgroup(name: str, timeout_s: float = 15.0) -> int:
    """SIGKILL all processes in the cgroup until none is left; return their number."""
    deadline = time.monotonic() + timeout_s
    seen: set[int] = set()
    while True:
        pids = cgroup_pids(name)
        seen |= pids
        if not pids:
            return len(seen)
        if time.monotonic() > deadline:
            raise LabError(f"{name}: processes {sorted(pids)} still run after SIGKILL")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def remove_cgroups(name: str) -> bool:
    """Remove the empty cgroup ``name`` with its children, and the common parent if it is empty."""
    removed = False
    for hierarchy in cgroup_hierarchies():
        base = hierarchy / CGROUP_PREFIX / name
        if not base.is_dir():
            continue
        for path, _, _ in os.walk(base, topdown=False):
            _remove_group(Path(path))
        removed = True
        try:
            (hierarchy / CGROUP_PREFIX).rmdir()
        except OSError:  # it has cgroups of other labs
            pass
    return removed


def _remove_group(path: Path, timeout_s: float = 5.0) -> None:
    # The kernel releases a group a moment after its last process was reaped.
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LabError(f"cannot remove the cgroup {path}: {error.strerror}") from error
            time.sleep(0.02)


def read_state(path: Path) -> dict[str, Any]:
    """Read a state file of :mod:`gpustate_lab.daemon`; empty if it does not exist."""
    try:
        state = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return state if isinstance(state, dict) else {}


def start_daemon(
    arguments: list[str], state_file: Path, log: Path, timeout_s: float = 15.0
) -> None:
    """Start ``daemon.py`` detached and wait until it has written its state file."""
    state_file.unlink(missing_ok=True)
    program = [sys.executable, "-I", "-S", str(Path(daemon.__file__)), *arguments]
    with log.open("a") as output:
        # setsid --fork: it must not stay a child of this process, which does not wait for it.
        subprocess.run(
            ["setsid", "--fork", *program],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            check=True,
        )
    deadline = time.monotonic() + timeout_s
    while not state_file.exists():
        if time.monotonic() > deadline:
            said = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            raise LabError(f"{' '.join(arguments[:1])} did not start; its output: {said[0]}")
        time.sleep(0.01)


def start_program(
    directory: Path,
    name: str,
    argv: Sequence[str],
    *,
    cgroup: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Start a program of the lab detached, unless it is running; its output goes to ``<name>.log``.

    Args:
        directory: of ``<name>.json`` (state), ``<name>.run.json`` (command) and the log.
        argv: absolute path and arguments.
        cgroup: of the lab, so that ``down`` always finds the program.
        environment: complete environment; only PATH by default.
    """
    if program_runs(directory, name):
        return
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "argv": list(argv),
        "cgroups": make_cgroups(cgroup),
        "environment": {"PATH": search_path(), **(environment or {})},
    }
    config_file, state_file = directory / f"{name}.run.json", directory / f"{name}.json"
    config_file.write_text(json.dumps(config))
    arguments = ["execute", str(config_file), str(state_file)]
    start_daemon(arguments, state_file, directory / f"{name}.log")


def program_runs(directory: Path, name: str) -> bool:
    """Whether a program of :func:`start_program` is running."""
    return daemon.alive(read_state(directory / f"{name}.json").get("program"))


def end_program(directory: Path, name: str) -> bool:
    """SIGKILL a program of :func:`start_program`; return False if it was not running."""
    return end(read_state(directory / f"{name}.json").get("program"))


def kill_named(directory: Path) -> None:
    """SIGKILL each ``daemon.py`` with a path below the lab's directory in its command line."""
    for process, words in _naming(directory):
        if str(Path(daemon.__file__)) in words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def wait_for_orphans(directory: Path, timeout_s: float = 5.0) -> None:
    """Wait for orphans of a killed ``up``, such as a compiler, that write into the lab's directory.

    They end by themselves within a second. Other programs in the directory are not waited for, unless they are
    orphans too; those are not killed, and cost the whole timeout.
    """
    deadline = time.monotonic() + timeout_s
    while _orphans(directory) and time.monotonic() < deadline:
        time.sleep(0.05)


def _orphans(directory: Path) -> bool:
    for process, _ in _naming(directory):
        with contextlib.suppress(OSError):
            if (process / "stat").read_text().rpartition(")")[2].split()[1] == "1":
                return True
    return False


def _naming(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    """Return the /proc folders of processes with a path below ``directory`` in their command line."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process ended
            continue
        if any(word.startswith(f"{directory}/") for word in words):
            yield process, words


def end(who: dict[str, Any] | None, timeout_s: float = 10.0) -> bool:
    """SIGKILL a recorded process and wait for its end; return False if it was not running."""
    if not daemon.alive(who):
        return False
    os.kill(who["pid"], signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while daemon.alive(who):
        if time.monotonic() > deadline:
            raise LabError(f"process {who['pid']} still runs after SIGKILL")
        time.sleep(0.01)
    return True
