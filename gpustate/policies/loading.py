"""Tells the kinds of policies apart and loads them."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path

from gpustate import registry
from gpustate.errors import PolicyError
from gpustate.model.policy import Policy, build
from gpustate.policies import files, python

_DOCUMENT = re.compile(r'\A\s*\{.*?"format"\s*:\s*"gpustate\.(\w+)/(\d+)"', re.DOTALL)
_IMPORT = re.compile(r"^(from [\w.]+ import |import \w)", re.MULTILINE)
_STATE_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Kind(StrEnum):
    """What stands for a policy."""

    PYTHON = "python"
    OPERATOR = "operator"  # ClusterPolicy, NVIDIADriver or Helm values
    STATE = "state"
    PLAN = "plan"  # a saved plan, for `apply`


def kind(source: str) -> Kind:
    """Tell what ``source`` is, without reading more than the beginning of it.

    Raises:
        PolicyError: it is neither a file nor the name of a state, or a gpustate document of
            another kind.
    """
    if _is_name(source):
        return Kind.STATE
    beginning = files.head(source)
    document = _DOCUMENT.match(beginning)
    if document is None:
        python_file = source.endswith(".py") or _IMPORT.search(beginning)
        return Kind.PYTHON if python_file else Kind.OPERATOR
    if document[1] == "plan":
        return Kind.PLAN
    raise PolicyError(f"is a gpustate {document[1]}, wanted a policy or a plan", place=source)


def load(source: str, *, strict: bool = True) -> Policy:
    """Load a policy.

    Args:
        source: a Python file, a file of the GPU Operator, or the name of a state.
        strict: keys of an Operator file that its schema does not have are errors, not notes.

    Raises:
        PolicyError: with the place, what is wrong there, and the next move.
        GraphError: the ``gpustate.toml`` above the file names a state that is taken.
    """
    found = kind(source)
    if found is Kind.STATE:
        return _single(source)
    if found is Kind.PLAN:
        raise PolicyError(
            "is a saved plan, wanted a policy", place=source, fix=f"use: gpustate apply {source}"
        )
    text = files.read_text(source)
    registry.use_project(Path(source).parent)
    if found is Kind.PYTHON:
        policy = python.run(text, source)
    else:
        from gpustate.policies import operator  # YAML and the tables, only for those who need them

        policy = operator.read(text, source, strict=strict)
    name = policy.name or Path(source).stem
    return Policy(*policy.states, name=name, notes=policy.notes, allow=policy.allow)


def _is_name(source: str) -> bool:
    """A state is meant: its name, or a word that is no file either."""
    if not _STATE_NAME.fullmatch(source):
        return False
    if registry.find(source) is not None:
        return True
    if os.path.exists(source):
        return False
    raise PolicyError(f"{source!r} is neither a file nor a state", fix=registry.hint(source))


def _single(name: str) -> Policy:
    """A policy of one state with its defaults."""
    cls = registry.get(name)
    try:
        state = build(cls, {})
    except PolicyError as error:
        raise PolicyError(
            error.message, fix=f"write a policy file that gives {name} its parameters"
        ) from error
    return Policy(state, name=name)
