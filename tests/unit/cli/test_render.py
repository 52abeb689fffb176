"""``gpustate cluster render``: the objects of a policy as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from commandline import Cli

POLICY = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec: {}\n"
PYTHON = """\
from gpustate import Policy
from gpustate.manifests import ClusterSettings, Component
from gpustate.states.nouveau import NouveauBlacklisted

policy = Policy(NouveauBlacklisted(), cluster=ClusterSettings(device_plugin=Component(image="p:v1")))
"""


@pytest.fixture(autouse=True)
def files(project: Path) -> None:
    (project / "cp.yaml").write_text(POLICY)
    (project / "own.py").write_text(PYTHON)
    (project / "none.yaml").write_text("format: gpustate.policy/1\nstates: {nouveau: }\n")


def test_it_prints_the_same_bytes_every_time(gpustate: Cli) -> None:
    first, second = (
        gpustate("cluster", "render", "cp.yaml"),
        gpustate("cluster", "render", "cp.yaml"),
    )
    assert first.status == 0, first
    assert first.out == second.out
    kinds = [one["kind"] for one in yaml.safe_load_all(first.out)]
    assert kinds[0] == "Namespace"
    assert kinds[-1] == "DaemonSet"


def test_json_is_one_list_of_the_same_objects(gpustate: Cli) -> None:
    text, document = (
        gpustate("cluster", "render", "cp.yaml"),
        gpustate("cluster", "render", "cp.yaml", "-o", "json"),
    )
    assert json.loads(document.out)["items"] == list(yaml.safe_load_all(text.out))


def test_node_feature_discovery_is_there_when_asked_for(gpustate: Cli) -> None:
    done = gpustate("cluster", "render", "cp.yaml", "--set", "cluster.install_nfd=true")
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.out)}
    name = "gpu-operator-node-feature-discovery-master"
    assert ("Deployment", name) in found
    # As in the Operator's chart; otherwise no label of NVIDIA's is published.
    config = yaml.safe_load(found["ConfigMap", f"{name}-conf"]["data"]["nfd-master.conf"])
    assert config == {"extraLabelNs": ["nvidia.com"]}
    assert "node-feature-discovery" not in gpustate("cluster", "render", "cp.yaml").out


def test_options_change_release_namespace_and_values(gpustate: Cli, project: Path) -> None:
    done = gpustate(
        *("cluster", "render", "cp.yaml", "--release", "v25.3.0"),
        *("--set", "cluster.namespace=gpus"),
        *("--set", "psa.enabled=true", "--out", "objects.yaml"),
    )
    assert done.status == 0, done
    found = list(yaml.safe_load_all((project / "objects.yaml").read_text()))
    labels = found[0]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert {one["metadata"].get("namespace", "gpus") for one in found} == {"gpus"}
    image = found[-1]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.endswith(":v0.17.1")


def test_a_policy_in_python_has_objects_too(gpustate: Cli) -> None:
    done = gpustate("cluster", "render", "own.py", "--release", "v24.9.0")
    assert done.status == 0, done
    found = {one["metadata"]["name"]: one for one in yaml.safe_load_all(done.out)}
    plugin = found["nvidia-device-plugin-daemonset"]["spec"]["template"]["spec"]
    assert plugin["containers"][0]["image"] == "p:v1"
    discovery = found["gpu-feature-discovery"]["spec"]["template"]["spec"]
    assert discovery["containers"][0]["image"].endswith(":v0.17.0-ubi9")


def test_a_policy_without_objects_is_one_clear_error(gpustate: Cli) -> None:
    done = gpustate("cluster", "render", "none.yaml")
    assert done.status == 1
    assert done.err.startswith("gpustate: none.yaml: the policy has no objects of a cluster; add")


def test_a_key_without_effect_is_a_warning_beside_the_output(gpustate: Cli, project: Path) -> None:
    (project / "typo.yaml").write_text(POLICY.replace("{}", "{devicePlugn: {enabled: false}}"))
    done, right = (
        gpustate("cluster", "render", "typo.yaml"),
        gpustate("cluster", "render", "cp.yaml"),
    )
    assert done.status == 0, done
    assert "typo.yaml:4: warning: " in done.err
    assert "devicePlugn" in done.err
    assert done.out == right.out
