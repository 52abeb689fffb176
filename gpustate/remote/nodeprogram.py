"""The scripts that start and follow a program on a node.

Pure. The script of :func:`start_script` takes the lock, writes the program, starts it detached and follows
it; that of :func:`follow_script` only follows. Each runs in one exec and prints lines that begin with a
nonce (``begin``, ``refused WHY``, ``done``, ``died``), and the journal between them.
"""

from __future__ import annotations

import base64
import json
import shlex
from typing import TYPE_CHECKING, NotRequired, TypedDict

from gpustate import shell
from gpustate.core.encode import fingerprint
from gpustate.core.inventory import DEFAULT_STATE_FOLDER, InventoryNode
from gpustate.formats.masking import mask
from gpustate.ops import LIBRARY
from gpustate.remote import batch as batches

if TYPE_CHECKING:
    from gpustate.ops import Program


class LockInfo(TypedDict):
    """The lock of a node as it is written there; a person's has no process, no plan and no ticket."""

    run: str
    holder: str
    pid: int
    reason: str
    since: int
    expires: int
    born: NotRequired[str]
    plan: NotRequired[str]
    ticket: NotRequired[str]


def archive(
    run: str, program: Program, node: InventoryNode, lock: LockInfo, keep_lock: bool
) -> str:
    """Return a script that writes all files of a program into ``$R``, with holder and reason."""
    return _shell_archive(
        {
            "library": LIBRARY,
            **program.files,
            "program": _program_text(run, program, node, str(lock["run"]), keep_lock),
            "info": json.dumps(lock, sort_keys=True) + "\n",
            "steps.json": json.dumps(
                [{"state": state, "label": mask(step.label)} for state, step in program.steps]
            ),
            "complete": "yes\n",
        }
    )


def start_script(
    run: str,
    node: InventoryNode,
    nonce: str,
    size: int,
    lock: LockInfo,
    *,
    take_over: str | None,
    after: str | None,
) -> str:
    """Return the script that starts a program; the archive of ``size`` compressed bytes follows it."""
    words = {
        "NONCE": nonce,
        "RUN": shlex.quote(run),
        "SIZE": str(size),
        "LOCK": shlex.quote(json.dumps(lock, sort_keys=True)),
        "LOCKRUN": shlex.quote(str(lock["run"])),
        "EXPIRES": str(int(lock["expires"])),
        "TAKE": shlex.quote(take_over or "-"),
        "AFTER": shlex.quote(after or "-"),
        "TOKEN": nonce.rpartition("-")[2],
        "UNIT": _unit_suffix(node),
        "OFFSET": "0",
    }
    return batches.prologue(node) + shell.fill(_START, **words)


def follow_script(run: str, node: InventoryNode, nonce: str, offset: int) -> str:
    """Return the script that follows a program from a byte offset; refuses an unknown run."""
    return (
        batches.prologue(node)
        + f"RUN={shlex.quote(run)}; R=$G/runs/$RUN; N={nonce}; O={offset}\nprintf '\\n%s begin\\n' $N\n"
        + f"[ -d $R ] || {{ printf '%s refused no-run\\n' $N; exit 1; }}\n{_FOLLOW}"
    )


def _program_text(
    run: str, program: Program, node: InventoryNode, lock: str, keep_lock: bool
) -> str:
    folder, proc, sys_root = map(shlex.quote, (node.state_folder, node.proc_root, node.sys_root))
    return (
        f"G={folder}; RUN={shlex.quote(run)}; R=$G/runs/$RUN; LOCK={shlex.quote(lock)}\n"
        f"PROC={proc}; SYS={sys_root}; KEPT_PACKAGES={'1' if node.goes_back else ''}\n"
        + ("KEEP_LOCK=1\n" if keep_lock else "")
        + shell.load("program", "gpustate.remote")
        + program.text
    )


def _unit_suffix(node: InventoryNode) -> str:
    """Distinguish units where several state folders share one systemd."""
    folder = node.state_folder
    return "" if folder == DEFAULT_STATE_FOLDER else f"-{fingerprint(folder)}"


def _shell_archive(files: dict[str, str]) -> str:
    """Return a script that writes files into ``$R``; their content is base64, never executed."""
    parts = []
    for name, text in files.items():
        data = base64.encodebytes(text.encode("utf-8", "surrogateescape")).decode("ascii")
        parts.append(f"base64 -d >$R/{name} <<'END' || exit 75\n{data}END\n")
    return "".join(parts)


# What runs in the exec that starts a program. Order matters: everything must have arrived before anything
# is done, then lock, then files, then start, then follow. The connection may break anywhere, and what was
# sent over it may arrive much later, or while a second attempt for the same run is under way: whatever a
# controller knew when it looked is checked again under the lock, and nothing of another attempt is touched.
_START = shell.load("start", "gpustate.remote")

# Follows the journal until the program is gone. A line on standard input asks the program to stop
# after its current step; the end of input asks for nothing.
_FOLLOW = shell.load("follow", "gpustate.remote")
_FOLLOW = "exec 3<&0\n" + _FOLLOW
_START = _START + _FOLLOW
