"""Operations and deploys by dotted name, and their arguments as plain data."""

from __future__ import annotations

import base64
import difflib
import importlib
import inspect
import io
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pyinfra.api.arguments import all_argument_meta
from pyinfra.api.command import MaskString
from pyinfra.api.hiddenvalue import HiddenValue

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats import masking
from gpustate.formats.words import quote

#: Package of pyinfra's operations: ``apt.packages`` is looked up in it first.
_PYINFRA_PREFIX = "pyinfra.operations."
#: Values that JSON and YAML lack: each is a mapping with one of these keys.
TEXT, BYTES, SECRET = "$text", "$base64", "$secret"

#: Arguments of every operation that are supported in a policy.
SUPPORTED = frozenset(
    (
        *("_sudo", "_sudo_user", "_use_sudo_login", "_preserve_sudo_env"),
        *("_su_user", "_use_su_login", "_preserve_su_env", "_su_shell"),
        *("_shell_executable", "_chdir", "_env", "_success_exit_codes", "_timeout", "_stdin"),
        "_ignore_errors",
    )
)
_FLEET = "use --serial and --forks of apply"
_ROOT = "commands run as root; for another user set _sudo_user or _su_user"
_FUNCTION = (
    "a policy has no functions; set `unless` to a command that exits 0 if nothing is to be done"
)
#: Fixes for the unsupported ones.
_REFUSED = {
    "name": "remove it; the state has a name",
    "_if": _FUNCTION,
    "_retry_until": _FUNCTION,
    "_parallel": _FLEET,
    "_run_once": _FLEET,
    "_serial": _FLEET,
    "_sudo_password": _ROOT,
    "_su_password": _ROOT,
    "_doas": _ROOT,
    "_doas_user": "use _sudo_user or _su_user",
    "_dzdo": _ROOT,
    "_dzdo_user": "use _sudo_user or _su_user",
    "_get_pty": "remove it; steps run without a terminal",
    "_retries": "remove it; after a failure apply again, completed steps are not repeated",
    "_retry_delay": "remove it; after a failure apply again, completed steps are not repeated",
    "_continue_on_error": "remove it, or use _ignore_errors",
    "_temp_dir": "remove it; temporary files are in /var/lib/gpustate-pyinfra",
}


def find(name: str) -> Any:
    """Return the operation or deploy with a dotted name.

    Raises:
        PolicyError: it does not exist.
    """
    module, _, function = name.rpartition(".")
    if not module:
        raise PolicyError(
            f"{quote(name)} is not a dotted name of an operation",
            fix="write MODULE.OPERATION, such as apt.packages",
        )
    for full in (f"{_PYINFRA_PREFIX}{module}", module):
        try:
            loaded = importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name is not None and (full == error.name or full.startswith(f"{error.name}.")):
                continue
            raise PolicyError(f"{name}: cannot import {full}: {error}") from error
        except Exception as error:
            raise PolicyError(
                f"{name}: cannot import {full}: {type(error).__name__}: {error}"
            ) from error
        operation = getattr(loaded, function, None)
        if is_operation(operation):
            return operation
        available = [key for key, value in vars(loaded).items() if is_operation(value)]
        near = difflib.get_close_matches(function, available, 1)
        raise PolicyError(
            f"{full} has no operation {quote(function)}",
            fix=f"did you mean {module}.{near[0]}"
            if near
            else f"available: {', '.join(sorted(available))}",
        )
    raise PolicyError(
        f"no module {quote(module)} with operations in pyinfra or on the import path",
        fix="see the list of operations at https://docs.pyinfra.com",
    )


def is_operation(value: object) -> bool:
    """Whether a value is an operation or a deploy."""
    inner = getattr(value, "_inner", None)
    return hasattr(inner, "is_idempotent") or hasattr(inner, "deploy_name")


def name_of(function: object) -> str:
    """Return the dotted name of an operation or a deploy.

    Raises:
        PolicyError: it is neither, or cannot be imported by its name.
    """
    if isinstance(function, str):
        return function
    if not is_operation(function):
        raise PolicyError(
            f"{quote(function)} is neither an operation nor a deploy of pyinfra",
            fix="pass the function, as in Operation(apt.packages, packages=['curl'])",
        )
    module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__name__", ""))
    dotted = f"{module}.{name}".removeprefix(_PYINFRA_PREFIX)
    try:
        imported = find(dotted)
    except PolicyError:
        imported = None
    if imported is not function:
        raise PolicyError(
            f"cannot import {dotted} by its name",
            fix="define it at the top level of a module on the import path, not in the policy file",
        )
    return dotted


def check(name: str, arguments: JsonView) -> None:
    """Validate the arguments of an operation against its signature.

    Raises:
        PolicyError: an argument is unknown, missing or unsupported.
    """
    function = find(name)
    operation_arguments: Json = {}
    for key, value in arguments.items():
        if key not in all_argument_meta:
            operation_arguments[key] = value
        elif key not in SUPPORTED:
            raise PolicyError(f"{name}: {key} is not supported", fix=_REFUSED.get(key, "remove it"))
    signature = inspect.signature(function._inner)
    try:
        signature.bind(**operation_arguments)
    except TypeError as error:
        parameters = [key for key in signature.parameters if not key.startswith("_")]
        raise PolicyError(f"{name}: {error}", fix=f"parameters: {', '.join(parameters)}") from None


def encoded(value: Any, place: str) -> Any:
    """Return an argument as plain JSON data.

    Raises:
        PolicyError: it has no JSON form.
    """
    if isinstance(value, HiddenValue):
        return {SECRET: str(value.raw_value)}
    if isinstance(value, MaskString):
        return {SECRET: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, io.StringIO):
        return {TEXT: value.getvalue()}
    if isinstance(value, io.BytesIO):
        return {BYTES: base64.b64encode(value.getvalue()).decode("ascii")}
    if isinstance(value, Mapping):
        return {str(key): encoded(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item, place) for item in value]
    if isinstance(value, set | frozenset):
        return [encoded(item, place) for item in sorted(value, key=str)]
    raise PolicyError(
        f"{place}: {type(value).__name__} is not supported in a policy",
        fix="use strings, numbers, lists, mappings, or a StringIO for the content of a file",
    )


def decoded(value: Any) -> Any:
    """Return the argument for plain data; secrets are registered for masking."""
    if isinstance(value, Mapping):
        if len(value) == 1:
            key, item = next(iter(value.items()))
            if key == TEXT:
                return io.StringIO(str(item))
            if key == BYTES:
                return io.BytesIO(base64.b64decode(str(item)))
            if key == SECRET:
                # A string: operations that do not support HiddenValue would write "*MASKED*".
                masking.remember([str(item), shlex.quote(str(item))])
                return str(item)
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list | tuple) else value
