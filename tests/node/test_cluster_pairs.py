"""Two settings of a policy that change what nodes run, changed by one apply: done, or refused, and no node is left held.

Real: API server, kubelet, containerd, NVIDIA's device plugin, GPU feature discovery and container toolkit. Simulated: the GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import gpustate
from labkubernetes import get, kubectl
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

VALUES = """driver: {enabled: true}
dcgm: {enabled: false}
nfd: {enabled: true}
devicePlugin:
  config:
    create: true
    name: sharing
    data:
      whole: "version: v1"
      shared: |-
        version: v1
        sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""
LAYOUT = "nvidia.com/mig.config"
#: A key of the values, or the label of Nodes, before and after.
SETTINGS = {
    "driver": ("driver.version", "580.178.04", "595.91.07"),
    "strategy": ("mig.strategy", "single", "mixed"),
    "layout": (LAYOUT, "all-disabled", "all-1g.10gb"),
    "sharing": ("devicePlugin.config.default", "whole", "shared"),
    "toolkit": ("toolkit.enabled", "true", "false"),
    "cdi": ("cdi.enabled", "true", "false"),
    "plugin": ("devicePlugin.enabled", "true", "false"),
    "exporter": ("dcgmExporter.enabled", "false", "true"),
}
PAIRS = list(itertools.combinations(SETTINGS, 2))


@pytest.fixture(scope="module")
def cluster(lab_programs: None, kubeadm_labs: Callable[[LabSpec], Lab]) -> Lab:
    return kubeadm_labs(LabSpec(nodes=1, gpus=("2xH100",), kubernetes="1.36", pods=True))


def apply(lab: Lab, values: Path, changed: tuple[str, ...]) -> int:
    words = [
        "apply",
        values,
        "-i",
        lab.inventory,
        "--yes",
        "--cluster-objects",
        "--set",
        "cluster.install_nfd=true",
    ]
    for name, (key, *choices) in SETTINGS.items():
        choice = choices[name in changed]
        if key == LAYOUT:
            kubectl(lab, "label", "node", "--all", "--overwrite", f"{key}={choice}")
        else:
            words += ["--set", f'{key}="{choice}"' if name == "driver" else f"{key}={choice}"]
    return gpustate(*words).code


@pytest.mark.parametrize("pair", share("pairs of settings", PAIRS, most=1), ids="-".join)
def test_two_settings_change_in_one_apply(
    cluster: Lab, tmp_path: Path, pair: tuple[str, str]
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(VALUES)
    assert apply(cluster, values, ()) == 0
    for changed in (pair, ()):
        assert apply(cluster, values, changed) in (0, 5)
        (node,) = get(cluster, "nodes")["items"]
        assert not node["spec"].get("unschedulable")
        assert "gpustate.io/hold" not in (node["metadata"].get("annotations") or {})
