"""gpustate as its users have it: a process of its own, in folders of its own."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpustate import inventory, policies, registry
from gpustate.cli import apply, plan
from gpustate.cli.main import entry
from gpustate.engine import fleet
from gpustate.policies import operator

#: What every fork would import again, the states among it.
IMPORTED = (apply, fleet, inventory, operator, plan, policies)
STATES = [registry.get(name) for name in registry.states()]

Cli = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    """How a run of gpustate ended."""

    status: int
    out: str
    err: str


def run_forked(
    words: tuple[str, ...], folder: Path, environment: dict[str, str], outputs: list[Path]
) -> Done:
    """Run gpustate in a fork of this process, which saves half a second of imports.

    What a fork could hide is covered by the tests that start the program itself.
    """
    pid = os.fork()
    if pid == 0:
        _become_gpustate(words, folder, environment, outputs)
    _, status = os.waitpid(pid, 0)
    out, err = (path.read_text("utf-8", "replace") for path in outputs)
    return Done(os.waitstatus_to_exitcode(status), out, err)


def _become_gpustate(
    words: tuple[str, ...], folder: Path, environment: dict[str, str], outputs: list[Path]
) -> NoReturn:
    code = 99
    try:
        os.chdir(folder)
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "GPUSTATE_INVENTORY", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ.update(environment)
        for number, path in ((0, Path(os.devnull)), (1, outputs[0]), (2, outputs[1])):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, flags, 0o600), number)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8")
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True
        )
        sys.dont_write_bytecode = True
        sys.argv = ["gpustate", *words]
        registry._registry = None
        entry()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 98
    except BaseException:  # noqa: BLE001  as Python itself would show it
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)
