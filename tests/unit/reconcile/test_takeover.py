"""The documents of ``gpustate cluster adopt`` and ``gpustate cluster release``, and their text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

import gpustate as package
from gpustate.documents import Json
from gpustate.errors import EXIT_ERROR, EXIT_REFUSED
from gpustate.manifests.differences import Difference
from gpustate.manifests.kinds import CLUSTER_POLICY, Kind
from gpustate.reconcile.adopting import Adopted, Adoptee, Adoption, plan_adoption
from gpustate.reconcile.owners import Operator
from gpustate.reconcile.releasing import Handover, Released
from gpustate.reconcile.takeover import (
    adopted_lines,
    adoption_data,
    adoption_lines,
    exit_codes,
    release_data,
    released_lines,
)

SCHEMAS = Path(package.__file__).parent / "cli/schema"
SERVER, NAMESPACE = "https://10.0.0.1:6443", "gpu-operator"


def item(kind: str, name: str, **more: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": NAMESPACE, "uid": name}, **more}


POLICY = item("ClusterPolicy", "cluster-policy", status={"state": "ready"})
IMAGE = "nvcr.io/nvidia/gpu-operator:v24.3.0"
POD = {"spec": {"containers": [{"image": IMAGE}]}}
DEPLOYMENT = item("Deployment", "gpu-operator", spec={"replicas": 1, "template": POD})
PLUGIN = item("DaemonSet", "nvidia-device-plugin-daemonset")
CHANGE = Difference("spec.template.spec.priorityClassName", None, "system-node-critical")


def adoption(*refusals: str) -> Adoption:
    objects = (
        Adoptee(PLUGIN, in_policy=True, differences=(CHANGE,)),
        Adoptee(item("ServiceAccount", "nvidia-operator-validator"), in_policy=False),
        Adoptee(
            item("Role", "nvidia-gpu-feature-discovery"), in_policy=True, reason="it is forbidden"
        ),
    )
    return Adoption(Operator((POLICY,), DEPLOYMENT), NAMESPACE, objects, refusals)


def check(verb: str, *clusters: Json) -> None:
    schema = json.loads((SCHEMAS / f"{verb}.json").read_text("utf-8"))
    document = {"format": f"gpustate.{verb}/1", "clusters": list(clusters)}
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(document)))


def text(lines: Iterator[list[tuple[str, str]]]) -> str:
    return "\n".join("".join(words for words, _ in pieces) for pieces in lines)


def test_documents_of_adopt_match_their_schema() -> None:
    planned = adoption_data(SERVER, NAMESPACE, adoption("suspend Argo CD first"))
    assert planned["objects"][0]["restarts_pods"] is True
    assert planned["deleted"] == ["clusterpolicy/cluster-policy"]
    done = Adopted(["daemonset/nvidia-device-plugin-daemonset"], 10, failures=["it is gone"])
    carried_out = adoption_data(SERVER, NAMESPACE, adoption(), done)
    assert "applied" not in carried_out
    done.applied = ["daemonset/nvidia-device-plugin-daemonset"]
    restarted = adoption_data(SERVER, NAMESPACE, adoption(), done)
    check("adopt", planned, carried_out, restarted, adoption_data(SERVER, NAMESPACE, None))
    assert "  1 objects changed to what the policy says" in text(adopted_lines(restarted))
    assert "changed" not in text(adopted_lines(carried_out))


def test_documents_of_release_match_their_schema() -> None:
    record = {"policies": [POLICY], "deployment": "gpu-operator", "replicas": 1, "objects": []}
    planned = release_data(SERVER, Handover(NAMESPACE, (PLUGIN,), record))
    done = Released(["daemonset/nvidia-device-plugin-daemonset"], started=True)
    carried_out = release_data(SERVER, Handover(NAMESPACE, (PLUGIN,), record), done)
    check("release", planned, carried_out, release_data(SERVER, Handover(NAMESPACE, (), None)))
    assert "deployment/gpu-operator started" in text(released_lines(carried_out))


@pytest.mark.parametrize("verb", ["adopt", "release"])
def test_a_key_that_is_not_published_is_no_document(verb: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(verb, {"server": SERVER, "namespace": NAMESPACE, "more": 1})


def test_a_plan_says_what_the_next_apply_changes() -> None:
    shown = text(adoption_lines(adoption_data(SERVER, NAMESPACE, adoption())))
    assert "later: spec.template.spec.priorityClassName: none -> 'system-node-critical'" in shown
    assert "restarts the pods of daemonset/nvidia-device-plugin-daemonset" in shown
    assert "deletes 1 objects that are not in the policy" in shown
    assert "no GPU Operator is running" in text(adoption_lines(adoption_data(SERVER, "x", None)))


def operators(kind: Kind, *_: Any, **__: Any) -> list[Json]:
    """An Operator with an exporter."""
    owner = {"uid": POLICY["metadata"]["uid"], "kind": "ClusterPolicy", "controller": True}
    template: Json = {"template": {"spec": {}}}
    exporter = item("DaemonSet", "nvidia-dcgm-exporter", spec=template)
    exporter["metadata"]["ownerReferences"] = [owner]
    return {CLUSTER_POLICY.name: [POLICY], "DaemonSet": [exporter]}.get(kind.name, [])


@pytest.mark.parametrize("states", [[], ["dcgm"], ["dcgm", "dcgm-exporter"]])
def test_pods_that_become_a_service_of_the_nodes_are_named_with_the_key(states: list[str]) -> None:
    cluster: Any = SimpleNamespace(find=operators)
    adoption = plan_adoption(cluster, [], NAMESPACE, states=states)
    shown = text(adoption_lines(adoption_data(SERVER, NAMESPACE, adoption)))
    key = "as pods with --set dcgmExporter.enabled=null"
    assert (key in shown) == ("dcgm-exporter" in states)


def test_refusals_and_failures_have_exit_codes() -> None:
    assert list(exit_codes(adoption_data(SERVER, NAMESPACE, adoption("no")))) == [EXIT_REFUSED]
    failed = adoption_data(SERVER, NAMESPACE, adoption(), Adopted(failures=["no"]))
    assert list(exit_codes(failed)) == [EXIT_ERROR]
