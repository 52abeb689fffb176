"""Collect the facts of one node from its probe and its policy. Pure; runs no queries.

Settings of the policy count with their desired value, not the current one: a node that will get another driver is
checked with that driver. Only certain facts are set, all others stay unknown. For a state that cannot be planned
yet, these are the policy's own settings and everything that no state changes.

Each state declares its own facts (:meth:`gpustate.core.state.State.matrix_facts`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache

from gpustate.compat.facts import FACTS, MODELS, Value, value, with_derived
from gpustate.core.facts import NodeFacts
from gpustate.core.outcome import StateResult
from gpustate.core.planned import PlannedObservation
from gpustate.core.state import AnyState
from gpustate.errors import ProbeError, UsageError
from gpustate.formats import gpu_models

_KNOWN_MODELS = frozenset(model for models in MODELS.values() for model in models)
#: GPUs whose fabric is not visible on PCI.
_HIDDEN_FABRIC = frozenset(("GH200", "GB200", "GB300", "B200", "B300"))


def collect(
    node: NodeFacts,
    states: Iterable[AnyState],
    observed: Mapping[str, object],
    results: Mapping[str, StateResult],
    cluster: Mapping[str, object] | None = None,
) -> dict[str, Value]:
    """The facts of a node after its policy is applied.

    Args:
        node: facts from the probe.
        states: of the node.
        observed: the observation of each state.
        results: the planned changes of each state.
        cluster: facts of the objects that the policy has for the node's cluster.
    """
    values = {**_of_node(node), **(cluster or {})}
    for state in states:
        if state.absent:
            continue
        planned = PlannedObservation(observed.get(state.name), results.get(state.name))
        try:
            declared = {**state.matrix_facts(planned), **planned.chosen}
            if unknown := declared.keys() - FACTS.keys():
                raise KeyError(*unknown)
            # That something is not there is said of the node as it is: a state that brings it knows more.
            absent = {name for name in declared if declared[name] == "none" and name in values}
            values |= {name: value for name, value in declared.items() if name not in absent}
            if planned.unchanged:
                # What it would have installed may come yet; its refusal is the cause to report.
                values |= {n: None for n in declared if values[n] in ("none", False)}
        except Exception as error:
            raise ProbeError(
                f"{state.name}: its facts for the compatibility matrix failed "
                f"({type(error).__name__}: {error}); this is a bug in the state"
            ) from error
    return _certain(values)


def _of_node(node: NodeFacts) -> dict[str, object]:
    values: dict[str, object] = {
        "os": node.os_id or None,
        "os_version": node.os_version or None,
        "machine": node.machine if node.machine in ("x86_64", "aarch64") else None,
        # A container uses the kernel and modules of its host.
        "kernel": None if node.container else node.kernel or None,
        **{name: "none" for name in ("crio", "docker", "podman") if name not in node.runtimes},
    }
    arches = {gpu.architecture for gpu in node.gpus}
    if arches and None not in arches:
        values["arch"] = [name for name in arches if name]
    models = {name for gpu in node.gpus for name in gpu_models.name(gpu.device_id).split("/")}
    if models and models <= _KNOWN_MODELS:
        values["gpu"] = sorted(models)
        if not models & _HIDDEN_FABRIC:
            values["fabric"] = "nvswitch" if node.has_nvswitch else "pcie"
    return values


def _certain(values: Mapping[str, object]) -> dict[str, Value]:
    """Values that are valid facts; values unknown to the matrix are left out."""
    facts: dict[str, Value] = {}
    for name, written in values.items():
        if written is not None:
            with suppress(UsageError):
                facts[name] = _read(name, tuple(written) if isinstance(written, list) else written)
    return with_derived(facts)


@lru_cache(4096)
def _read(name: str, written: Hashable) -> Value:
    """Parse an observed value as a fact; cached, because nodes of a fleet are similar."""
    return value(FACTS[name], written)
