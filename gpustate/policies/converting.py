"""Convert a policy into another format, with a list of settings that the format cannot express.

The result is read again and compared with the original, value by value and with all defaults. So every lost or
added setting is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpustate import registry
from gpustate.core.layers import REMOVED, Path, dotted, leaves, value_at
from gpustate.core.policy import Policy, build, every_parameter, parameters
from gpustate.core.state import AnyState
from gpustate.documents import Json, JsonView
from gpustate.errors import GpustateError, PolicyError
from gpustate.formats.masking import mask, without_secrets
from gpustate.formats.words import quote
from gpustate.manifests import cluster_part
from gpustate.policies import document, python, writing


@dataclass(frozen=True, slots=True)
class Converted:
    """A policy's text in another format.

    Args:
        text: the policy.
        lost: settings that the format cannot express.
        notes: what was said of the policy when it was read.
    """

    text: str
    lost: tuple[str, ...]
    notes: tuple[str, ...] = ()


def convert(policy: Policy, to: str, source: str = "") -> Converted:
    """Write a policy in another format.

    Args:
        policy: the policy.
        to: ``yaml`` or ``python``.
        source: its origin, for the comment at the top.

    Raises:
        PolicyError: it cannot be written in that format.
    """
    local = [state for state in policy.states if not _importable(type(state))]
    plain = (
        policy.with_states(*(state for state in policy.states if state not in local))
        if local
        else policy
    )
    lost = [
        f"{state.name}: the state is defined in the policy file; move it to a module and list that in "
        f"{registry.PROJECT_FILE}"
        for state in local
    ]
    hidden: list[str] = []  # by path
    plain = _without_secrets(plain, hidden)
    if plain.cluster is not None:
        plain = plain.with_cluster(cluster_part.without_ignored(cluster_part.settings_of(plain)))
    text = writing.as_yaml(plain) if to == "yaml" else writing.as_python(plain)
    try:
        again = _read(text, to)
    except GpustateError as error:
        raise PolicyError(f"cannot be written as {to}: {error.message}", place=source) from error
    lost.extend(differences(plain, again))
    lost.extend(_values(_cluster(plain), _cluster(again), ()))
    left_out = (
        f"{path}: secrets are not written; pass it with --set or --values"
        if path.startswith("cluster.")
        else f"{path.removeprefix('states.')}: secrets are not written, nor what needs one; set it in the "
        "inventory, in the variable gpustate"
        for path in hidden
    )
    lost = [*left_out, *map(mask, lost)]
    comments = [f"Written by gpustate policy convert{f' from {source}' if source else ''}."]
    notes = tuple(map(mask, policy.notes))
    for title, lines in (("Not expressed here:", lost), ("Notes on the policy:", notes)):
        if lines:
            comments.append(title)
            comments.extend(f"  {line}" for line in lines)
    return Converted(_commented(text, comments), tuple(lost), notes)


def _without_secrets(policy: Policy, removed: list[str]) -> Policy:
    """The policy without the parameters that hold a secret, for their mask is no value.

    Args:
        policy: the policy.
        removed: filled with the paths of these parameters.
    """
    data = document.as_data(policy)
    clean = without_secrets(
        {key: data.get(key, {}) for key in ("states", "groups", "nodes", "cluster")}, removed
    )
    if not removed:
        return policy
    states: dict[str, AnyState] = {}
    for state in policy.states:
        values = _buildable(type(state), {}, clean["states"][state.name], removed, state.name)
        states[state.name] = build(type(state), values)
    for section in ("groups", "nodes"):
        for key, body in clean[section].items():
            for name in body.keys() & states.keys():
                base, above = parameters(states[name]), f"{section}.{key}.{name}"
                body[name] = _buildable(type(states[name]), base, body[name], removed, above)
    return Policy(
        *states.values(),
        name=policy.name,
        notes=policy.notes,
        allow=policy.allow,
        groups=clean["groups"],
        nodes=clean["nodes"],
        last=policy.last,
        rollout=policy.rollout,
        drain=policy.drain,
        cluster=None if policy.cluster is None else cluster_part.read(clean["cluster"], {}),
    )


def _buildable(
    cls: type[AnyState], base: JsonView, values: Json, removed: list[str], above: str
) -> Json:
    """The parameters, less one that needs a removed secret: a user name needs its password."""
    for omitted in (None, *values):
        tried = {name: value for name, value in values.items() if name != omitted}
        try:
            build(cls, {**base, **tried})
        except PolicyError:
            continue
        if omitted is not None:
            removed.append(f"{above}.{omitted}")
        return tried
    return values


def _read(text: str, to: str) -> Policy:
    if to == "yaml":
        return document.make(document.read(text, "converted"))
    return python.run(text, "converted")


def _commented(text: str, comments: list[str]) -> str:
    from gpustate.formats.words import printable

    return "".join(f"# {printable(line)}\n" for line in comments) + text


def _importable(cls: type) -> bool:
    """Whether a class is importable, that is, not defined in the policy file."""
    return cls.__module__ != "gpustate_policy"


def differences(expected: Policy, got: Policy) -> Iterator[str]:
    """Yield the differences of two policies, defaults included: missing and additional settings."""
    remaining = {state.name: state for state in got.states}
    for state in expected.states:
        actual = remaining.pop(state.name, None)
        if actual is None:
            if not state.absent:
                yield f"{state.name}: the state is missing{_besides(parameters(state))}"
            else:
                yield f"{state.name}: ensure absent is missing: it is not removed"
            continue
        yield from _values(every_parameter(state), every_parameter(actual), (state.name,))
    for name in remaining:
        yield f"{name}: the state is added, although the policy does not have it"
    for section in ("groups", "nodes"):
        first, second = getattr(expected, section), getattr(got, section)
        yield from _values(first, second, (section,))
    yield from _values(expected.allow, got.allow, ("allow",))
    yield from _values(expected.rollout.as_data(), got.rollout.as_data(), ("rollout",))
    yield from _values(_drain(expected), _drain(got), ("drain",))
    if expected.name != got.name:
        yield f"name: {quote(expected.name)} is {quote(got.name)}"


def _drain(policy: Policy) -> Json:
    return policy.drain.as_data() if policy.drain is not None else {}


def _cluster(policy: Policy) -> Json:
    return {} if policy.cluster is None else {"cluster": policy.cluster.as_data()}


def _besides(values: JsonView) -> str:
    names = ", ".join(f"{name} {_json(value)}" for name, value in values.items())
    return f" ({names})" if names else ""


def _values(expected: JsonView, got: JsonView, above: Path) -> Iterator[str]:
    expected_leaves, actual_leaves = dict(leaves(expected)), dict(leaves(got))
    for path, value in expected_leaves.items():
        actual = value_at(got, path)
        if actual is REMOVED:
            if value != {}:
                yield f"{dotted((*above, *path))}: {_json(value)} is missing"
        elif not _same(value, actual):
            yield f"{dotted((*above, *path))}: {_json(value)} is {_json(actual)}"
    for path, value in actual_leaves.items():
        if value_at(expected, path) is REMOVED and value != {}:
            yield f"{dotted((*above, *path))}: {_json(value)} is added"


def _same(first: Any, second: Any) -> bool:
    """Equality of JSON values: true is not 1."""
    return _json(first) == _json(second)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
