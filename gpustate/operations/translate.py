"""Translate the commands of pyinfra into steps."""

from __future__ import annotations

import hashlib
import shlex
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

from gpustate.documents import Json, JsonView
from gpustate.errors import RefusedError
from gpustate.formats import masking
from gpustate.operations import steps
from gpustate.operations.steps import PlannedCommand

#: Default timeout of a command in seconds; pyinfra has none.
_TIMEOUT_S = 1800
#: Maximum size of an uploaded file, which is part of the node program.
_LARGEST = 16 << 20
#: Arguments that change the command itself.
_UNIX = (
    *("_env", "_chdir", "_sudo", "_sudo_user", "_use_sudo_login", "_preserve_sudo_env"),
    *("_su_user", "_use_su_login", "_preserve_su_env", "_su_shell"),
)


@dataclass(frozen=True, slots=True)
class Global:
    """The supported arguments common to all operations.

    Args:
        unix: arguments that change the command.
        shell: the shell that runs it.
        timeout_s: seconds; 0: unset.
        ok: exit codes that count as success.
        ignore_errors: failures are ignored.
        stdin: lines of standard input.
    """

    unix: JsonView = field(default_factory=Json)
    shell: str = "sh"
    timeout_s: int = 0
    ok: tuple[int, ...] = (0,)
    ignore_errors: bool = False
    stdin: tuple[str, ...] = ()

    @classmethod
    def of(cls, arguments: JsonView) -> Global:
        """Read pyinfra's arguments."""
        unix = {key: arguments[key] for key in _UNIX if arguments.get(key)}
        login = ("_use_sudo_login", "_preserve_sudo_env")
        if unix.get("_sudo_user") in (None, "root") and not any(unix.get(key) for key in login):
            # Commands run as root anyway.
            unix.pop("_sudo", None)
            unix.pop("_sudo_user", None)
        elif unix.get("_sudo_user"):
            unix["_sudo"] = True
        lines = arguments.get("_stdin") or ()
        return cls(
            unix,
            arguments.get("_shell_executable") or "sh",
            int(arguments.get("_timeout") or 0),
            tuple(int(code) for code in arguments.get("_success_exit_codes") or (0,)),
            bool(arguments.get("_ignore_errors")),
            (lines,) if isinstance(lines, str) else tuple(map(str, lines)),
        )

    @property
    def user(self) -> str:
        """The user that runs the command; empty: root."""
        return str(self.unix.get("_su_user") or self.unix.get("_sudo_user") or "")

    def over(self, more: JsonView) -> Global:
        """Return these arguments, overridden by those of one command."""
        if not more:
            return self
        overrides = Global.of(more)
        return replace(
            self,
            unix={**self.unix, **overrides.unix},
            shell=overrides.shell if "_shell_executable" in more else self.shell,
            timeout_s=overrides.timeout_s or self.timeout_s,
            ok=overrides.ok if more.get("_success_exit_codes") else self.ok,
            stdin=overrides.stdin or self.stdin,
        )


def unix(command: Any, options: Global, *, for_sh: bool = False) -> str:
    """Return a command for sh, with user, environment, directory and shell; it includes secrets.

    Args:
        command: of pyinfra.
        options: arguments of the operation.
        for_sh: sh evaluates the result, so no shell is started for a command that needs only sh.
    """
    plain = for_sh and options.shell == "sh" and not options.user and "_sudo" not in options.unix
    # None starts no shell; pyinfra accepts it, against its annotation.
    shell: Any = None if plain else options.shell
    line = make_unix_command(
        command if isinstance(command, StringCommand) else StringCommand(str(command)),
        _shell_executable=shell,
        **options.unix,
    )
    return line.get_raw_value()


def planned(command: Any, options: Global, *, repeats: bool) -> PlannedCommand:
    """Translate one command of an operation.

    Args:
        command: of pyinfra, or its text.
        options: arguments of the operation.
        repeats: the operation is not idempotent.

    Raises:
        RefusedError: the command cannot be a step.
    """
    if isinstance(command, str):
        command = StringCommand(command.strip())
    options = options.over(command.connector_arguments)
    if isinstance(command, StringCommand):
        return _run(command, options, repeats)
    if isinstance(command, FileUploadCommand):
        return _upload(command, options, repeats)
    if isinstance(command, FunctionCommand):
        raise RefusedError(
            f"runs the Python function {command.function.__name__} on the controller, which a node program cannot do",
            fix="use a command (server.shell) instead, or write a state",
        )
    if isinstance(command, RsyncCommand):
        raise RefusedError(
            "runs rsync on the controller, which a node program cannot do",
            fix="use files.put or files.sync",
        )
    if isinstance(command, FileDownloadCommand):
        raise RefusedError(
            f"downloads {command.src} to the controller; states change the node only",
            fix=f"copy it yourself: scp root@NODE:{command.src} .",
        )
    raise RefusedError(f"yields a {type(command).__name__}, which is not supported")


def _run(command: StringCommand, options: Global, repeats: bool) -> PlannedCommand:
    secrets = _secrets(command)
    for secret in secrets:
        text = secret.unmask() if isinstance(secret, HiddenValue) else str(secret)
        masking.remember([text, shlex.quote(text)])
    raw = unix(command, options)
    environment = " ".join(map(str, options.unix.get("_env", {}).values()))
    display = masking.mask(command.get_masked_value())
    step = steps.run(
        raw,
        display,
        timeout_s=options.timeout_s or _TIMEOUT_S,
        ok=options.ok,
        ignore_errors=options.ignore_errors,
        stdin=options.stdin,
        secret=bool(secrets)
        or masking.contains_secret(command.get_raw_value())
        or masking.contains_secret(environment),
    )
    user = f" (as {options.user})" if options.user else ""
    return PlannedCommand(f"{display}{user}", (step,), steps.disruption(display), repeats)


def _upload(command: FileUploadCommand, options: Global, repeats: bool) -> PlannedCommand:
    with get_file_io(command.src) as file:
        content = file.read()
    data = content.encode() if isinstance(content, str) else bytes(content)
    path = str(command.dest)
    if len(data) > _LARGEST:
        raise RefusedError(
            f"uploads {len(data) >> 20} MiB to {path}; the maximum is {_LARGEST >> 20} MiB",
            fix="download it on the node (files.download)",
        )
    if not path.startswith("/"):
        raise RefusedError(
            f"uploads to {path}, which is not an absolute path", fix="start the path with /"
        )
    secret = masking.contains_secret(data.decode("utf-8", "replace"))
    step = steps.write(path, data, owner=options.user, secret=secret)
    digest = "" if secret else f", sha256 {hashlib.sha256(data).hexdigest()[:16]}"
    return PlannedCommand(f"upload {path} ({len(data)} bytes{digest})", (step,), repeats=repeats)


def _secrets(command: StringCommand) -> list[Any]:
    """Return the masked values in a command."""
    secrets: list[Any] = []
    for bit in command.bits:
        inner = bit.obj if isinstance(bit, QuoteString) else bit
        if isinstance(inner, StringCommand):
            secrets += _secrets(inner)
        elif _is_secret(inner):
            secrets.append(inner)
    return secrets


def _is_secret(value: object) -> bool:
    return isinstance(value, HiddenValue | MaskString)
