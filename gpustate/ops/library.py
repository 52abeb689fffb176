"""The sh functions that every node program begins with.

POSIX sh and coreutils only. A program is a list of blocks, one for each state, each a list of
steps. Every step is announced in the journal before it starts (intent), tells what it did
(effect) and how it ended (result); each entry is forced to disk before the program goes on, so
whoever reads the journal after a power cut knows what may have happened.

Files are written to a temporary file in the same folder, forced to disk, renamed, and the folder
forced to disk; one that a kill left behind is removed by the next program. The bytes a file had before are kept: for the run in ``$R/pre`` (roll-back), and,
once, as they were before gpustate ever touched the file in ``$G/originals`` (removal). Folders that were
made for a file are noted in ``$G/folders``; with the last file in them they go, unless a package has come to
own them.

Expects ``G`` (state folder), ``R`` (folder of this run), ``LOCK`` (whose lock it runs under),
``PROC`` and ``SYS`` to be set.
"""

import hashlib

from gpustate import shell
from gpustate.ops.filelocks import FILE_LOCKS
from gpustate.ops.packages import PACKAGES
from gpustate.ops.reloads import GPU_SCOPES
from gpustate.ops.rpmpackages import RPM_PACKAGES
from gpustate.ops.running import RUNNING
from gpustate.ops.upload import ONLY_BUNDLE


def original_path(path: str) -> str:
    """Where the bytes are kept that a file had before gpustate; whose they are is in the file ``.path`` beside it."""
    return f"/var/lib/gpustate/originals/{hashlib.sha256(path.encode()).hexdigest()[:24]}"


LIBRARY = (
    shell.load("library_environment", "gpustate.ops")
    + ONLY_BUNDLE
    + shell.load("library", "gpustate.ops")
    + RUNNING
    + FILE_LOCKS
    + PACKAGES
    + RPM_PACKAGES
    + GPU_SCOPES
    + shell.load("library_services", "gpustate.ops")
)
