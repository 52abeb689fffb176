"""Components of Nodes for virtual machines: when there are any, and what differs from those for containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpustate import policies
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterSettings
from gpustate.manifests.build import build, node_labels
from gpustate.manifests.cluster_part import settings_of

POLICY = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"
SWITCHES = "".join(
    f"  {name}: {{enabled: true}}\n"
    for name in ("sandboxDevicePlugin", "kataSandboxDevicePlugin", "ccManager", "vfioManager")
)
KUBEVIRT = "nvidia-sandbox-device-plugin-daemonset"
KATA, CC = "nvidia-kata-sandbox-device-plugin-daemonset", "nvidia-cc-manager"


def read(tmp_path: Path, text: str, name: str = "cp.yaml") -> tuple[ClusterSettings, list[str]]:
    file = tmp_path / name
    file.write_text(text)
    policy = policies.load(str(file))
    assert policy.cluster is not None
    return settings_of(policy), list(policy.notes)


def objects(settings: ClusterSettings) -> dict[str, dict[str, Any]]:
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in build(settings, images())}


def daemon_sets(settings: ClusterSettings) -> set[str]:
    names = {name.partition("/")[2] for name in objects(settings) if name.startswith("DaemonSet/")}
    return names & {KUBEVIRT, KATA, CC, "nvidia-vfio-manager"}


@pytest.mark.parametrize(
    ("workloads", "wanted"),
    [
        ("{enabled: false}", set()),
        ("{enabled: true}", {KUBEVIRT}),
        ("{enabled: true, mode: kubevirt}", {KUBEVIRT}),
        ("{enabled: true, mode: kata}", {KATA, CC}),
    ],
)
def test_the_mode_decides_which_run(tmp_path: Path, workloads: str, wanted: set[str]) -> None:
    spec = f"  sandboxWorkloads: {workloads}\n"
    settings, notes = read(tmp_path, POLICY + spec + SWITCHES)
    assert daemon_sets(settings) == wanted
    unused = " ".join(note for note in notes if "not used" in note)
    for name in ("sandboxDevicePlugin", "kataSandboxDevicePlugin", "ccManager"):
        runs = {"sandboxDevicePlugin": KUBEVIRT, "ccManager": CC}.get(name, KATA) in wanted
        assert (f"{name}.enabled" in unused) is not runs, notes
    settings, _ = read(tmp_path, POLICY + spec)
    assert daemon_sets(settings) == set(), "off by default in a ClusterPolicy"


def test_the_chart_enables_them(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, "sandboxWorkloads: {enabled: true, mode: kata}\n", "v.yaml")
    assert daemon_sets(settings) == {KATA, CC}
    found = objects(settings)[f"DaemonSet/{CC}"]["spec"]["template"]["spec"]["containers"][0]
    assert found["image"] == "nvcr.io/nvidia/cloud-native/k8s-cc-manager:v0.4.3"
    assert {"name": "DEFAULT_CC_MODE", "value": "on"} in found["env"]


def test_pods_differ_from_those_for_containers(tmp_path: Path) -> None:
    spec = "  sandboxWorkloads: {enabled: true, mode: kata}\n"
    settings, _ = read(tmp_path, POLICY + spec + SWITCHES)
    found = objects(settings)
    manager, plugin = found[f"DaemonSet/{CC}"], found[f"DaemonSet/{KATA}"]
    assert manager["spec"]["selector"] == {"matchLabels": {"name": CC}}
    assert manager["spec"]["template"]["metadata"]["labels"]["name"] == CC
    for one in (manager, plugin):
        pod = one["spec"]["template"]["spec"]
        assert "runtimeClassName" not in pod
        (label,) = pod["nodeSelector"]
        assert label not in node_labels(settings), "not on Nodes for containers"
    assert manager["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "memory": "200Mi"
    }
    role = found["Role/nvidia-kata-sandbox-device-plugin"]
    assert [one["verbs"] for one in role["rules"]] == [
        ["get", "create", "delete"],
        ["get", "create", "update"],
    ]


def test_the_plugin_of_kubevirt_has_no_rights(tmp_path: Path) -> None:
    settings, _ = read(tmp_path, POLICY + "  sandboxWorkloads: {enabled: true}\n" + SWITCHES)
    found = objects(settings)
    assert not [name for name in found if "Role" in name and "sandbox" in name]
    pod = found[f"DaemonSet/{KUBEVIRT}"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert {one["hostPath"]["path"] for one in pod["volumes"]} == {
        *("/var/lib/kubelet/device-plugins", "/dev/vfio", "/var/run/cdi")
    }
