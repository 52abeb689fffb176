"""Files of the driver that are damaged though its packages are right, and device nodes that are.

A package of the right version says nothing of its files; of the nodes below /dev see ``model/device_nodes.py``.
"""

from __future__ import annotations

import shlex

from gpustate import ops, shell
from gpustate.probes import device_nodes
from gpustate.probes.driver_files import FILES
from gpustate.probes.package_files import absent_of, packages_of


def explain(library: str | None, damaged: tuple[str, ...]) -> bool:
    """NVML's library cannot be found because a file or a link is damaged, not because it is another."""
    return library is None and any("/libnvidia-ml.so." in row for row in damaged)


def files(damaged: tuple[str, ...]) -> ops.Run:
    """Make the links anew; where that is not enough, let apt unpack the packages again at their own versions."""
    return ops.Run(
        f"{FILES.checked()}set -- {shlex.join(absent_of(damaged))}\n"
        + shell.load("restore_files", "gpustate.states.driver"),
        f"restore files of {', '.join(packages_of(damaged))}",
        timeout=3600,
    )


def sources(damaged: tuple[str, ...], *, must: bool) -> ops.Run:
    """Unpack the sources that are missing, and nothing else: no script of their packages runs, and the modules stay.

    Without them DKMS fails at removing what it has built, and so do the scripts of the package at anything.

    Args:
        damaged: rows of sources.
        must: that they cannot be had is an error.
    """
    return ops.Run(
        f"{FILES.checked()}set -- {shlex.join(packages_of(damaged))}\n"
        + shell.load("restore_sources", "gpustate.states.driver", MUST="1" if must else ""),
        f"restore sources of {', '.join(packages_of(damaged))}",
        timeout=1800,
    )


def nodes() -> ops.Run:
    """Make device nodes as the driver would, with the owner and mode that its files in /proc say."""
    return ops.RunLive(
        device_nodes.make(device_nodes.NODES), "create NVIDIA's device nodes", timeout=60
    )


__all__ = ["FILES", "explain", "files", "nodes", "sources"]
