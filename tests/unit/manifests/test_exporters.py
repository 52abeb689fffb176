"""DCGM, its exporter and the node status exporter: objects, and where they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpustate import Policy, policies
from gpustate.core.outcome import NodeResult, Outcome, StateResult
from gpustate.formats.dcgm import shipped
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterSettings, Component, Counters, Exporter, Monitor
from gpustate.manifests.build import build, node_labels
from gpustate.manifests.cluster_part import settings_of
from gpustate.reconcile.nodes import states_of
from gpustate.states.dcgm import DcgmRunning
from gpustate.states.dcgm_exporter import DcgmExporterRunning

POLICY = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"
DCGM, EXPORTER, STATUS = "nvidia-dcgm", "nvidia-dcgm-exporter", "nvidia-node-status-exporter"
DEPLOY = "nvidia.com/gpu.deploy."


def read(tmp_path: Path, text: str, name: str = "cp.yaml") -> Policy:
    file = tmp_path / name
    file.write_text(text)
    return policies.load(str(file))


def objects_of(policy: Policy) -> dict[str, dict[str, Any]]:
    assert policy.cluster is not None
    return objects(settings_of(policy))


def objects(settings: ClusterSettings) -> dict[str, dict[str, Any]]:
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in build(settings, images())}


def pod(found: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = found[f"DaemonSet/{name}"]["spec"]["template"]["spec"]
    return spec


def variables(found: dict[str, dict[str, Any]], name: str) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod(found, name)["containers"][0]["env"]}


def daemon_sets(policy: Policy) -> set[str]:
    names = (name.partition("/") for name in objects_of(policy))
    return {name for kind, _, name in names if kind == "DaemonSet"} & {DCGM, EXPORTER}


@pytest.mark.parametrize(
    ("spec", "pods", "states"),
    [
        ("  gfd: {}\n", {DCGM, EXPORTER}, set()),
        ("  dcgm: {enabled: false}\n", {EXPORTER}, set()),
        ("  dcgmExporter: {enabled: false}\n", {DCGM}, set()),
        ("  dcgmExporter: {enabled: true}\n", set(), {"dcgm-exporter"}),
        ("  dcgm: {enabled: true}\n", {EXPORTER}, {"dcgm"}),
        (
            "  dcgm: {enabled: true}\n  dcgmExporter: {enabled: true}\n",
            set(),
            {"dcgm", "dcgm-exporter"},
        ),
    ],
)
def test_dcgm_runs_as_pods_or_as_services_of_the_nodes_and_never_as_both(
    tmp_path: Path, spec: str, pods: set[str], states: set[str]
) -> None:
    policy = read(tmp_path, POLICY + spec)
    assert daemon_sets(policy) == pods
    assert {one.name for one in policy.states} & {"dcgm", "dcgm-exporter"} == states


@pytest.mark.parametrize(
    ("values", "pods"),
    [
        ("gfd: {}\n", {EXPORTER}),
        ("dcgm: {enabled: null}\n", {DCGM, EXPORTER}),
        ("dcgmExporter: {enabled: null}\n", {EXPORTER}),
        ("dcgmExporter: {enabled: true}\n", set()),
    ],
)
def test_the_chart_has_no_host_engine_by_default(
    tmp_path: Path, values: str, pods: set[str]
) -> None:
    assert daemon_sets(read(tmp_path, f"toolkit: {{}}\n{values}", "values.yaml")) == pods


def test_the_exporter_uses_the_host_engine_that_there_is(tmp_path: Path) -> None:
    found = objects_of(read(tmp_path, POLICY + "  gfd: {}\n"))
    assert variables(found, EXPORTER)["DCGM_REMOTE_HOSTENGINE_INFO"] == "nvidia-dcgm:5555"
    assert "hostNetwork" not in pod(found, EXPORTER)
    assert found["Service/nvidia-dcgm"]["spec"]["internalTrafficPolicy"] == "Local"
    found = objects_of(read(tmp_path, POLICY + "  dcgm: {enabled: true}\n"))
    assert variables(found, EXPORTER)["DCGM_REMOTE_HOSTENGINE_INFO"] == "localhost:5555"
    assert pod(found, EXPORTER)["hostNetwork"] is True
    assert pod(found, EXPORTER)["dnsPolicy"] == "ClusterFirstWithHostNet"
    found = objects_of(read(tmp_path, POLICY + "  dcgm: {enabled: false}\n"))
    assert "DCGM_REMOTE_HOSTENGINE_INFO" not in variables(found, EXPORTER)


def test_what_is_not_used_where_it_runs_is_noted(tmp_path: Path) -> None:
    notes = read(tmp_path, POLICY + "  dcgmExporter: {enabled: true, hostPID: true}\n").notes
    assert any(
        "not used: dcgmExporter.hostPID (line 5): dcgmExporter.enabled is" in n for n in notes
    )
    assert not any("hostPID" in n and "--cluster-objects" in n for n in notes)
    spec = "  dcgmExporter: {hpcJobMapping: {enabled: true}, hostPID: true}\n"
    notes = read(tmp_path, POLICY + spec).notes
    (note,) = (n for n in notes if "carried out only with --cluster-objects" in n)
    assert "dcgmExporter.hpcJobMapping.enabled" in note
    assert "dcgmExporter.hostPID" in note


def everything(**more: Any) -> ClusterSettings:
    return ClusterSettings(
        dcgm=Component(), dcgm_exporter=Exporter(**more), node_status_exporter=Component()
    )


def test_a_token_and_rights_only_where_the_exporter_reads_the_api() -> None:
    plain = objects(everything())
    assert pod(plain, EXPORTER)["automountServiceAccountToken"] is False
    assert not [name for name in plain if "Role" in name and "dcgm" in name]
    for more in ({"pod_labels": True}, {"pod_uid": True}):
        found = objects(everything(**more))
        assert pod(found, EXPORTER)["automountServiceAccountToken"] is True
        role = found["ClusterRole/nvidia-dcgm-exporter-read-pods"]
        assert role["rules"][0]["resources"] == ["pods"]
        binding = found["ClusterRoleBinding/nvidia-dcgm-exporter-read-pods"]
        assert binding["subjects"][0]["name"] == EXPORTER
    env = {"DCGM_EXPORTER_CONFIGMAP_DATA": "gpu-operator:counters"}
    found = objects(everything(env=env))
    assert found["Role/nvidia-dcgm-exporter"]["rules"][0]["resources"] == ["configmaps"]
    assert "Role/nvidia-dcgm-exporter" not in objects(
        everything(env={"DCGM_EXPORTER_CONFIGMAP_DATA": "none"})
    )
    nodes = plain["ClusterRole/nvidia-node-status-exporter"]["rules"]
    assert nodes == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]


def test_counters_are_mounted_and_managed_if_the_policy_has_them() -> None:
    text = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
    found = objects(everything(counters=Counters("rows", {"dcgm-metrics.csv": text})))
    assert found["ConfigMap/rows"]["data"] == {"dcgm-metrics.csv": text}
    path = "/etc/dcgm-exporter/dcgm-metrics.csv"
    assert variables(found, EXPORTER)["DCGM_EXPORTER_COLLECTORS"] == path
    mounts = pod(found, EXPORTER)["containers"][0]["volumeMounts"]
    assert [one["mountPath"] for one in mounts if one["name"] == "metrics-config"] == [path]
    found = objects(everything(counters=Counters("theirs")))
    assert "ConfigMap/theirs" not in found
    volume = pod(found, EXPORTER)["volumes"][-1]["configMap"]
    assert volume["name"] == "theirs"


def alerts(settings: ClusterSettings) -> set[str]:
    groups = objects(settings)["PrometheusRule/nvidia-dcgm-exporter"]["spec"]["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def test_alert_rules_are_those_whose_metrics_are_served() -> None:
    monitor = Monitor(enabled=True)
    own = Counters("own", {"dcgm-metrics.csv": shipped.counters_file()})
    whole, default = (
        alerts(everything(monitor=monitor, counters=own)),
        alerts(everything(monitor=monitor)),
    )
    assert len(whole) == shipped.rules().count("- alert:")
    assert {"GpuXidReboot", "GpuRowRemapPending", "GpuFabricFailed"} <= whole - default
    assert {"GpuVanished", "GpuRowRemapFailure", "GpuHot"} <= default < whole
    unknown = Counters("theirs")
    assert alerts(everything(monitor=monitor, counters=unknown)) == {
        "DcgmExporterDown",
        "DcgmExporterMissing",
    }


def test_prometheus_and_grafana_find_what_is_for_them() -> None:
    assert not [name for name in objects(everything()) if "Monitor/" in name or "Rule/" in name]
    monitor = Monitor(
        enabled=True,
        interval="15s",
        scrape_timeout="10s",
        honor_labels=False,
        labels={"release": "prom"},
        relabelings=({"targetLabel": "node", "action": "replace"},),
    )
    found = objects(everything(monitor=monitor))
    of_exporter = found[f"ServiceMonitor/{EXPORTER}"]
    assert of_exporter["spec"]["endpoints"] == [
        {
            "port": "gpu-metrics",
            "path": "/metrics",
            "interval": "15s",
            "scrapeTimeout": "10s",
            "honorLabels": False,
            "relabelings": [{"targetLabel": "node", "action": "replace"}],
        }
    ]
    for name in (EXPORTER, STATUS):
        service = found[f"Service/{name}"]
        assert service["metadata"]["annotations"] == {"prometheus.io/scrape": "true"}
        selected = found[f"ServiceMonitor/{name}"]["spec"]["selector"]["matchLabels"]
        assert selected.items() <= service["metadata"]["labels"].items()
        assert found[f"ServiceMonitor/{name}"]["metadata"]["labels"]["release"] == "prom"
        pods = found[f"DaemonSet/{name}"]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= pods.items()
    assert found[f"ServiceMonitor/{STATUS}"]["spec"]["endpoints"] == [
        {"port": "node-status", "path": "/metrics"}
    ]
    dashboard = found[f"ConfigMap/{EXPORTER}-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = dashboard["data"].values()
    assert json.loads(text)["uid"] == "gpustate-dcgm"


def test_the_kubelet_s_directory_is_where_the_policy_says(tmp_path: Path) -> None:
    policy = read(tmp_path, POLICY + "  hostPaths: {kubeletRootDir: /data/kubelet}\n")
    volumes = pod(objects_of(policy), EXPORTER)["volumes"]
    assert volumes[0]["hostPath"] == {"path": "/data/kubelet/pod-resources"}


def test_nodes_with_a_service_do_not_get_the_label_of_the_pods() -> None:
    policy = Policy(DcgmRunning(), DcgmExporterRunning(ensure="absent"), cluster=everything())
    assert policy.cluster is not None
    outcomes = {"dcgm": Outcome.UNCHANGED, "dcgm-exporter": Outcome.CHANGED}
    result = NodeResult("a", states=[StateResult(*one) for one in outcomes.items()])
    states = states_of(result, policy)
    assert states == {"dcgm"}
    labels = node_labels(settings_of(policy), states)
    assert f"{DEPLOY}dcgm" not in labels
    assert labels[f"{DEPLOY}dcgm-exporter"] == "true"
    result = NodeResult("a", states=[StateResult("dcgm", Outcome.NOT_APPLICABLE)])
    assert node_labels(settings_of(policy), states_of(result, policy))[f"{DEPLOY}dcgm"] == "true"
