"""Steps for the commands of pyinfra operations."""

from __future__ import annotations

import base64
import re
import shlex
from dataclasses import dataclass
from typing import ClassVar

from gpustate.core.change import Disruption
from gpustate.core.step import Step
from gpustate.formats.words import cut
from gpustate.ops import PutText, Run

#: Directory of files that only the next command of an operation reads. Other users may access files in it by
#: name but not list it; only root can create or replace files.
TEMPORARY = "/var/lib/gpustate-pyinfra"

_CALLS = (
    r"\b(?:systemctl (?:--?\S+ )*(?:{0})\b|service \S+ (?:{0})\b|(?:rc-service|initctl) (?:\S+ )?(?:{0})\b"
    r"|/etc/(?:init\.d|rc\.d)/\S+ (?:{0})\b)"
)
_RESTARTS = re.compile(_CALLS.format("restart|try-restart|stop|kill|force-reload"))
_RELOADS = re.compile(_CALLS.format("reload|reload-or-restart"))
#: Commands that need a running system. pyinfra checks with a running systemd whether a unit is enabled.
_RUNNING = re.compile(
    r"\b(?:systemctl|service|rc-service|rc-update|initctl|hostnamectl|timedatectl|modprobe|mount|umount|swapon)\s"
    r"|\bsysctl \S"
)
_LABEL = 100
#: Environment that an SSH login sets and systemd does not.
_AT_HOME = 'HOME=${HOME:-/root}; export HOME; cd "$HOME" 2>/dev/null || cd /\n'


@dataclass(frozen=True, slots=True)
class PyinfraCommand(Run):
    """A command of an operation; with ``secret``, neither it nor its output is kept."""

    secret: bool = False


class _LiveCommand(PyinfraCommand):
    """One that means something on a running system only."""

    for_running: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class WriteTemporary(Step):
    """Write a file that only the operation's next command reads.

    Args:
        path: below :data:`TEMPORARY`.
        content: in base64.
        mode: permission bits.
        secret: the content has a secret.
    """

    path: str
    content: str
    mode: int
    secret: bool = False

    @property
    def label(self) -> str:
        return f"write {self.path}"

    def script(self) -> str:
        path = shlex.quote(self.path)
        return (
            f"mkdir -p -m 0711 {TEMPORARY}; rm -f {path}; umask 077\n"
            f"base64 -d >{path} <<'END'\n{self.content}END\n"
            f"chmod {self.mode:04o} {path}; effect wrote\n"
        )


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One command that an operation yields.

    Args:
        display: the command without secrets.
        steps: the steps that run it.
        disruption: estimated from the text of the command.
        repeats: not idempotent: it is planned again after it ran.
    """

    display: str
    steps: tuple[Step, ...]
    disruption: Disruption = Disruption.NONE
    repeats: bool = False


def run(
    text: str,
    display: str,
    *,
    timeout_s: int,
    ok: tuple[int, ...],
    ignore_errors: bool,
    stdin: tuple[str, ...],
    secret: bool,
) -> PyinfraCommand:
    """Return the step that runs a command.

    Args:
        text: sh, with its own shell and user.
        display: the command without secrets.
        timeout_s: seconds.
        ok: exit codes that count as success.
        ignore_errors: a failure is printed and ignored.
        stdin: lines of standard input.
        secret: the command has a secret.
    """
    script = text
    if stdin:
        script = f"printf '%s\\n' {shlex.join(stdin)} | {{ {script}\n}}"
    if ignore_errors:
        script = f'rc=0; {{ {script}\n}} || rc=$?; [ $rc = 0 ] || echo "ended with $rc, which is ignored"'
    elif ok != (0,):
        codes = "|".join(map(str, ok))
        script = f"rc=0; {{ {script}\n}} || rc=$?; case $rc in {codes}) ;; *) exit $rc ;; esac"
    enter = leave = ""
    if TEMPORARY in text:
        enter = f"mkdir -p -m 0711 {TEMPORARY}\n"
        leave = f"\nrmdir {TEMPORARY} 2>/dev/null || :"
    label = f"run {_short(display)}"
    kind = _LiveCommand if _RUNNING.search(display) else PyinfraCommand
    return kind(
        f"{_AT_HOME}{enter}{script}{leave}\neffect ran\n",
        label,
        timeout_s,
        shown="" if secret else display,
        secret=secret,
    )


def write(path: str, content: bytes, *, owner: str, secret: bool) -> Step:
    """Return the step that writes a file.

    Args:
        path: absolute.
        content: the whole content.
        owner: owner of a new file; empty: root. An existing file keeps owner and mode.
        secret: the content has a secret.
    """
    if path.startswith(f"{TEMPORARY}/"):
        data = base64.encodebytes(content).decode("ascii")
        return WriteTemporary(path, data, 0o644 if owner else 0o600, secret)
    text = content.decode("utf-8", "surrogateescape")
    if secret:
        return PutText(path, text, 0o600, f"{owner}:" if owner else "root:root", secret=True)
    return PutText(path, text, owner=f"{owner}:" if owner else None)


def disruption(display: str) -> Disruption:
    """Estimate the disruption of a command from its text."""
    if _RESTARTS.search(display):
        return Disruption.RESTART
    return Disruption.RELOAD if _RELOADS.search(display) else Disruption.NONE


def _short(text: str) -> str:
    return cut(" ".join(text.split()), _LABEL)
