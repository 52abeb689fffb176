"""From the commands of pyinfra to steps."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyinfra.api.command import (
    FileDownloadCommand,
    FileUploadCommand,
    FunctionCommand,
    MaskString,
    QuoteString,
    RsyncCommand,
    StringCommand,
)
from pyinfra.api.hiddenvalue import HiddenValue
from pyinfra.api.util import get_file_io
from pyinfra.connectors.util import make_unix_command

from gpustate.errors import RefusedError
from gpustate.formats import masking
from gpustate.operations import steps
from gpustate.operations.steps import PlannedCommand

#: Seconds that a command may take where nobody says otherwise; pyinfra sets no limit.
_TIMEOUT_S = 1800
#: Bytes of a file that travel within a program.
_LARGEST = 16 << 20
#: Arguments that change the command itself.
_UNIX = (
    *("_env", "_chdir", "_sudo", "_sudo_user", "_use_sudo_login", "_preserve_sudo_env"),
    *("_su_user", "_use_su_login", "_preserve_su_env", "_su_shell"),
)


@dataclass(frozen=True, slots=True)
class Global:
    """The arguments common to all operations, as far as they are supported.

    Args:
        unix: those that change the command.
        shell: the program that runs it.
        timeout_s: seconds; 0: not given.
        ok: exit codes that are a success.
        ignore_errors: a failure does not count.
        stdin: lines of standard input.
    """

    unix: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shell: str = "sh"
    timeout_s: int = 0
    ok: tuple[int, ...] = (0,)
    ignore_errors: bool = False
    stdin: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Global:
        """Read pyinfra's arguments."""
        unix = {key: given[key] for key in _UNIX if given.get(key)}
        own = ("_use_sudo_login", "_preserve_sudo_env")
        if unix.get("_sudo_user") in (None, "root") and not any(unix.get(key) for key in own):
            # Everything runs as root.
            unix.pop("_sudo", None)
            unix.pop("_sudo_user", None)
        elif unix.get("_sudo_user"):
            unix["_sudo"] = True
        lines = given.get("_stdin") or ()
        return cls(
            unix,
            given.get("_shell_executable") or "sh",
            int(given.get("_timeout") or 0),
            tuple(int(code) for code in given.get("_success_exit_codes") or (0,)),
            bool(given.get("_ignore_errors")),
            (lines,) if isinstance(lines, str) else tuple(map(str, lines)),
        )

    @property
    def user(self) -> str:
        """Who runs it; empty: root."""
        return str(self.unix.get("_su_user") or self.unix.get("_sudo_user") or "")

    def over(self, more: Mapping[str, Any]) -> Global:
        """The same with what one command brings of its own."""
        if not more:
            return self
        own = Global.of(more)
        return replace(
            self,
            unix={**self.unix, **own.unix},
            shell=own.shell if "_shell_executable" in more else self.shell,
            timeout_s=own.timeout_s or self.timeout_s,
            ok=own.ok if more.get("_success_exit_codes") else self.ok,
            stdin=own.stdin or self.stdin,
        )


def unix(command: Any, given: Global, *, bare: bool = False) -> str:
    """The command for sh, with its user, environment, folder and shell; secrets are in it.

    Args:
        command: pyinfra's.
        given: arguments.
        bare: sh itself reads it, so that no shell has to be started where sh is what it wants.
    """
    plain = bare and given.shell == "sh" and not given.user and "_sudo" not in given.unix
    # None: no shell of its own. pyinfra's annotation says less than it takes.
    shell: Any = None if plain else given.shell
    made = make_unix_command(
        command if isinstance(command, StringCommand) else StringCommand(str(command)),
        _shell_executable=shell,
        **given.unix,
    )
    return made.get_raw_value()


def planned(command: Any, given: Global, *, repeats: bool) -> PlannedCommand:
    """What one command of an operation is here.

    Args:
        command: pyinfra's, or its text.
        given: the operation's arguments.
        repeats: the operation does not look whether it is needed.

    Raises:
        RefusedError: it cannot be a step.
    """
    if isinstance(command, str):
        command = StringCommand(command.strip())
    given = given.over(command.connector_arguments)
    if isinstance(command, StringCommand):
        return _run(command, given, repeats)
    if isinstance(command, FileUploadCommand):
        return _upload(command, given, repeats)
    if isinstance(command, FunctionCommand):
        raise RefusedError(
            f"calls the Python function {command.function.__name__} on this machine while it changes the node, "
            "which a node program cannot wait for",
            fix="write what it does as a command (server.shell), or as a state of your own",
        )
    if isinstance(command, RsyncCommand):
        raise RefusedError(
            "starts rsync on this machine, which a node program cannot wait for",
            fix="use files.put or files.sync",
        )
    if isinstance(command, FileDownloadCommand):
        raise RefusedError(
            f"brings {command.src} to this machine, and a state changes the node only",
            fix=f"copy it with scp: scp root@NODE:{command.src} .",
        )
    raise RefusedError(f"yields a {type(command).__name__}, which is not a command known here")


def _run(command: StringCommand, given: Global, repeats: bool) -> PlannedCommand:
    secrets = _secrets(command)
    for one in secrets:
        text = one.unmask() if isinstance(one, HiddenValue) else str(one)
        masking.remember([text, shlex.quote(text)])
    raw = unix(command, given)
    environment = " ".join(map(str, given.unix.get("_env", {}).values()))
    shown = masking.masked(command.get_masked_value())
    step = steps.run(
        raw,
        shown,
        timeout_s=given.timeout_s or _TIMEOUT_S,
        ok=given.ok,
        ignore_errors=given.ignore_errors,
        stdin=given.stdin,
        secret=bool(secrets)
        or masking.contains_secret(command.get_raw_value())
        or masking.contains_secret(environment),
    )
    who = f" (as {given.user})" if given.user else ""
    return PlannedCommand(f"{shown}{who}", (step,), steps.disruption(shown), repeats)


def _upload(command: FileUploadCommand, given: Global, repeats: bool) -> PlannedCommand:
    with get_file_io(command.src) as file:
        content = file.read()
    data = content.encode() if isinstance(content, str) else bytes(content)
    path = str(command.dest)
    if len(data) > _LARGEST:
        raise RefusedError(
            f"uploads {len(data) >> 20} MiB to {path}, and at most {_LARGEST >> 20} MiB travel in a program",
            fix="let the node fetch it (files.download)",
        )
    if not path.startswith("/"):
        raise RefusedError(
            f"uploads to {path}, which is not an absolute path", fix="name it from /"
        )
    secret = masking.contains_secret(data.decode("utf-8", "replace"))
    step = steps.write(path, data, owner=given.user, secret=secret)
    digest = "" if secret else f", sha256 {hashlib.sha256(data).hexdigest()[:16]}"
    return PlannedCommand(f"upload {path} ({len(data)} bytes{digest})", (step,), repeats=repeats)


def _secrets(command: StringCommand) -> list[Any]:
    """Values in a command that pyinfra was told to mask."""
    found: list[Any] = []
    for bit in command.bits:
        inner = bit.obj if isinstance(bit, QuoteString) else bit
        if isinstance(inner, StringCommand):
            found += _secrets(inner)
        elif _is_secret(inner):
            found.append(inner)
    return found


def _is_secret(value: object) -> bool:
    return isinstance(value, HiddenValue | MaskString)
