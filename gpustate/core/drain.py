"""How workloads leave a node before a disruptive change: which are waited for, which are evicted, and for how long.

Pods with GPUs and whole nodes have rules of their own, as in the GPU Operator's ``upgradePolicy``: a reload of the
driver needs the GPUs alone, a reboot the whole node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError, UsageError
from gpustate.formats.labels import selectors
from gpustate.formats.words import kind_of, quote, suggest

#: No timeout is longer; the Operator's are 64-bit integers.
_LONGEST_S = 10**9


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """Which pods are evicted, and how.

    Args:
        force: also those that no controller would create again.
        delete_empty_dir: also those whose emptyDir volumes are lost with them.
        timeout_s: seconds after which it is given up; 0: never.
        pod_selector: label selector of the pods that leave; empty: all.
    """

    force: bool = False
    delete_empty_dir: bool = False
    timeout_s: float = 300.0
    pod_selector: str = ""


@dataclass(frozen=True, slots=True)
class DrainPolicy:
    """How workloads leave; defaults as ``kubectl drain --ignore-daemonsets`` has them.

    Args:
        wait_selector: label selector of pods that are waited for before any is evicted; empty: none.
        wait_timeout_s: seconds after which they are evicted like all others; 0: never.
        gpu_pods: how pods that use a GPU are evicted.
        node: how all pods are evicted, for a change that needs the whole node.
        node_after_gpu_pods: drain the whole node where its pods with GPUs do not leave by their own rules.
        grace_period_s: seconds a pod has to terminate; ``None``: its own.
        jobs_timeout_s: seconds after which jobs of Slurm are requeued; 0: they are waited for.
    """

    wait_selector: str = ""
    wait_timeout_s: float = 0.0
    gpu_pods: EvictionRules = field(default_factory=EvictionRules)
    node: EvictionRules = field(default_factory=EvictionRules)
    node_after_gpu_pods: bool = False
    grace_period_s: int | None = None
    jobs_timeout_s: float = 0.0

    def as_data(self) -> Json:
        """Plain data with the values that are not defaults; :func:`drain_policy` reads it again."""
        default = asdict(DrainPolicy())
        data: Json = {}
        for key, value in asdict(self).items():
            if isinstance(value, dict):
                value = {k: _plain(v) for k, v in value.items() if v != default[key][k]}
                if value:
                    data[key] = value
            elif value != default[key]:
                data[key] = _plain(value)
        return data

    def describe(self) -> str:
        """In one sentence, for a plan; empty for the defaults."""
        parts = []
        if self.wait_selector:
            parts.append(
                f"wait for pods with {self.wait_selector} ({_limit(self.wait_timeout_s)}) before any is evicted"
            )
        default = EvictionRules()
        if self.gpu_pods == self.node != default:
            parts.append(f"evict pods{_rules(self.node)}")
        else:
            if self.gpu_pods != default:
                parts.append(f"evict pods with GPUs{_rules(self.gpu_pods)}")
            if self.node != default:
                parts.append(f"drain whole nodes{_rules(self.node)}")
        if self.node_after_gpu_pods:
            parts.append("drain the whole node if its pods with GPUs do not leave")
        if self.grace_period_s is not None:
            parts.append(f"pods have {self.grace_period_s} s to terminate")
        if self.jobs_timeout_s:
            parts.append(f"requeue jobs of Slurm after {self.jobs_timeout_s:g} s")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class DrainOverrides:
    """The section ``drain`` of a policy, and values that replace those of a policy; ``None``: the policy's count.

    Args:
        force: also evict pods that no controller would create again.
        delete_empty_dir: also evict pods whose emptyDir volumes are lost with them.
        timeout_s: seconds after which a drain is given up, and jobs of Slurm are requeued; 0: never.
        pod_selector: label selector of the pods that leave; empty: all.
        wait_selector: label selector of pods that are waited for before any is evicted; empty: none.
        wait_timeout_s: seconds after which they are evicted like all others; 0: never.
        grace_period_s: seconds a pod has to terminate; null: its own.
        node_after_gpu_pods: drain the whole node where its pods with GPUs do not leave by their own rules.
        jobs_timeout_s: seconds after which jobs of Slurm are requeued; 0: they are waited for.
        gpu_pods: how pods that use a GPU are evicted, where that differs.
        node: how all pods are evicted for a change that needs the whole node, where that differs.
    """

    force: bool | None = None
    delete_empty_dir: bool | None = None
    timeout_s: float | None = None
    pod_selector: str | None = None
    wait_selector: str | None = None
    wait_timeout_s: float | None = None
    grace_period_s: int | None = None
    node_after_gpu_pods: bool | None = None
    jobs_timeout_s: float | None = None
    gpu_pods: JsonView | None = None
    node: JsonView | None = None

    def on(self, policy: DrainPolicy) -> DrainPolicy:
        """The policy with these values.

        Raises:
            UsageError: a selector cannot be read.
        """
        values = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        for key in ("pod_selector", "wait_selector"):
            selectors.parse(values.get(key, ""))
        gpu_pods, node = values.pop("gpu_pods", {}), values.pop("node", {})
        rules = {field.name for field in fields(EvictionRules)} & values.keys()
        both = {key: values.pop(key) for key in rules}
        if self.timeout_s is not None:
            values.setdefault("jobs_timeout_s", self.timeout_s)
        return replace(
            policy,
            gpu_pods=replace(policy.gpu_pods, **{**both, **gpu_pods}),
            node=replace(policy.node, **{**both, **node}),
            **values,
        )


def drain_policy(data: object, places: Mapping[tuple[str, ...], str]) -> DrainPolicy | None:
    """Read how workloads leave from a policy's plain data; ``None``: the policy does not set it.

    Args:
        data: a mapping, or a policy made already.
        places: where values stand, by path that begins with ``drain``.

    Raises:
        PolicyError: an unknown key or a wrong value, with its place.
    """
    if data is None or isinstance(data, DrainPolicy):
        return _checked(data, places)
    return drain_overrides(data, places).on(DrainPolicy())


def drain_overrides(data: object, places: Mapping[tuple[str, ...], str]) -> DrainOverrides:
    """Read the section ``drain``; arguments and errors as of :func:`drain_policy`."""
    values = _values(data, ("drain",), DrainOverrides, places)
    for key in ("gpu_pods", "node"):
        if values.get(key) is not None:
            values[key] = _values(values[key], ("drain", key), EvictionRules, places)
    for path, text in (
        (("drain", "wait_selector"), values.get("wait_selector")),
        (("drain", "pod_selector"), values.get("pod_selector")),
        *(
            (("drain", key, "pod_selector"), (values.get(key) or {}).get("pod_selector"))
            for key in ("gpu_pods", "node")
        ),
    ):
        _check_selector(path, text or "", places)
    return DrainOverrides(**values)


def _values(
    data: object, path: tuple[str, ...], cls: type, places: Mapping[tuple[str, ...], str]
) -> Json:
    """The values of one level, each of the type of its field."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise _error(path, places, f"is {kind_of(data)}, wanted a mapping")
    types = {rule.name: str(rule.type) for rule in fields(cls)}
    values: Json = {}
    for key, value in data.items():
        if key not in types:
            raise _error((*path, str(key)), places, "unknown key", _hint(str(key), types))
        values[key] = _value((*path, key), value, types[key], places)
    return values


