"""Run a policy in a Python file, and report errors with its lines.

The file runs in a separate namespace with the permissions of the user, like a Makefile: review a foreign policy
before using it.
"""

from __future__ import annotations

import sys
from types import ModuleType, TracebackType
from typing import Any

from pydantic import ValidationError

from gpustate.core.parameter_errors import describe_error
from gpustate.core.policy import Policy, explain
from gpustate.core.state import AnyState, State
from gpustate.documents import Json
from gpustate.errors import GpustateError, PolicyError
from gpustate.manifests import cluster_part

VARIABLE = "policy"


def run(text: str, path: str) -> Policy:
    """Run a policy file and return its ``policy``.

    Raises:
        PolicyError: any error, with the line of the file that caused it.
    """
    try:
        code = compile(text, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise PolicyError(
            f"is not Python: {error.msg}", place=f"{path}:{error.lineno or 1}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise PolicyError(f"is not Python: {error or 'nested too deep'}", place=path) from error
    # Registered as a module, because dataclasses look up the module of a class by name.
    module = ModuleType("gpustate_policy")
    module.__file__ = path
    sys.modules[module.__name__] = module
    namespace = module.__dict__
    try:
        exec(code, namespace)
        policy = _find_policy(namespace, path)
        if policy.cluster is not None:
            cluster_part.check(cluster_part.settings_of(policy), {(cluster_part.SECTION,): path})
    except (Exception, SystemExit) as error:
        raise _explained(error, path) from error
    return policy


def _find_policy(namespace: Json, path: str) -> Policy:
    if VARIABLE not in namespace:
        policies = sorted(name for name, value in namespace.items() if isinstance(value, Policy))
        hint = (
            f"rename {policies[0]!r} to 'policy'"
            if policies
            else "end it with: policy = Policy(...)"
        )
        raise PolicyError("defines no 'policy'", place=path, fix=hint)
    policy = namespace[VARIABLE]
    if not isinstance(policy, Policy):
        raise PolicyError(
            f"'policy' is a {type(policy).__name__}, wanted a gpustate.Policy",
            place=path,
            fix="write: policy = Policy(...)",
        )
    return policy


def _explained(error: BaseException, path: str) -> GpustateError:
    line = _line(error.__traceback__, path)
    place = f"{path}:{line}" if line is not None else path
    if isinstance(error, GpustateError):
        if isinstance(error, PolicyError) and error.place is None:
            return PolicyError(error.message, place=place, fix=error.fix)
        return error
    if isinstance(error, ValidationError):
        cls = _state_called(error.title)
        message = f"{cls.name}: {explain(error, cls)}" if cls is not None else _first(error)
        return PolicyError(message, place=place)
    if isinstance(error, SyntaxError):  # in a module that the policy imports
        module = f"{error.filename}:{error.lineno}"
        return PolicyError(f"imports {module}, which is not Python: {error.msg}", place=place)
    fix = None
    if isinstance(error, ModuleNotFoundError):
        fix = "put a gpustate.toml next to your own modules to make them importable"
    text = " ".join(str(error).split())
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return PolicyError(message, place=place, fix=fix)


def _line(trace: TracebackType | None, path: str) -> int | None:
    """The innermost line of the policy file that caused an error."""
    line: int | None = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _state_called(title: str) -> type[AnyState] | None:
    """The state class of a validation error, by pydantic's title."""
    queue: list[Any] = [State]
    while queue:
        cls: type[AnyState] = queue.pop()
        if cls.__name__ == title and cls.name:
            return cls
        queue.extend(cls.__subclasses__())
    return None


def _first(error: ValidationError) -> str:
    item = error.errors(include_url=False)[0]
    return f"{error.title}: {'.'.join(map(str, item['loc']))}: {describe_error(dict(item))}"
