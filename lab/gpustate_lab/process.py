"""Start, find and end the lab's own processes: by pid and start time, or by a cgroup of our making.

A node's processes sit in cgroups named after lab and node, made for them alone. Two nodes must not
share one: nspawn puts each node's systemd into ``payload`` below the group it was started in, and
two of them in one ``payload`` would end one another's services.
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
    """Every hierarchy: one (v2), or systemd's two and one for each controller (v1)."""
    if (root / "cgroup.controllers").exists():
        return (root,)
    mounted = sorted(path.parent.resolve() for path in root.glob("*/cgroup.procs"))
    # ``cpu`` and ``cpuacct`` may be links to one hierarchy.
    return tuple(dict.fromkeys(mounted))


def make_cgroups(name: str) -> list[str]:
    """Make the group ``name`` (``<lab>/<node>``) in every hierarchy.

    A node's containers are below its own group for each controller, so they end and go with the node.
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
    """A new group of the v1 controller ``cpuset`` has no processors, and no process may enter it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = path / name
        if (
            (path / "cgroup.clone_children").exists()
            and file.exists()
            and not file.read_text().strip()
        ):
            file.write_text((path.parent / name).read_text())


def cgroup_pids(name: str) -> set[int]:
    """Every process in the group ``name`` and below."""
    pids: set[int] = set()
    for hierarchy in cgroup_hierarchies():
        # os.walk passes over groups that go away while it looks; Path.rglob does not.
        for folder, _, _ in os.walk(hierarchy / CGROUP_PREFIX / name):
            try:
                text = Path(folder, "cgroup.procs").read_text()
            except OSError:  # the group went away while it was read
                continue
            pids.update(int(line) for line in text.split())
    return pids - {0, os.getpid()}


def kill_cgroup(name: str, timeout_s: float = 15.0) -> int:
    """SIGKILL everything in the group until nothing is left; return how many were seen."""
    deadline = time.monotonic() + timeout_s
    seen: set[int] = set()
    while True:
        pids = cgroup_pids(name)
        seen |= pids
        if not pids:
            return len(seen)
        if time.monotonic() > deadline:
            raise LabError(f"{name}: processes {sorted(pids)} do not end after SIGKILL")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def remove_cgroups(name: str) -> bool:
    """Remove the empty group ``name`` with all below it, and the common parent when it is empty."""
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
        except OSError:  # other labs are in it
            pass
    return removed


def _remove_group(path: Path, timeout_s: float = 5.0) -> None:
    # The kernel lets a group go a moment after its last process was reaped.
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
    """A state file of :mod:`gpustate_lab.daemon`; empty when there is none."""
    try:
        state = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return state if isinstance(state, dict) else {}


def start_daemon(
    arguments: list[str], state_file: Path, log: Path, timeout_s: float = 15.0
) -> None:
    """Start ``daemon.py`` detached and wait until it has said who it is."""
    state_file.unlink(missing_ok=True)
    program = [sys.executable, "-I", "-S", str(Path(daemon.__file__)), *arguments]
    with log.open("a") as output:
        # setsid --fork: nobody waits for it, so it must not stay a child of this process.
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
            raise LabError(f"{' '.join(arguments[:1])} did not start; it said: {said[0]}")
        time.sleep(0.01)


def start_program(
    directory: Path,
    name: str,
    argv: Sequence[str],
    *,
    cgroup: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Start a program of the lab detached, unless it runs; its output goes to ``<name>.log``.

    Args:
        directory: where ``<name>.json`` (who it is), ``<name>.run.json`` and the log lie.
        argv: the program by its whole path, and its arguments.
        cgroup: the lab's own, so that ``down`` finds the program whatever happens.
        environment: all of it; PATH alone when left out.
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
    """Whether a program that :func:`start_program` started still runs."""
    return daemon.alive(read_state(directory / f"{name}.json").get("program"))


def end_program(directory: Path, name: str) -> bool:
    """SIGKILL it; False when it was not running."""
    return end(read_state(directory / f"{name}.json").get("program"))


def kill_named(directory: Path) -> None:
    """SIGKILL every ``daemon.py`` whose command line has a path below a lab's directory."""
    for process, words in _naming(directory):
        if str(Path(daemon.__file__)) in words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def wait_for_orphans(directory: Path, timeout_s: float = 5.0) -> None:
    """Wait for programs that a killed ``up`` had started, such as a compiler, and that write into a lab's directory.

    They end by themselves, within the second. A person's own program there is not one of them, unless it was left
    behind as well; it is not ended, and costs the time.
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
    """Processes, as their folders in /proc, with a command line that has a path below ``directory``."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if any(word.startswith(f"{directory}/") for word in words):
            yield process, words


def end(who: dict[str, Any] | None, timeout_s: float = 10.0) -> bool:
    """SIGKILL one recorded process and wait for its end; False when it was not running."""
    if not daemon.alive(who):
        return False
    os.kill(who["pid"], signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while daemon.alive(who):
        if time.monotonic() > deadline:
            raise LabError(f"process {who['pid']} does not end after SIGKILL")
        time.sleep(0.01)
    return True
