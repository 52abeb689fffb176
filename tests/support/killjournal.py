"""What the journals of killed runs say, and what a re-run would make of them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import killpoints
import ledger

from gpustate.core.queries import Answer
from gpustate.engine import gate
from gpustate.engine.ledger import LedgerQuery

#: Steps that look, or that fetch or write down what is: harmless when done again. Nothing on the node
#: is another afterwards, and what was fetched is not fetched twice (apt's own cache).
LOOKS = (
    "download the driver's",
    "refresh the package lists",
    "check what",
    "check that /usr/bin/",
    "check for",
    "validate containerd's",  # the program itself reports what it makes of the configuration
    "validate crio's",
    "validate docker's",
    "validate microk8s's",
    "reload the configuration",
    "make ",  # modes of folders that others have to read
    "record that",
    "record the original",
    "snapshot ",
    "hold the driver's packages",
    "wait until",
    "validate the node",
)
#: What these make lies in memory: a boot removes it, and they are done again after one.
UNTIL_BOOT = ("create the links to NVIDIA's devices in /dev/char",)
_OWN_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


def steps_of(folder: Path) -> list[tuple[str, str]]:
    """State and label of a run's steps."""
    return [(row["state"], row["label"]) for row in json.loads((folder / "steps.json").read_text())]


def ended_well(folder: Path, *, changing: bool = False) -> list[tuple[str, str]]:
    """Those of a run's steps whose good result is on disk.

    Args:
        folder: of the run.
        changing: without those that told that everything was as it should be already.
    """
    journal = folder / "journal"
    done: list[tuple[str, str]] = []
    effects: list[str] = []
    for line in journal.read_text("utf-8", "replace").splitlines() if journal.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("e") == "intent":
            effects = []
        elif row.get("e") == "effect":
            effects.append(row.get("did", ""))
        elif row.get("e") == "result" and row.get("rc") == 0:
            idle = bool(effects) and set(effects) == {"same"}
            if not (changing and idle):
                done.append(steps_of(folder)[row["i"] - 1])
    return done


def verdict(copy: Path, when: str) -> str:
    """What the first look of a re-run makes of the lock and journal that a kill leaves."""
    own = copy / ledger.OWN
    newest = sorted((own / "runs").glob("*-[0-9]*"))[-1:]
    journals = {path / "journal": (path / "journal").read_bytes() for path in newest}
    try:
        for path, text in journals.items():
            _write_anew(path, killpoints.cut(text, when))
        script = f"G={shlex.quote(str(own))}; PROC=/proc; SYS=/sys\n{LedgerQuery().script()}"
        said = subprocess.run(
            ["sh", "-c", script], capture_output=True, env=_OWN_ENVIRONMENT, check=False
        )
    finally:
        for path, text in journals.items():
            _write_anew(path, text)
    observed = LedgerQuery().parse(Answer(said.returncode, said.stdout))
    holder = gate.Controller(
        observed.lock.holder if observed.lock else "", 1, lambda name, pid: False
    )
    return (
        f"program {observed.program is not None}, alive {bool(observed.program and observed.program.alive)}, "
        f"lock {observed.lock is not None}, dead {gate.dead(observed, holder)}"
    )


def _write_anew(path: Path, text: bytes) -> None:
    """Copies are linked to one another: a file of one is replaced, never written into."""
    status = path.stat()
    new = path.with_name(path.name + ".harness")
    new.write_bytes(text)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.chmod(new, status.st_mode & 0o7777)
    new.replace(path)
