"""Detect the kind of a policy and load it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from enum import StrEnum
from pathlib import Path as FilePath

from gpustate import registry
from gpustate.core.drain import DrainPolicy, drain_overrides
from gpustate.core.layering import COMES_WITH
from gpustate.core.policy import Policy, build
from gpustate.core.rollout import overridden
from gpustate.errors import PolicyError
from gpustate.policies import document, files, python, trees
from gpustate.policies.changes import OPERATOR_SECTIONS, Changes, Format
from gpustate.policies.implying import left_out, with_implied
from gpustate.policies.trees import Tree

_DOCUMENT = re.compile(r'\A\s*\{.*?"format"\s*:\s*"gpustate\.(\w+)/(\d+)"', re.DOTALL)
_IMPORT = re.compile(r"^(from [\w.]+ import |import \w)", re.MULTILINE)
_STATE_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Kind(StrEnum):
    """Kinds of policy arguments."""

    PYTHON = "python"
    YAML = "yaml"  # gpustate's own format
    OPERATOR = "operator"  # ClusterPolicy, NVIDIADriver or Helm values
    STATE = "state"
    PLAN = "plan"  # a saved plan, for `apply`


def kind(source: str) -> Kind:
    """Detect the kind of ``source`` from the beginning of the file.

    Raises:
        PolicyError: it is neither a file nor the name of a state, or is another gpustate document.
    """
    if _is_name(source):
        return Kind.STATE
    return _kind(files.head(source), source)


def _kind(beginning: str, source: str) -> Kind:
    match = _DOCUMENT.match(beginning)
    if match is None or match[1] == "policy":
        if source.endswith(".py"):
            return Kind.PYTHON
        if match is not None or document.is_one(beginning):
            return Kind.YAML
        return Kind.PYTHON if _IMPORT.search(beginning) else Kind.OPERATOR
    if match[1] == "plan":
        return Kind.PLAN
    raise PolicyError(f"is a gpustate {match[1]}, wanted a policy or a plan", place=source)


def own_policy(text: str, source: str) -> bool:
    """Whether a file's text is a policy in Python or in gpustate's own YAML."""
    try:
        return _kind(text, source) in (Kind.PYTHON, Kind.YAML)
    except PolicyError:
        return False  # another gpustate document; the reader reports it


def load(
    source: str,
    *,
    strict: bool = False,
    changes: Changes | None = None,
    origins: bool = False,
    release: str | None = None,
) -> Policy:
    """Load a policy.

    Args:
        source: a Python file, gpustate's own YAML, a file of the GPU Operator, or the name of a state.
        strict: unknown keys of an Operator file are errors, not notes.
        release: of the Operator for such a file; by default that of the file, or the newest.
        changes: of the command line.
        origins: determine the places of values in a Python file; other files always have them.

    Raises:
        PolicyError: with place, problem and remedy.
        GraphError: the ``gpustate.toml`` above the file registers a state with an existing name.
    """
    source_kind = kind(source)
    if source_kind is Kind.STATE:
        return _with_sections(_complete(_single(source, changes), source), changes)
    if source_kind is Kind.PLAN:
        raise PolicyError(
            "is a saved plan, wanted a policy", place=source, fix=f"use: gpustate apply {source}"
        )
    text = files.read_text(source)
    if source_kind is Kind.OPERATOR:  # the beginning of a file, or of a pipe, may not be enough
        source_kind = _kind(text, source)
    registry.use_project(FilePath(source).parent)
    if source_kind is Kind.PYTHON:
        policy = _python(text, source, changes, origins)
    elif source_kind is Kind.YAML:
        policy = _changed(document.read(text, source), changes)
    else:
        from gpustate.policies import operator  # large tables, only if needed

        if changes:
            changes = replace(changes, beside=OPERATOR_SECTIONS)
        inside = changes if changes and changes.beyond_sections else None
        policy = operator.read(text, source, strict=strict, changes=inside, release=release)
        if not any(line.strip() and line.lstrip()[0] != "#" for line in text.splitlines()):
            note = f"{source} is empty: the defaults of the GPU Operator's chart apply"
            policy.notes = (note, *policy.notes)
    return _with_sections(_complete(policy, FilePath(source).stem), changes)


def _with_sections(policy: Policy, changes: Changes | None) -> Policy:
    """The policy with the changes of its rollout and its drains, which files of all formats have."""
    data, places = changes.sections() if changes else ({}, {})
    if data:
        policy.places |= places
        policy.rollout = overridden(policy.rollout, data.get("rollout"), places)
    if "drain" in data:
        leaving = drain_overrides(data["drain"], places)
        policy.drain = leaving.on(policy.drain or DrainPolicy())
    if "cluster" in data:
        from gpustate.manifests import cluster_part

        settings = cluster_part.read(data["cluster"], places)
        values = {name: getattr(settings, name) for name in data["cluster"]}
        policy = policy.with_cluster(replace(cluster_part.settings_of(policy), **values))
    return policy


def _complete(policy: Policy, name: str) -> Policy:
    """The policy with a name; what its states imply and it does not have stays out."""
    complete = policy.with_states(*policy.states, name=policy.name or name)
    complete.without = left_out(complete)
    return complete


def _changed(
    tree: Tree,
    changes: Changes | None,
    classes: document.StateClasses | None = None,
    notes: tuple[str, ...] = (),
) -> Policy:
    """Build the policy of a document after its changes."""
    if not changes:
        return document.make(document.expanded(tree), classes=classes, notes=notes)
    format = Format(document.home, document.home, document.expanded, document.value_by_default)
    result = changes.on(tree, format)
    before = document.expanded(tree)
    return document.make(
        result.tree, classes=classes, notes=notes, touched=result.touched, before=before
    )


def _python(text: str, source: str, changes: Changes | None, origins: bool) -> Policy:
    listed = python.run(text, source)
    policy = with_implied(listed)
    if changes or origins:
        from gpustate.policies import pythonplaces

        places = pythonplaces.places(text, source, listed) | policy.places
        policy = policy.with_states(*policy.states, places=places)
    if not changes:
        return policy
    classes = {state.name: type(state) for state in policy.states}
    tree = document.of_policy(policy, policy.places, source)
    return _changed(tree, changes, classes, policy.notes)


def _is_name(source: str) -> bool:
    """Whether ``source`` is a state: its name, or a word that is not a file either."""
    if not _STATE_NAME.fullmatch(source) or files.is_chart(source):
        return False
    if registry.find(source) is not None:
        return True
    if os.path.exists(source):
        return False
    raise PolicyError(f"{source!r} is neither a file nor a state", fix=registry.hint(source))


def _single(name: str, changes: Changes | None) -> Policy:
    """A policy of one state with its defaults, without those that it implies."""
    cls = registry.get(name)
    if changes:
        tree = trees.from_data({"format": document.FORMAT, "states": {name: {}}}, name)
        policy = _changed(tree, changes)
        comes = [path for path, place in policy.places.items() if place.startswith(COMES_WITH)]
        states = (state for state in policy.states if ("states", state.name) not in comes)
        return policy.with_states(*states)
    try:
        state = build(cls, {})
    except PolicyError as error:
        raise PolicyError(
            error.message, fix=f"write a policy file that sets the parameters of {name}"
        ) from error
    return Policy(state)
