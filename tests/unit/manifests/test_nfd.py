"""Node feature discovery: its objects against what Helm renders from the chart with the same values.

A difference is only: labels of Helm, the checksum of a configuration, and fields that the API server fills in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpustate import policies
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterSettings, nfd, ownership
from gpustate.manifests.build import build
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import BY_NAME
from gpustate.manifests.settings import STARTUP_TAINT

DATA = Path(__file__).parents[2] / "data" / "nfd-chart"
CASES = sorted(file.name.removesuffix(".values.yaml") for file in DATA.glob("*.values.yaml"))
DEFINITION = "CustomResourceDefinition"
#: Labels of Helm, and of gpustate.
LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of")


def comparable(value: Any) -> Any:
    """Without empty fields, and without the version of a field reference, which the API server fills in."""
    if isinstance(value, dict):
        found = {key: comparable(below) for key, below in value.items()}
        if "fieldPath" in found:
            found.pop("apiVersion", None)
        return {key: below for key, below in found.items() if below not in (None, {}, [], "")}
    return [comparable(one) for one in value] if isinstance(value, list) else value


def normal(item: dict[str, Any]) -> Any:
    found = comparable(item)
    for label in LABELS:
        found["metadata"]["labels"].pop(label, None)
    if item["kind"] == "ConfigMap":
        found["data"] = {key: yaml.safe_load(text) for key, text in item["data"].items()}
    pod = found.get("spec", {}).get("template", {}).get("metadata", {})
    pod.get("annotations", {}).pop("checksum/config", None)
    if pod.get("annotations") == {}:
        del pod["annotations"]
    if item["kind"] == "PodMonitor":  # the chart leaves both to Helm
        found["metadata"].pop("namespace", None)
        found["metadata"]["labels"].pop("app.kubernetes.io/version", None)
    return found


def restricted(rendered: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Helm renders, with a seccomp profile for the programs that need no more for the level restricted."""
    for item in rendered:
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            pod["securityContext"] = pod.get("securityContext") or {
                "seccompProfile": {"type": "RuntimeDefault"}
            }
    return rendered


def by_name(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{one['kind']}/{one['metadata']['name']}": normal(one)
        for one in items
        if one["kind"] != DEFINITION
    }


@pytest.mark.parametrize("name", CASES)
def test_objects_are_those_that_helm_renders(name: str) -> None:
    values = yaml.safe_load((DATA / f"{name}.values.yaml").read_text())
    rendered = list(yaml.safe_load_all((DATA / f"{name}.yaml").read_text()))
    found = list(nfd.objects(values, "gpu-operator", rules=False))
    assert by_name(found) == by_name(restricted(rendered))
    assert all(ownership.is_of_nfd(one) for one in found)
    assert all(one["apiVersion"] == BY_NAME[one["kind"]].version for one in found)


def test_definitions_come_first_and_those_of_topologies_only_when_asked_for() -> None:
    values = yaml.safe_load((DATA / "all.values.yaml").read_text())
    settings = ClusterSettings(node_feature_discovery=values)
    found = build(settings, images())
    definitions = [one["metadata"]["name"] for one in found if one["kind"] == DEFINITION]
    assert [one["kind"] for one in found[: len(definitions)]] == [DEFINITION] * len(definitions)
    assert ownership.NFD_DEFINITION in definitions
    assert "noderesourcetopologies.topology.node.k8s.io" in definitions
    plain = build(ClusterSettings(node_feature_discovery={}), images())
    assert sum(one["kind"] == DEFINITION for one in plain) == len(definitions) - 1


VALUES = """\
nfd: {enabled: true, nodefeaturerules: true}
node-feature-discovery:
  worker: {config: {sources: {pci: {deviceClassWhitelist: ["03"]}}}, tolerations: null}
global: {imagePullSecrets: [{name: mine}]}
"""


def load(tmp_path: Path, text: str) -> tuple[ClusterSettings, str]:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    policy = policies.load(str(file))
    assert policy.cluster is not None
    return settings_of(policy), " ".join(policy.notes)


def test_values_of_the_operator_s_chart_are_merged_as_helm_does(tmp_path: Path) -> None:
    settings, _ = load(tmp_path, VALUES)
    found = {f"{one['kind']}/{one['metadata']['name']}": one for one in build(settings, images())}
    worker = found["DaemonSet/gpu-operator-node-feature-discovery-worker"]["spec"]["template"]
    startup = {"key": STARTUP_TAINT, "operator": "Exists"}
    assert worker["spec"]["tolerations"] == [startup], "null removes the chart's"
    assert worker["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    assert worker["spec"]["priorityClassName"] == "system-node-critical"
    config = found["ConfigMap/gpu-operator-node-feature-discovery-worker-conf"]["data"]
    assert yaml.safe_load(config["nfd-worker.conf"]) == {
        "sources": {"pci": {"deviceClassWhitelist": ["03"], "deviceLabelFields": ["vendor"]}}
    }
    rule = found["NodeFeatureRule/nvidia-kernel-modules"]["spec"]["rules"]
    assert [one["labels"] for one in rule] == [
        {f"nvidia.com/{name}.capable": "true"} for name in ("gdrcopy", "gds", "peermem")
    ]


def test_a_pull_secret_that_is_named_twice_is_one() -> None:
    values = {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}
    found = [one for one in nfd.objects(values, "n", rules=False) if one["kind"] == "Deployment"]
    secrets = [one["spec"]["template"]["spec"]["imagePullSecrets"] for one in found]
    assert secrets
    assert all(one == [{"name": "a"}] for one in secrets)


def test_it_is_installed_only_if_the_file_itself_says_so(tmp_path: Path) -> None:
    text = "devicePlugin: {enabled: true}\nnode-feature-discovery: {worker: {port: 9090}}\n"
    settings, notes = load(tmp_path, text)
    assert settings.node_feature_discovery is None
    assert not settings.module_rules
    assert "not used: node-feature-discovery.worker.port (line 2): nfd.enabled is not" in notes


def test_all_its_pods_tolerate_the_start_up_taint_that_new_nodes_have() -> None:
    settings = ClusterSettings(
        node_feature_discovery={"topologyUpdater": {"enable": True}},
        startup_taint="example.com/new",
    )
    found = [
        one["spec"]["template"]["spec"]["tolerations"]
        for one in build(settings, images())
        if ownership.is_of_nfd(one) and one["kind"] in ("Deployment", "DaemonSet")
    ]
    assert len(found) == 4
    assert all({"key": "example.com/new", "operator": "Exists"} in one for one in found)
