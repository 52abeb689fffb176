"""The processes that outlive ``lab up``: node supervisors, the repository server, other programs.

Run as a file (``python -I -S daemon.py ...``) with the standard library only, which starts within milliseconds
and needs little memory. Each process writes its identity (pid, start time, boot id) to a state file, since a pid
alone may be reused before it is killed.

With ``--keep-unit``, systemd-nspawn exits with 133 when the node reboots; the caller must start it again. Any
other status means that the node is off.

Sources:
    systemd 252 and 257, src/nspawn/nspawn.c: ``EXIT_FORCE_RESTART``, 133.
    proc(5): field 22 of ``/proc/pid/stat`` is the start time in clock ticks after boot.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import sys
from pathlib import Path
from typing import Any, TypeGuard

REBOOT_STATUS = 133


def start_time(pid: int) -> int | None:
    """Return the start time of a process in ticks; ``None`` if it ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command in field 2 may contain spaces and brackets; the last ")" ends it.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def identity(pid: int) -> dict[str, Any]:
    """Return the identity of a process for :func:`alive`."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start": start_time(pid), "boot": boot}


def alive(who: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """Whether the process with this identity is still running."""
    return who is not None and who["start"] is not None and identity(who["pid"]) == who


def write_state(path: Path, state: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, path)


def join(cgroups: list[str]) -> None:
    """Move this process into the cgroups by which the lab's processes are found."""
    for cgroup in cgroups:
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))


def _start_container(argv: list[str], cgroups: list[str], console: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        output = os.open(console, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Before the program starts: it creates the node's groups below its own.
        join(cgroups)
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"gpustate-lab: {argv[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def supervise(directory: Path) -> int:
    """Run one node until it is off, and restart it when it reboots."""
    config = json.loads((directory / "container.json").read_text())
    join([str(Path(cgroup).parent) for cgroup in config["cgroups"]])
    state: dict[str, Any] = {"supervisor": identity(os.getpid()), "boots": 0, "status": None}
    while True:
        pid = _start_container(config["argv"], config["cgroups"], directory / "console.log")
        state["boots"] += 1
        state["container"] = identity(pid)
        write_state(directory / "supervisor.json", state)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != REBOOT_STATUS:
            break
    state.update(container=None, status=status)
    write_state(directory / "supervisor.json", state)
    return 0


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        self.send_error(404, "file not found")


def serve(directory: str, address: str, port: int, state_file: Path, cgroups: list[str]) -> int:
    """Serve ``directory`` read-only on one address until killed."""
    join(cgroups)
    handler = functools.partial(_Handler, directory=directory)
    with http.server.ThreadingHTTPServer((address, port), handler) as server:
        write_state(state_file, {"server": identity(os.getpid())})
        server.serve_forever()
    return 0


def execute(config_file: Path, state_file: Path) -> int:
    """Replace this process with a program in the lab's cgroups, after recording its pid."""
    config = json.loads(config_file.read_text())
    join(config["cgroups"])
    write_state(state_file, {"program": identity(os.getpid())})
    os.execve(config["argv"][0], config["argv"], config["environment"])


def main(argv: list[str]) -> int:
    if argv[0] == "supervise":
        return supervise(Path(argv[1]))
    if argv[0] == "execute":
        return execute(Path(argv[1]), Path(argv[2]))
    return serve(argv[1], argv[2], int(argv[3]), Path(argv[4]), argv[5:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
