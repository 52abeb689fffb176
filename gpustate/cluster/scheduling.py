"""Whether a pod may run on a Node, as kube-scheduler's filters judge it: selectors, affinity and taints. Pure.

Sources:
    kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node, taint-and-toleration;
    k8s.io/component-helpers, scheduling/corev1/nodeaffinity (an empty term matches nothing; Gt and Lt are of integers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpustate.documents import Json
from gpustate.formats.numbers import parse_uint

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
#: Effects that keep a new pod away.
_EFFECTS = ("NoSchedule", "NoExecute")


def unmet_selector(pod: Json, node: Json) -> str:
    """What a pod demands of a Node's labels and name that the Node does not have; empty if it has all."""
    spec, labels = pod.get("spec") or {}, node["metadata"].get("labels") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"nodeSelector {key}={value}, the Node has {_has(labels, key)}"
    terms = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if terms is None:
        return ""
    unmet = [_unmet_term(term, node, labels) for term in terms.get("nodeSelectorTerms") or ()]
    return "" if "" in unmet else f"nodeAffinity: {unmet[0] if unmet else 'no term'}"


def _unmet_term(term: Json, node: Json, labels: Mapping[str, str]) -> str:
    expressions = [(rule, labels) for rule in term.get("matchExpressions") or ()]
    fields = {"metadata.name": node["metadata"]["name"]}
    expressions += [(rule, fields) for rule in term.get("matchFields") or ()]
    if not expressions:
        return "an empty term"
    for rule, values in expressions:
        if not _matches(rule, values):
            words = " ".join((rule["key"], rule["operator"], ",".join(rule.get("values") or ())))
            return f"{words.strip()}, the Node has {_has(values, rule['key'])}"
    return ""


def _matches(expression: Json, values: Mapping[str, str]) -> bool:
    key, operator = expression["key"], expression["operator"]
    operands, value = expression.get("values") or [], values.get(key)
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) is bool(operator == "Exists")
    if operator in ("In", "NotIn"):
        return (value in operands) is bool(operator == "In")
    number, bound = parse_uint(value or ""), parse_uint(operands[0]) if operands else None
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def _has(values: Mapping[str, str], key: str) -> str:
    return f"{key}={values[key]}" if key in values else f"no {key}"


def untolerated(pod: Json, node: Json) -> Iterator[Json]:
    """The taints of a Node that keep a pod away."""
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint["effect"] in _EFFECTS and not any(
            _tolerates(toleration, taint) for toleration in tolerations
        ):
            yield taint


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key, exists = toleration.get("key") or "", toleration.get("operator") == "Exists"
    if not key:
        return exists
    same = (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(key == taint["key"] and (exists or same))


def show_taint(taint: Json) -> str:
    """A taint as ``kubectl taint`` takes it."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"
