"""Facts of one node from its probe and from what its policy wants. Pure; asks nothing of the node.

What a policy changes counts as it will be, not as it is: a node that is to get another driver is judged with that
one. Only what is certain is said: everything else stays unknown, and rules about it cannot tell. Of a state that
cannot be planned yet that is what the policy itself says, and what no state changes.

The states are known by name and by the fields of what they observe, so that none has to know of
the matrix; a field that is not there any more leaves its fact unknown.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache

from gpustate.compat.facts import FACTS, MODELS, Value, derived, value
from gpustate.core.facts import NodeFacts
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.state import AnyState
from gpustate.errors import UsageError
from gpustate.formats import driverset, gpu_models
from gpustate.formats.dpkg import upstream_version

_KNOWN = frozenset(model for models in MODELS.values() for model in models)
#: GPUs whose fabric does not show on PCI.
_HIDDEN_FABRIC = frozenset(("GH200", "GB200", "GB300", "B200", "B300"))
#: State to the fact that is its version.
_FABRIC = {"fabric-manager": "fabric_manager", "nvlsm": "nvlsm", "imex": "imex"}
#: What joins the GPUs, by the word of the states of the fabric.
_TOPOLOGIES = {"none": "pcie", "nvswitch": "nvswitch", "nvlink5": "nvlink5", "multi-node": "mnnvl"}
_OPEN, _PROPRIETARY = driverset.OPEN, driverset.PROPRIETARY
_STAYS = (Outcome.REFUSED, Outcome.FAILED, Outcome.NOT_RUN)
_BUILT = re.compile(r"([0-9][0-9.]*) (open|proprietary)")


def collect(
    node: NodeFacts,
    states: Iterable[AnyState],
    observed: Mapping[str, object],
    results: Mapping[str, StateResult],
) -> dict[str, Value]:
    """What is known of a node and of what it is to become.

    Args:
        node: what the probe found.
        states: those that apply to the node.
        observed: what each observed.
        results: what each would change.
    """
    given = _of_node(node)
    for state in states:
        if state.absent:
            continue
        after = _After(observed.get(state.name), results.get(state.name))
        if state.name == "driver":
            given |= _of_driver(state, after)
        elif state.name == "driver-repository":
            given["driver_from"] = getattr(state, "origin", None)
        elif state.name == "container-toolkit":
            given |= _of_toolkit(state, after)
        elif state.name == "containerd":
            given["containerd"] = after.now("version") or None
        elif state.name in _FABRIC:
            given |= _of_fabric(state.name, after)
    return _certain(given)


class _After:
    """Fields of an observation as they will be; unknown while what becomes of the state is.

    ``stays``: nothing of the state is changed, whatever the policy wants.
    """

    def __init__(self, observed: object, result: StateResult | None) -> None:
        self.observed = observed
        self.stays = result is not None and result.outcome in _STAYS
        planned = result is not None and not self.stays
        self.changes = {c.field: c.after for c in result.plan.changes} if result and planned else {}
        self.known = result is not None and not result.known_after

    def value(self, field: str) -> object:
        """What a field will be; ``None`` when there is no such field, or nobody knows yet."""
        if not self.known:
            return None
        return self.changes[field] if field in self.changes else self.now(field)

    def now(self, field: str) -> object:
        """What a field is that no plan changes: of the hardware, or of packages of others."""
        return getattr(self.observed, field, None)


def _of_node(node: NodeFacts) -> dict[str, object]:
    given: dict[str, object] = {
        "os": node.os_id or None,
        "os_version": node.os_version or None,
        "machine": node.machine if node.machine in ("x86_64", "aarch64") else None,
        # A container has the kernel of its host, and no modules of its own.
        "kernel": None if node.container else node.kernel or None,
    }
    arches = {gpu.architecture for gpu in node.gpus}
    if arches and None not in arches:
        given["arch"] = [name for name in arches if name]
    models = {name for gpu in node.gpus for name in gpu_models.name(gpu.device_id).split("/")}
    if models and models <= _KNOWN:
        given["gpu"] = sorted(models)
        if not models & _HIDDEN_FABRIC:
            given["fabric"] = "nvswitch" if node.has_nvswitch else "pcie"
    return given


def _of_driver(state: AnyState, after: _After) -> dict[str, object]:
    asked = None if after.stays else state
    wanted = getattr(asked, "version", None) or getattr(asked, "branch", None)
    found = after.value("library")
    kind: object = getattr(asked, "module_type", None)
    built = after.value("built")
    kinds = set(_kinds(built.values())) if isinstance(built, Mapping) else set[str]()
    if kind not in (_OPEN, _PROPRIETARY):
        kind = next(iter(kinds)) if len(kinds) == 1 else None
    precompiled = getattr(asked, "precompiled", None)
    sources = {True: "precompiled", False: "dkms"}
    return {
        "driver": found or wanted,
        "module_type": kind,
        "module_source": sources.get(precompiled) if isinstance(precompiled, bool) else None,
    }


def _of_fabric(name: str, after: _After) -> dict[str, object]:
    topology = after.now("topology")
    given: dict[str, object] = {}
    if isinstance(topology, str):
        given["fabric"] = _TOPOLOGIES.get(topology)
    version = after.value("version")
    given[_FABRIC[name]] = upstream_version(version) if isinstance(version, str) else None
    if name == "nvlsm":
        loaded = after.value("loaded")
        given["ib_umad"] = "ib_umad" in loaded if isinstance(loaded, tuple) else None
    else:
        given[f"{_FABRIC[name]}_runs"] = after.value("enabled")
    return given


def _kinds(built: Iterable[object]) -> Iterable[str]:
    for one in built:
        match = _BUILT.fullmatch(one) if isinstance(one, str) else None
        if match:
            yield match[2]


def _of_toolkit(state: AnyState, after: _After) -> dict[str, object]:
    versions = after.value("versions")
    asked = None if after.stays else state
    wanted = getattr(asked, "version", None)
    given: dict[str, object] = {
        "runtime_mode": getattr(asked, "mode", None),
        "toolkit": wanted if isinstance(wanted, str) and wanted else None,
    }
    if isinstance(versions, Mapping):
        given["toolkit"] = versions.get("nvidia-container-toolkit") or given["toolkit"]
        given["libnvidia_container"] = versions.get("libnvidia-container1")
    return given


def _certain(given: Mapping[str, object]) -> dict[str, Value]:
    """What can be read as a fact; a word or version that the matrix does not know is left out."""
    known: dict[str, Value] = {}
    for name, written in given.items():
        if written is not None:
            read = _read(name, tuple(written) if isinstance(written, list) else written)
            if read is not None:
                known[name] = read
    return derived(known)


@lru_cache(4096)
def _read(name: str, written: Hashable) -> Value | None:
    """A fact out of what was observed; the nodes of a fleet are much alike."""
    try:
        return value(FACTS[name], written)
    except UsageError:
        return None
