"""Two settings of a policy that change what nodes run, changed by one apply: done, or refused, and no node is left held.

Real: API server, kubelet, containerd, NVIDIA's device plugin, GPU feature discovery and container toolkit. Simulated: the GPUs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import dradriver
import pytest
from commands import Ran, gpustate
from labkubernetes import get, kubectl
from shares import share

from gpustate.manifests.ownership import DEVICE_PLUGIN
from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

VALUES = f"""driver: {{enabled: true}}
draDriver:
  repository: {dradriver.REPOSITORY}
  image: {dradriver.NAME}
  version: {dradriver.VERSION}
  gpus: {{kubeletPlugin: {{env: [{{name: GPUSTATE_LAB_ROOT, value: /host}}]}}}}
  computeDomains: {{enabled: false}}
dcgm: {{enabled: false}}
nfd: {{enabled: true}}
devicePlugin:
  config:
    create: true
    name: sharing
    data:
      whole: "version: v1"
      shared: |-
        version: v1
        sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: 4}}]}}}}
"""
LAYOUT = "nvidia.com/mig.config"
DRA = ("gpuCluster.deployCR", "driver.nvidiaDriverCRD.enabled")
#: A key of the values, or the label of Nodes, before and after.
SETTINGS = {
    "driver": ("driver.version", "580.178.04", "595.91.07"),
    "strategy": ("mig.strategy", "single", "mixed"),
    "layout": (LAYOUT, "all-disabled", "all-1g.10gb"),
    "sharing": ("devicePlugin.config.default", "whole", "shared"),
    "toolkit": ("toolkit.enabled", "true", "false"),
    "toolkit-version": ("toolkit.version", "v1.20.1", "v1.18.2"),
    "dra": ("clusterPolicy.deployCR", "true", "false"),
    "cdi": ("cdi.enabled", "true", "false"),
    "plugin": ("devicePlugin.enabled", "true", "false"),
    "exporter": ("dcgmExporter.enabled", "false", "true"),
}
PAIRS = list(itertools.combinations(SETTINGS, 2))


@pytest.fixture(scope="module")
def cluster(
    lab_programs: None,
    kubeadm_labs: Callable[[LabSpec], Lab],
    tmp_path_factory: pytest.TempPathFactory,
) -> Lab:
    lab = kubeadm_labs(LabSpec(nodes=1, gpus=("2xH100",), kubernetes="1.36", pods=True))
    values = tmp_path_factory.mktemp("policy") / "values.yaml"
    values.write_text(VALUES)
    assert apply(lab, values, ()).code == 0  # images are made on validated nodes
    dradriver.import_image(lab.nodes[0])
    return lab


def apply(lab: Lab, values: Path, changed: tuple[str, ...]) -> Ran:
    words = ["apply", values, "-i", lab.inventory, "--yes", "--cluster-objects"]
    words += ["--set", "cluster.install_nfd=true"]
    for name, (key, *choices) in SETTINGS.items():
        choice = choices[name in changed]
        if key == LAYOUT:
            kubectl(lab, "label", "node", "--all", "--overwrite", f"{key}={choice}")
        else:
            words += ["--set", f'{key}="{choice}"' if "version" in key else f"{key}={choice}"]
    for key in DRA if "dra" in changed else ():
        words += ["--set", f"{key}=true"]
    result = gpustate(*words)
    print(result.out)
    return result


@pytest.mark.parametrize("pair", share("pairs of settings", PAIRS, most=1), ids="-".join)
def test_two_settings_change_in_one_apply(
    cluster: Lab, tmp_path: Path, pair: tuple[str, str]
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(VALUES)
    assert apply(cluster, values, ()).code == 0
    for changed in (pair, ()):
        assert apply(cluster, values, changed).code in (0, 5)
        assert in_service(cluster)


def in_service(lab: Lab) -> bool:
    (node,) = get(lab, "nodes")["items"]
    held = "gpustate.io/hold" in (node["metadata"].get("annotations") or {})
    return not held and not node["spec"].get("unschedulable")


def test_a_driver_changes_where_nothing_offers_the_gpus_any_more(
    cluster: Lab, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(VALUES)
    assert apply(cluster, values, ()).code == 0
    (plugin,) = (
        item["metadata"]
        for item in get(cluster, "daemonsets", "-A")["items"]
        if item["metadata"]["name"] == DEVICE_PLUGIN
    )
    # Its kubelet may still list the GPUs.
    kubectl(cluster, "delete", "daemonset", "-n", plugin["namespace"], plugin["name"])
    assert apply(cluster, values, ("driver", "plugin")).code == 0
    assert in_service(cluster)
    record = {"run": "r", "person": "ann@ops1", "text": "driver", "phase": "failed", "since": ""}
    hold = {"gpustate.io/hold": json.dumps({**record, "gpus_before": 2})}
    patch = {"metadata": {"annotations": hold}, "spec": {"unschedulable": True}}
    (node,) = get(cluster, "nodes")["items"]
    name = node["metadata"]["name"]
    words = ("--field-manager=gpustate", "--type=merge", "--patch", json.dumps(patch))
    kubectl(cluster, "patch", "node", name, *words)
    result = apply(cluster, values, ("plugin",))
    assert f"nothing offers the GPUs of Node {name}" in result.out
    assert result.code == 0
    assert in_service(cluster)
    assert apply(cluster, values, ()).code == 0
