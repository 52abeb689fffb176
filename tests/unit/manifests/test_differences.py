"""Two versions of an object, compared field by field."""

from __future__ import annotations

import copy
from typing import Any

from gpustate.manifests.build import build
from gpustate.manifests.differences import Difference, additions, differences
from gpustate.manifests.ownership import owned_fields
from gpustate.manifests.settings import ClusterSettings

IMAGES = {"devicePlugin": "p:v1", "gfd": "g:v1"}


def plugin() -> dict[str, Any]:
    return build(ClusterSettings(), IMAGES)[-1]


def test_fields_of_the_server_are_not_compared() -> None:
    one, other = plugin(), plugin()
    other["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 3, "managedFields": []}
    other["status"] = {"numberReady": 1}
    counted = {"deprecated.daemonset.template.generation": "3"}
    other["metadata"]["annotations"] = {**one["metadata"].get("annotations", {}), **counted}
    del other["apiVersion"]
    assert differences(one, other) == []


def test_elements_with_names_are_compared_one_by_one() -> None:
    one, other = plugin(), plugin()
    container = other["spec"]["template"]["spec"]["containers"][0]
    container["image"] = "p:v2"
    container["env"].insert(0, {"name": "NEW", "value": "1"})
    other["metadata"]["labels"]["example.com/x"] = "y"
    other["spec"]["template"]["spec"]["tolerations"] = []
    at = "spec.template.spec.containers[nvidia-device-plugin]"
    tolerations = one["spec"]["template"]["spec"]["tolerations"]
    assert differences(one, other) == [
        Difference("metadata.labels[example.com/x]", None, "y"),
        Difference(f"{at}.env[NEW]", None, {"name": "NEW", "value": "1"}),
        Difference(f"{at}.image", "p:v1", "p:v2"),
        Difference("spec.template.spec.tolerations", tolerations, []),
    ]


def test_missing_and_empty_are_the_same() -> None:
    one = plugin()
    other = copy.deepcopy(one)
    other["metadata"]["annotations"] = {}
    assert differences(one, other) == []


def test_owned_fields_are_those_that_were_applied() -> None:
    item = plugin()
    assert owned_fields(item, "gpustate") is None
    item["metadata"]["managedFields"] = [
        {"manager": "gpustate", "operation": "Update", "fieldsV1": {"f:a": {}}},
        {"manager": "gpustate", "operation": "Apply", "subresource": "status", "fieldsV1": {}},
        {"manager": "gpustate", "operation": "Apply", "fieldsV1": {"f:b": {}}},
    ]
    assert owned_fields(item, "gpustate") == {"f:b": {}}


def test_a_variable_that_somebody_added_to_a_container_is_named() -> None:
    item = plugin()
    container = item["spec"]["template"]["spec"]["containers"][0]
    names = [one["name"] for one in container["env"]]
    container["env"].append({"name": "MIG_STRATEGY", "value": "mixed"})
    container["terminationMessagePath"] = "/dev/termination-log"

    def fields(env: list[str], **more: Any) -> dict[str, Any]:
        variables = {f'k:{{"name":"{name}"}}': {".": {}, "f:name": {}} for name in env}
        at = {'k:{"name":"nvidia-device-plugin"}': {".": {}, "f:env": variables, **more}}
        template = {"f:metadata": {"f:annotations": {"f:restartedAt": {}}}}
        return {"f:spec": {"f:template": {**template, "f:spec": {"f:containers": at}}}}

    own = {"manager": "gpustate", "operation": "Apply", "fieldsV1": fields(names)}
    path = {"f:terminationMessagePath": {}}
    theirs: dict[str, Any] = {"manager": "kubectl-edit", "operation": "Update"}
    theirs["fieldsV1"] = fields(["MIG_STRATEGY"], **path)
    item["metadata"]["managedFields"] = [own, theirs]
    (addition,) = additions(item)
    assert addition.manager == "kubectl-edit"
    assert addition.pointer == f"/spec/template/spec/containers/0/env/{len(names)}"
    field = "spec.template.spec.containers[nvidia-device-plugin].env[MIG_STRATEGY]"
    value = {"name": "MIG_STRATEGY", "value": "mixed"}
    assert addition.difference == Difference(field, value, None)
    item["metadata"]["managedFields"] = [own, {**theirs, "subresource": "status"}]
    assert additions(item) == []
    item["metadata"]["managedFields"] = [theirs]
    assert additions(item) == []
