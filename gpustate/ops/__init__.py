"""Steps a state may yield, as plain data, and the program they are compiled into.

The steps are imported when the first one is made: most runs find nothing to do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gpustate.ops.library import LIBRARY

if TYPE_CHECKING:
    from gpustate.ops.families import hold, install, reinstall, remove
    from gpustate.ops.program import Before, Block, Program, compile_program
    from gpustate.ops.steps import (
        AptHold,
        AptInstall,
        AptRemove,
        AptUpdate,
        DaemonReload,
        DisableUnit,
        EnableUnit,
        ForgetOriginal,
        KeepOriginal,
        LoadModules,
        PutText,
        Reboot,
        RebuildInitramfs,
        RemoveFile,
        RemoveOwn,
        RestartUnit,
        RestoreOriginal,
        RpmHold,
        RpmInstall,
        RpmRemove,
        RpmUpdate,
        Run,
        StartUnit,
        UnloadModules,
        Upload,
    )

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
    "StartUnit",
    "UnloadModules",
    "Upload",
    "compile_program",
    "hold",
    "install",
    "reinstall",
    "remove",
]


_FAMILIES = ("hold", "install", "reinstall", "remove")
_PROGRAM = ("Before", "Block", "Program", "compile_program")


def __getattr__(name: str) -> Any:
    if name in __all__:
        room = "program" if name in _PROGRAM else "families" if name in _FAMILIES else "steps"
        return getattr(importlib.import_module(f"gpustate.ops.{room}"), name)
    raise AttributeError(f"module 'gpustate.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