def _value(
    path: tuple[str, ...], value: Any, type_: str, places: Mapping[tuple[str, ...], str]
) -> Any:
    if type_.endswith("None"):
        type_ = type_.removesuffix(" | None")
        if value is None or type_ == "JsonView":
            return value
    if type_ == "bool" and not isinstance(value, bool):
        raise _error(path, places, f"is {quote(value)}, wanted true or false")
    if type_ == "str" and not isinstance(value, str):
        raise _error(path, places, f"is {quote(value)}, wanted a label selector such as app=train")
    if type_ == "float":
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value <= _LONGEST_S
        ):
            raise _error(path, places, f"is {quote(value)}, wanted seconds, 0 for no limit")
        return float(value)
    valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LONGEST_S
    if type_ == "int" and not valid:
        raise _error(path, places, f"is {quote(value)}, wanted whole seconds")
    return value


def _checked(
    policy: DrainPolicy | None, places: Mapping[tuple[str, ...], str]
) -> DrainPolicy | None:
    if policy is None:
        return None
    for path, text in (
        (("drain", "wait_selector"), policy.wait_selector),
        (("drain", "gpu_pods", "pod_selector"), policy.gpu_pods.pod_selector),
        (("drain", "node", "pod_selector"), policy.node.pod_selector),
    ):
        _check_selector(path, text, places)
    return policy


def _check_selector(
    path: tuple[str, ...], text: str, places: Mapping[tuple[str, ...], str]
) -> None:
    try:
        selectors.parse(text)
    except UsageError as error:
        raise _error(path, places, error.message, error.fix or "") from None


def _error(
    path: tuple[str, ...], places: Mapping[tuple[str, ...], str], message: str, fix: str = ""
) -> PolicyError:
    place = next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), None)
    return PolicyError(f"{'.'.join(path)}: {message}", place=place, fix=fix or None)


def _hint(key: str, names: Iterable[str]) -> str:
    return suggest(key, names, f"supported keys: {', '.join(names)}", form="{!r}")


def _plain(value: Any) -> Any:
    """A whole number of seconds without its fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _limit(seconds: float) -> str:
    return f"at most {seconds:g} s" if seconds else "without a time limit"


def _rules(rules: EvictionRules) -> str:
    default = EvictionRules()
    parts = []
    if rules.pod_selector:
        parts.append(f" with {rules.pod_selector}")
    if rules.force:
        parts.append(", those without a controller too")
    if rules.delete_empty_dir:
        parts.append(", those with emptyDir volumes too")
    if rules.timeout_s != default.timeout_s:
        parts.append(f", {_limit(rules.timeout_s)}")
    return "".join(parts)
