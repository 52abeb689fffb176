"""What keeps GPUs in quarantine out of the specification: a program on the node, and units that run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpustate import Step, ops
from gpustate.core.queries import ShippedFile
from gpustate.states.cdi.reading import Observed

NONE, MANAGED, FOREIGN = "none", "ours", "other"

#: The program that leaves GPUs out, while one is in quarantine.
FOLDER = "/var/lib/gpustate/cdi"
MODULES = (("gpustate.nodeside", "cdi_without.py"), ("gpustate.formats", "quarantine.py"))


def program() -> dict[str, str]:
    """Its files: path on the node to text."""
    return {
        f"{FOLDER}/{package.replace('.', '/')}/{file}": ShippedFile(file, package, file)
        .load()
        .decode("utf-8")
        for package, file in MODULES
    }


def dropin_path(unit: str) -> str:
    """Where a unit that writes the specification is told to leave GPUs out."""
    return f"/etc/systemd/system/{unit}.d/gpustate-quarantine.conf"


def how(texts: Mapping[str, str | None]) -> str:
    """What is there of the program."""
    if not any(texts.values()):
        return NONE
    return MANAGED if texts == program() else FOREIGN


def _command(proc: str) -> str:
    return f"python3 -I -S -B {FOLDER}/gpustate/nodeside/cdi_without.py /var/lib/gpustate {proc}"


def dropins(unit: str, proc: str) -> dict[str, str]:
    """What a unit is told to do instead: path to text."""
    return {
        dropin_path(unit): (
            "# Written by gpustate (state cdi) while a GPU is in quarantine.\n[Service]\nExecStart=\n"
            f"ExecStart=/usr/bin/env {_command(proc)}\n"
        )
    }


def write(proc: str) -> str:
    """sh that writes the specification without them."""
    return f"{_command(proc)}\neffect generated"


def steps(observed: Observed, after: Observed) -> Iterator[Step]:
    """Program and units as they are to be."""
    if after.program == MANAGED != observed.program:
        for path, text in program().items():
            yield ops.PutText(path, text, mode=0o644)
    for path, text in after.dropins.items():
        if observed.dropins.get(path) != text:
            yield ops.PutText(path, text, mode=0o644)
    for path in sorted(set(observed.dropins) - set(after.dropins)):
        yield ops.RemoveOwn(path)
    if observed.dropins != after.dropins:
        yield ops.DaemonReload()
    if after.program == NONE != observed.program:
        for path in program():
            yield ops.ForgetOriginal(path)
        yield ops.Run(f"rm -rf {FOLDER}; effect removed", f"remove {FOLDER}")
