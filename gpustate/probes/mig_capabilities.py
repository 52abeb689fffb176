"""The capability devices of MIG instances that /proc names: an sh fragment that probes and node programs share."""

from __future__ import annotations

from gpustate import shell

#: Prints ``cap=PATH NUMBERS 1 MODE NAME`` for each capability of an instance, with the major number of nvidia-caps in ``c``; those of
#: ``mig/config`` and ``mig/monitor``, which only programs that divide GPUs open, where their nodes are there.
CAPS = shell.load("mig_capabilities", "gpustate.probes")

__all__ = ["CAPS"]
