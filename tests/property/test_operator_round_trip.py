"""What a file of the Operator means goes to a policy in YAML and comes back: read, written, read again.

Upstream's own files are those of ../shared/upstream; the environment variable GPU_OPERATOR_CLONE names
a clone of the Operator's project, of which the samples and values of every release are taken.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate import Policy
from gpustate.gpu_operator import history
from gpustate.policies import operator
from gpustate.policies.converting import convert

ROOT = Path(__file__).parents[2]
UPSTREAM = ROOT.parent / "shared" / "upstream" / "gpu-operator"
FILES = [
    *(UPSTREAM / name for name in ("v1_clusterpolicy.yaml", "values.yaml")),
    UPSTREAM / "nvidia_v1alpha1_nvidiadriver.yaml",
    UPSTREAM / "nvidia_v1alpha1_gpucluster.yaml",
    *sorted((ROOT / "tests" / "golden" / "clusterpolicy").glob("*.yaml")),
    ROOT / "docs" / "examples" / "clusterpolicy.yaml",
]


def lost(policy: Policy) -> list[str]:
    """What a policy in YAML does not express; the limits of batches are options of ``apply``."""
    return [line for line in convert(policy, "yaml").lost if not line.startswith("pace ")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_of_a_published_file_is_lost_on_the_way_back(file: Path) -> None:
    if not file.is_file():
        pytest.skip("wants ../shared/upstream/gpu-operator beside the repository")
    policy = operator.read(file.read_text("utf-8"), file.name)
    assert policy.states
    assert lost(policy) == []


@pytest.mark.skipif(
    "GPU_OPERATOR_CLONE" not in os.environ, reason="wants GPU_OPERATOR_CLONE to name a clone"
)
def test_nothing_of_any_release_is_lost_on_the_way_back() -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", os.environ["GPU_OPERATOR_CLONE"], *words]
        return subprocess.run(command, capture_output=True, check=True).stdout.decode()

    files = 0
    for tag in history.releases():
        for name in git("ls-tree", "-r", "--name-only", tag).split():
            sample = name.startswith("config/samples/") and "kustomization" not in name
            if sample or name == "deployments/gpu-operator/values.yaml":
                files += 1
                text = git("show", f"{tag}:{name}")
                assert lost(operator.read(text, name, strict=False)) == [], (tag, name)
    assert files > 100


NAMES = st.sampled_from(["a", "b100", "default", "empty", "x-y"])
FLAG = st.sampled_from(["true", "false"])
ENV: dict[str, st.SearchStrategy[str]] = {
    "RUNTIME": st.sampled_from(["containerd", "crio", "docker"]),
    "NO_RUNTIME_CONFIG": FLAG,
    "CONTAINERD_CONFIG": st.sampled_from(["/etc/containerd/config.toml", "/x/y.toml"]),
    "CONTAINERD_SOCKET": st.sampled_from(
        [
            "/run/containerd/containerd.sock",
            "/run/k3s/containerd/containerd.sock",
            "/run/k0s/containerd.sock",
            "/var/snap/microk8s/common/run/containerd.sock",
        ]
    ),
    "RUNTIME_DROP_IN_CONFIG": st.just("/etc/containerd/conf.d/nv.toml"),
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": FLAG,
    "NVIDIA_RUNTIME_NAME": st.sampled_from(["nvidia", "gpu"]),
    "RUNTIME_RESTART_MODE": st.sampled_from(["none", "signal", "systemd"]),
    "RUNTIME_ENABLE_CDI": FLAG,
    "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": FLAG,
    "NVIDIA_CONTAINER_RUNTIME_MODE": st.sampled_from(["auto", "cdi", "legacy"]),
}


def variables(known: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[list[dict[str, str]]]:
    return st.fixed_dictionaries({}, optional=known).map(
        lambda found: [{"name": name, "value": value} for name, value in found.items()]
    )


def section(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={"enabled": st.none() | st.booleans(), **keys})


PLUGIN = st.dictionaries(
    NAMES,
    st.sampled_from(
        [
            {"version": "v1"},
            {"version": "v1", "flags": {"migStrategy": "mixed"}},
            {
                "sharing": {
                    "timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
                }
            },
            {"sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 2}]}}},
        ]
    ),
    min_size=1,
    max_size=3,
)


def switched(found: dict[str, object]) -> dict[str, object]:
    """Without ``enabled`` these are pods, whose image needs more than a version."""
    return found if found.get("enabled") is not None else {**found, "enabled": True}


SPEC = st.fixed_dictionaries(
    {},
    optional={
        "operator": st.fixed_dictionaries({}, optional={"runtimeClass": st.just("gpu")}),
        "driver": section(
            version=st.sampled_from(["580.65.06", "580", "570.86.15-ubuntu24.04"]),
            kernelModuleType=st.sampled_from(["auto", "open", "proprietary"]),
            usePrecompiled=st.booleans(),
            rdma=st.fixed_dictionaries({"enabled": st.booleans()}),
        ),
        "gds": section(version=st.sampled_from(["2.26.6", "v2.17.5-ubuntu22.04"])),
        "gdrcopy": section(version=st.just("v2.5.1")),
        "dcgm": section(version=st.just("4.6.0-1-ubuntu24.04")).map(switched),
        "dcgmExporter": section(
            version=st.sampled_from(["4.6.0-4.8.3-distroless", "4.8.3"]),
            hpcJobMapping=section(directory=st.just("/var/lib/jobs")),
        ).map(switched),
        "toolkit": section(version=st.just("v1.17.8-ubuntu20.04"), env=variables(ENV)),
        "cdi": section(),
        "gfd": section(),
        "mig": st.fixed_dictionaries({"strategy": st.sampled_from(["none", "single", "mixed"])}),
        "migManager": section(env=variables({"WITH_REBOOT": FLAG})),
        "devicePlugin": section(),
        "validator": st.fixed_dictionaries(
            {},
            optional={
                "cuda": st.fixed_dictionaries({"env": variables({"WITH_WORKLOAD": FLAG})}),
                "driver": st.fixed_dictionaries(
                    {"env": variables({"DISABLE_DEV_CHAR_SYMLINK_CREATION": FLAG})}
                ),
            },
        ),
    },
)
LAYOUTS = "version: v1\nmig-configs:\n  own: [{devices: all, mig-enabled: true, mig-devices: {7g.80gb: 1}}]\n"


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@st.composite
def files(draw: st.DrawFn) -> str:
    """A ClusterPolicy of everything that has words, with ConfigMaps and Nodes."""
    spec: dict[str, Any] = draw(SPEC)
    objects: list[dict[str, Any]] = []
    choices: list[str] = []
    if draw(st.booleans()):
        configs = draw(PLUGIN)
        if spec.get("mig") == {"strategy": "mixed"}:  # the device plugin refuses both together
            configs = {name: {} if "mps" in str(data) else data for name, data in configs.items()}
        choices = sorted(configs)
        texts = {name: yaml.safe_dump(data) for name, data in configs.items()}
        objects.append(config_map("plugin", texts))
        config = {"name": "plugin"}
        if draw(st.booleans()):
            config["default"] = draw(st.sampled_from(choices))
        spec.setdefault("devicePlugin", {})["config"] = config
    layouts = ["all-disabled", "all-balanced"]
    if draw(st.booleans()):
        layouts = ["own"]
        objects.append(config_map("layouts", {"config.yaml": LAYOUTS}))
        spec.setdefault("migManager", {})["config"] = {"name": "layouts"}
    if draw(st.booleans()):
        units = {"clients.yaml": "version: v1\nsystemd-services: [acme.service]\n"}
        objects.append(config_map("units", units))
        spec.setdefault("migManager", {})["gpuClientsConfig"] = {"name": "units"}
    if draw(st.booleans()):
        row = "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
        objects.append(config_map("rows", {"dcgm-metrics.csv": row}))
        spec.setdefault("dcgmExporter", {})["config"] = {"name": "rows"}
    for name in draw(st.lists(st.sampled_from(["gpu1", "gpu2", "gpu3"]), unique=True)):
        labels: dict[str, str] = {}
        if draw(st.booleans()):
            labels["nvidia.com/mig.config"] = draw(st.sampled_from(layouts))
        if draw(st.booleans()) and choices:
            labels["nvidia.com/device-plugin.config"] = draw(st.sampled_from(choices))
        objects.append(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        )
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": spec,
    }
    return yaml.safe_dump_all([policy, *objects])


@settings(
    max_examples=tries(120, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(files())
def test_no_setting_of_a_clusterpolicy_is_lost_in_yaml(text: str) -> None:
    policy = operator.read(text, "cp.yaml")
    assert lost(policy) == []


SECONDS = st.integers(0, 10**6)
SELECTOR = st.sampled_from(["", "app=train", "tier in (a, b),!keep", "a!=b"])
FLAG = st.booleans()
EVICTION = {"force": FLAG, "timeoutSeconds": SECONDS, "deleteEmptyDir": FLAG}
UPGRADE_POLICY = st.fixed_dictionaries(
    {"autoUpgrade": FLAG},
    optional={
        "maxParallelUpgrades": st.integers(0, 9),
        "maxUnavailable": st.sampled_from([1, "25%"]),
        "waitForCompletion": st.fixed_dictionaries(
            {}, optional={"podSelector": SELECTOR, "timeoutSeconds": SECONDS}
        ),
        "podDeletion": st.fixed_dictionaries({}, optional=EVICTION),
        "drain": st.fixed_dictionaries(
            {}, optional={"enable": FLAG, "podSelector": SELECTOR, **EVICTION}
        ),
    },
)


@settings(max_examples=tries(60, 20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(section=UPGRADE_POLICY)
def test_drains_of_any_upgrade_policy_are_preserved(section: dict[str, Any]) -> None:
    document = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy"},
        "spec": {"driver": {"upgradePolicy": section}},
    }
    policy = operator.read(yaml.safe_dump(document), "cp.yaml")
    assert section["autoUpgrade"] or policy.drain is None
    assert lost(policy) == []
