"""What a check reads on a node: the files, programs, sockets and devices of its traced system calls.

Traced from outside by strace, so nothing of the product says what it is. Left out is what no check judges: what a login
and Python need to run at all, the packages of the distribution's base (of which only programs that a check runs count),
gpustate's own programs, and what simulates the hardware.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpustate_lab.node import Node

_CALL = re.compile(r'^(\d+) +(\w+)\(.*?"(/[^"]*)"(.*)$')
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
#: Simulated hardware, gpustate's own programs and records of runs, and caches.
_ASIDE = re.compile(
    r"^/(proc|sys|tmp|run/host|var/log/journal)/|gpustate-lab|/__pycache__/"
    r"|^/var/lib/gpustate/(lib|validator|runs|cache|validate\.lock|proof\.json)"
)
#: Runs on the node: kind of each path, and whether the base of the distribution owns it.
_CLASSIFY = r"""
import glob, json, os, re, stat, subprocess, sys
rows = subprocess.run(
    ["dpkg-query", "-W", "-f", "${Package}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n"],
    stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
needs, provided, essential, base = {}, {}, set(), set()
for name, vital, priority, depends, provides in (row.split("\t") for row in rows):
    needs[name] = re.findall(r"(?:^|[,|])\s*([\w.+-]+)", depends)
    for word in re.findall(r"(?:^|,)\s*([\w.+-]+)", provides):
        provided.setdefault(word, []).append(name)
    if vital == "yes" or name in ("python3", "openssh-server"):
        essential.add(name)
    if priority in ("required", "important", "standard"):
        base.add(name)
def closure(names):
    left, reached = list(names), set()
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += [*needs.get(name, ()), *provided.get(name, ())]
    return reached
essential = closure(essential)
base = closure(base | essential)
def place(path):
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
owners = {}
for listing in glob.glob("/var/lib/dpkg/info/*.list"):
    with open(listing) as file:
        for line in file:
            owners[place(line.rstrip("\n"))] = os.path.basename(listing)[:-5].partition(":")[0]
tests = (("link", stat.S_ISLNK), ("file", stat.S_ISREG), ("socket", stat.S_ISSOCK), ("device", stat.S_ISCHR))
reads, programs = json.load(sys.stdin)
programs = {place(path) for path in programs}
found = {}
for path in map(place, reads):
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        continue
    kind = next((kind for kind, holds in tests if holds(mode)), "")
    owner = owners.get(path, "")
    if kind in ("link", "file") and os.access(path, os.X_OK) and re.search("/s?bin/[^/]*$", path):
        kind = "program"
    if kind and owner not in (essential if path in programs else base):
        found[path] = kind
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Reads:
    """Paths that system calls reached, and those that were executed."""

    paths: frozenset[str]
    programs: frozenset[str]

    @classmethod
    def parse(cls, trace: str) -> Reads:
        """Read the output of strace."""
        paths, programs = set[str](), set[str]()
        unfinished: dict[tuple[str, str], str] = {}
        for line in trace.splitlines():
            if resumed := _RESUMED.match(line):
                pid, call, rest = resumed.groups()
                path = unfinished.pop((pid, call), "")
            elif started := _CALL.match(line):
                pid, call, path, rest = started.groups()
                if "<unfinished ...>" in rest:
                    unfinished[pid, call] = path
                    continue
            else:
                continue
            if path and " = -1 E" not in rest:
                paths.add(path)
                if call == "execve":
                    programs.add(path)
        return cls(frozenset(paths), frozenset(programs))


def _entered(node: Node) -> list[str]:
    return ["nsenter", "-t", str(node.leader()), *["-m", "-u", "-i", "-n", "-p", "-C", "--"]]


def _seen_from_outside(node: Node, pid: str) -> str:
    """The controller's number of a process of the node."""
    namespace = os.readlink(f"/proc/{node.leader()}/ns/pid")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            same = os.readlink(folder / "ns/pid") == namespace
            if same and re.search(rf"^NSpid:.*\t{pid}$", (folder / "status").read_text(), re.M):
                return folder.name
        except OSError:
            continue
    raise AssertionError(f"no process {pid} in {node.name}")


_STRACE = ("strace", "-f", "-qq", "-e", "trace=%file,connect", "-s", "300")


def traced_logins(node: Node, action: Callable[[], object], output: Path) -> Reads:
    """What every login at a node's sshd reads while an action runs."""
    sshd = node.run("systemctl show -p MainPID --value ssh sshd").stdout.split()[0]
    words = [*_STRACE, "-o", str(output), "-p", _seen_from_outside(node, sshd)]
    tracer = subprocess.Popen(words)
    time.sleep(1)
    action()
    tracer.terminate()
    tracer.wait()
    return Reads.parse(output.read_text(errors="replace"))


def traced_command(node: Node, command: Sequence[str], output: Path) -> Reads:
    """What a command reads on a node."""
    words = [*_STRACE, "-o", str(output), *_entered(node), *command]
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    return Reads.parse(output.read_text(errors="replace"))


def kinds(node: Node, reads: Sequence[Reads], baseline: Sequence[Reads]) -> dict[str, str]:
    """Each path that the reads have and the baseline lacks: ``program``, ``file``, ``link``, ``socket`` or ``device``."""
    known = frozenset[str]().union(*(row.paths for row in baseline))
    paths = frozenset[str]().union(*(row.paths for row in reads)) - known
    programs = frozenset[str]().union(*(row.programs for row in reads))
    wanted = json.dumps([sorted(paths), sorted(programs)])
    classify = [*_entered(node), "python3", "-ISc", _CLASSIFY]
    output = subprocess.run(classify, input=wanted, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(output.stdout)
    return {path: kind for path, kind in sorted(found.items()) if not _ASIDE.search(path)}
