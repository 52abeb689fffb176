"""Steps a state may yield, as plain data, and the program they are compiled into.

The steps are imported when the first one is made: most runs find nothing to do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpustate.ops.library import LIBRARY

if TYPE_CHECKING:
    from gpustate.ops.apt import AptHold, AptInstall, AptRemove, AptUpdate
    from gpustate.ops.families import hold, install, reinstall, remove
    from gpustate.ops.program import Before, Block, Program, compile_program
    from gpustate.ops.rpm import RpmHold, RpmInstall, RpmRemove, RpmUpdate
    from gpustate.ops.steps import (
        ForgetOriginal,
        KeepOriginal,
        LoadModules,
        PutText,
        Reboot,
        RebuildInitramfs,
        RemoveFile,
        RemoveOwn,
        RestoreOriginal,
        Run,
        RunLive,
        UnloadModules,
        put_own,
    )
    from gpustate.ops.units import DaemonReload, DisableUnit, EnableUnit, RestartUnit, StartUnit
    from gpustate.ops.upload import Upload

__all__ = [
    "LIBRARY",
    "AptHold",
    "AptInstall",
    "AptRemove",
    "AptUpdate",
    "Before",
    "Block",
    "DaemonReload",
    "DisableUnit",
    "EnableUnit",
    "ForgetOriginal",
    "KeepOriginal",
    "LoadModules",
    "Program",
    "PutText",
    "Reboot",
    "RebuildInitramfs",
    "RemoveFile",
    "RemoveOwn",
    "RestartUnit",
    "RestoreOriginal",
    "RpmHold",
    "RpmInstall",
    "RpmRemove",
    "RpmUpdate",
    "Run",
    "RunLive",
    "StartUnit",
    "UnloadModules",
    "Upload",
    "compile_program",
    "hold",
    "install",
    "put_own",
    "reinstall",
    "remove",
]


_ROOMS = ("steps", "units", "apt", "rpm", "families", "upload", "program")


def __getattr__(name: str) -> Any:
    if name in __all__:
        modules = (importlib.import_module(f"gpustate.ops.{room}") for room in _ROOMS)
        value = next(getattr(module, name) for module in modules if hasattr(module, name))
        globals()[name] = value  # the next one is asked for without this function
        return value
    raise AttributeError(f"module 'gpustate.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
