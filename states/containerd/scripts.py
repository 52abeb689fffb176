"""What the steps that change containerd ask of it on the node: its dump, and its CRI plugins."""

from __future__ import annotations

from collections.abc import Collection

from gpustate import shell

_PACKAGE = "gpustate.states.containerd"


def functions(
    program: str,
    version: str,
    root_path: str,
    socket: str,
    *,
    handler: str,
    binary: str,
    own_default: bool,
    runtimes: Collection[str] = (),
) -> str:
    """``dump``, ``others``, ``serves`` and ``working``, for :class:`gpustate.ops.daemons.Daemon`.

    Args:
        program, version, root_path: as observed.
        socket: where it answers.
        handler, binary: what is registered, or removed.
        own_default: the default runtime may change.
        runtimes: further runtimes that are gpustate's.
    """
    dump = {"CONTAINERD": program, "VERSION": version, "ROOT": root_path}
    default = "default_runtime_name" if own_default else "-"
    words = {
        "HANDLER": handler,
        "BINARY": binary,
        "OWN": " ".join({handler, *runtimes}),
        "OWN_DEFAULT": default,
    }
    return (
        shell.load("dump", _PACKAGE, **dump)
        + shell.load("functions", _PACKAGE, **words)
        + shell.load("containerd_working", "gpustate.runtimes", SOCKET=socket)
    )
