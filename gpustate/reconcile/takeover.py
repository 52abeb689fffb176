"""Taking a cluster over from the GPU Operator, and releasing it, as plain data and as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpustate.documents import Json
from gpustate.errors import EXIT_ERROR, EXIT_REFUSED
from gpustate.formats.masking import mask_data
from gpustate.formats.words import value_text
from gpustate.manifests.kinds import title
from gpustate.reconcile.adopting import Adopted, Adoptee, Adoption
from gpustate.reconcile.releasing import Handover, Released

_LONGEST = 120


def adoption_data(
    server: str, namespace: str, adoption: Adoption | None, adopted: Adopted | None = None
) -> Json:
    """What taking one cluster over means, or meant."""
    data: Json = {"server": server, "namespace": namespace}
    if adoption is not None:
        data["operator"] = adoption.operator.describe()
        data["objects"] = [_object_data(adoptee) for adoptee in adoption.objects]
        deployment = adoption.operator.deployment
        data["scaled_to_0"] = [title(deployment)] if deployment is not None else []
        data["deleted"] = [
            title(item) for item in (*adoption.operator.drivers, *adoption.operator.policies)
        ]
        data["refusals"] = list(adoption.refusals)
    if adopted is not None:
        data["adopted"] = list(adopted.objects)
        data["pods"] = adopted.pods
        if adopted.applied is not None:
            data["applied"] = list(adopted.applied)
        data["failures"] = list(adopted.failures)
    result: Json = mask_data(data)
    return result


def _object_data(adoptee: Adoptee) -> Json:
    data: Json = {"object": title(adoptee.item), "in_policy": adoptee.in_policy}
    if adoptee.differences:
        data["changes"] = [
            {"field": change.field, "before": change.before, "after": change.after}
            for change in adoptee.differences
        ]
    if adoptee.restarts:
        data["restarts_pods"] = True
    if adoptee.reason:
        data["reason"] = adoptee.reason
    return data


def release_data(server: str, handover: Handover, released: Released | None = None) -> Json:
    """What releasing one cluster means, or meant."""
    data: Json = {
        "server": server,
        "namespace": handover.namespace,
        "objects": [title(item) for item in handover.objects],
        "created": [title(item) for item in handover.policies],
        "deployment": handover.deployment,
    }
    if released is not None:
        data["released"] = list(released.objects)
        data["started"] = released.started
        data["failures"] = list(released.failures)
    return data


def exit_codes(data: Mapping[str, Any]) -> Iterator[int]:
    """Codes for what is wrong with a cluster."""
    if data.get("refusals"):
        yield EXIT_REFUSED
    if data.get("failures"):
        yield EXIT_ERROR


def adoption_lines(data: Mapping[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """The lines of a cluster to take over, each as pieces of text with their style."""
    yield [("cluster: ", "bold"), (f"{data['server']}, namespace {data['namespace']}", "")]
    if "operator" not in data:
        yield [("  no GPU Operator is running: nothing to adopt", "")]
        return
    yield [(f"  {data['operator']}", "")]
    for text in data["scaled_to_0"]:
        yield [(f"  ~ {text}", "yellow"), ("  scale to 0", "dim")]
    for row in data["objects"]:
        yield from _object_lines(row)
    for text in data["deleted"]:
        yield [(f"  - {text}", "yellow"), ("  delete; what belonged to it is kept", "dim")]
    restarts = [row["object"] for row in data["objects"] if row.get("restarts_pods")]
    leftover = [row["object"] for row in data["objects"] if not row["in_policy"]]
    yield [("  adopt restarts no pod and changes no specification", "green")]
    if restarts:
        words = f"  the next gpustate apply restarts the pods of {', '.join(restarts)}"
        yield [(words, "")]
    if leftover:
        words = (
            f"  the next gpustate apply deletes {len(leftover)} objects that are not in the policy"
        )
        yield [(words, "")]
    for text in data["refusals"]:
        yield [(f"  refused: {text}", "red")]


def _object_lines(row: Mapping[str, Any]) -> Iterator[list[tuple[str, str]]]:
    action = "adopt" if row["in_policy"] else "adopt; not in the policy"
    yield [(f"  ~ {row['object']}", "yellow"), (f"  {action}", "dim")]
    for change in row.get("changes", ()):
        yield [
            (
                f"      later: {change['field']}: {value_text(change['before'], _LONGEST)} -> {value_text(change['after'], _LONGEST)}",
                "",
            )
        ]
    if row.get("reason"):
        yield [(f"      {row['reason']}", "")]


def adopted_lines(data: Mapping[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """The lines of the result."""
    yield [("cluster: ", "bold"), (f"{data['server']}, namespace {data['namespace']}", "")]
    if "adopted" in data:
        words = f"  {len(data['adopted'])} objects adopted, {data['pods']} pods run as before"
        yield [(words, "green")]
    if "applied" in data:
        yield [(f"  {len(data['applied'])} objects changed to what the policy says", "green")]
    for text in (*data.get("refusals", ()), *data.get("failures", ())):
        yield [(f"  {text}", "red")]


def release_lines(data: Mapping[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """The lines of a cluster to release."""
    yield [("cluster: ", "bold"), (f"{data['server']}, namespace {data['namespace']}", "")]
    if not data["created"]:
        yield [("  no GPU Operator was adopted here: the objects are left without an owner", "")]
    for text in data["created"]:
        yield [(f"  + {text}", "yellow"), ("  create again", "dim")]
    for text in data["objects"]:
        yield [(f"  - {text}", "yellow"), ("  release", "dim")]


def released_lines(data: Mapping[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """The lines of the result."""
    yield [("cluster: ", "bold"), (f"{data['server']}, namespace {data['namespace']}", "")]
    yield [(f"  {len(data['released'])} objects released", "green")]
    if data["started"]:
        yield [(f"  deployment/{data['deployment']} started", "")]
    elif data["deployment"]:
        start = f"kubectl -n {data['namespace']} scale deployment {data['deployment']} --replicas 1"
        yield [(f"  start the Operator: {start}", "")]
    for text in data["failures"]:
        yield [(f"  {text}", "red")]
