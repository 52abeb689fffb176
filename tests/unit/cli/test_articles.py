"""What introductions to the GPU Operator tell their readers to type works with gpustate as it stands there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from commandline import Cli

from gpustate import policies
from gpustate.core.policy import Policy, parameters
from gpustate.errors import PolicyError
from gpustate.gpu_operator import history
from gpustate.policies import Changes
from gpustate.policies.files import CHART

ARTICLES = Path(__file__).parents[2] / "data/articles"
DEFAULTS = history.chart_defaults()
MIXED = '[{"op":"replace","path":"/spec/mig/strategy","value":"mixed"}]'
CLUSTER_POLICY = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec: {operator: {}, daemonsets: {}, driver: {}, toolkit: {}, devicePlugin: {}, dcgm: {}, dcgmExporter: {}, nodeStatusExporter: {}, gfd: {}}
"""
HELM_RELEASE = """\
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: gpu-operator, namespace: gpu-operator}
spec:
  chart: {spec: {chart: gpu-operator, version: v25.10.1, sourceRef: {kind: HelmRepository, name: nvidia}}}
  values: {toolkit: {enabled: true}}
"""
APPLICATION = """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: gpu-operator}
spec:
  source:
    chart: gpu-operator
    targetRevision: v25.10.1
    helm: {valuesObject: {toolkit: {enabled: true}}}
"""
SEVERAL = f"{CLUSTER_POLICY}---\n{(ARTICLES / 'time-slicing-config.yaml').read_text()}"
OPERATOR_FILES = {
    "cp.yaml": CLUSTER_POLICY,
    "several.yaml": SEVERAL,
    "values.yaml": "toolkit: {enabled: true}\n",
    "empty.yaml": "",
    "braces.yaml": "{}\n",
    "comment.yaml": "# the site's values\n",
    "helmrelease.yaml": HELM_RELEASE,
    "application.yaml": APPLICATION,
}


@pytest.fixture(autouse=True)
def _files(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    shutil.copytree(ARTICLES, project, dirs_exist_ok=True)
    for name, text in OPERATOR_FILES.items():
        Path(name).write_text(text)


def load(
    source: str, *, strict: bool = False, release: str | None = None, **changes: str
) -> Policy:
    of_options = Changes(**{name: (text,) for name, text in changes.items()})
    return policies.load(source, changes=of_options, strict=strict, release=release)


def states(policy: Policy) -> dict[str, dict[str, Any]]:
    return {state.name: parameters(state) for state in policy.states}


def images(gpustate: Cli, *words: str) -> set[str]:
    done = gpustate("cluster", "render", *words)
    assert done.status == 0, done
    objects = [one for one in yaml.safe_load_all(done.out) if one["kind"] == "DaemonSet"]
    pods = [one["spec"]["template"]["spec"] for one in objects]
    return {container["image"] for pod in pods for container in pod["containers"]}


@pytest.mark.parametrize("release", [None, "v24.6.2"])
def test_a_version_alone_is_completed_by_the_chart_of_the_release(
    gpustate: Cli, release: str | None
) -> None:
    options = ("--release", release) if release else ()
    chart = history.chart_defaults(release or "")
    plugin = f"{chart['devicePlugin.repository']}/{chart['devicePlugin.image']}:v0.16.1"
    assert plugin in images(gpustate, "clusterpolicy-with-versions.yaml", *options)
    policy = load("clusterpolicy-with-versions.yaml", release=release)
    warnings = [one for one in policy.notes if "part of the image" in one]
    assert len(warnings) == 1
    assert (
        "clusterpolicy-with-versions.yaml:16: warning: only a part of the image of devicePlugin, gfd"
        in warnings[0]
    )
    assert (release or history.newest()) in warnings[0]
    assert states(policy)["driver"]["version"] == "550.90.07"
    assert states(policy)["container-toolkit"]["version"] == "1.16.1"


def test_a_repository_and_a_version_are_completed_by_the_image_of_the_chart(gpustate: Cli) -> None:
    options = ("--set", "devicePlugin.repository=mirror.example/k8s,devicePlugin.version=v0.17.0")
    assert "mirror.example/k8s/k8s-device-plugin:v0.17.0" in images(gpustate, "cp.yaml", *options)


def test_strict_refuses_a_part_of_an_image_as_the_operator_does() -> None:
    with pytest.raises(PolicyError, match="devicePlugin sets version of its image, without"):
        load("clusterpolicy-with-versions.yaml", strict=True)
    with pytest.raises(
        PolicyError, match="as the complete reference"
    ):  # what is not a name of the chart's
        load("cp.yaml", set_typed="devicePlugin.image=a/b,devicePlugin.version=v1")


@pytest.mark.parametrize(
    "source", ["", CHART, "nvidia/gpu-operator", "empty.yaml", "braces.yaml", "comment.yaml"]
)
def test_options_alone_change_the_chart_s_defaults(gpustate: Cli, source: str) -> None:
    words = (
        "--set",
        "driver.enabled=true",
        "--set",
        "devicePlugin.enabled=true",
        "--set",
        "gfd.enabled=true",
    )
    named = (source,) if source else ()
    plugin = f"{DEFAULTS['devicePlugin.repository']}/{DEFAULTS['devicePlugin.image']}:{DEFAULTS['devicePlugin.version']}"
    assert plugin in images(gpustate, *named, *words)
    done = gpustate(
        "policy",
        "resolve",
        "n1",
        *named,
        "-i",
        "n1,",
        "--set",
        "driver.enabled=false",
        "--set",
        "toolkit.enabled=true",
    )
    assert "container-toolkit" in done.out
    assert "nouveau" not in done.out


def test_the_chart_s_defaults_are_those_of_the_release(gpustate: Cli) -> None:
    version = history.chart_defaults("v25.3.0")["devicePlugin.version"]
    plugin = f"nvcr.io/nvidia/k8s-device-plugin:{version}"
    assert plugin in images(gpustate, "--release", "v25.3.0")


def test_an_empty_pipe_is_that_of_a_command_that_failed(gpustate: Cli) -> None:
    done = gpustate("cluster", "render", "-")
    assert (done.status, done.err) == (1, "gpustate: -: is empty, wanted a policy\n")


def test_no_policy_and_no_change_is_an_error(gpustate: Cli) -> None:
    assert "Missing argument 'POLICY'" in gpustate("cluster", "render").err


@pytest.mark.parametrize("source", OPERATOR_FILES)
@pytest.mark.parametrize(
    "change",
    [
        {"patches": MIXED},
        {"patches": '[{"op":"add","path":"/spec/mig/strategy","value":"mixed"}]'},
        {"patches": '{"spec":{"mig":{"strategy":"mixed"}}}'},
        {"set_typed": "mig.strategy=mixed"},
        {"set_typed": 'mig.strategy="mixed"'},
        {"values": "mixed.yaml"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_way_of_overriding_works_with_every_operator_file(
    source: str, change: dict[str, Any]
) -> None:
    Path("mixed.yaml").write_text("mig: {strategy: mixed}\n")
    assert states(load(source, **change))["gpu-labels"]["mig_strategy"] == "mixed"


@pytest.mark.parametrize(
    ("source", "patch", "state", "parameter", "value"),
    [
        (
            "driver.yaml",
            '[{"op":"replace","path":"/spec/kernelModuleType","value":"open"}]',
            "driver",
            "module_type",
            "open",
        ),
        (
            "driver.yaml",
            '[{"op":"test","path":"/spec/kernelModuleType","value":"auto"},{"op":"replace","path":"/spec/kernelModuleType","value":"open"}]',
            "driver",
            "module_type",
            "open",
        ),
        (
            "own.yaml",
            '[{"op":"replace","path":"/states/driver/branch","value":570}]',
            "driver",
            "branch",
            570,
        ),
        (
            "own.yaml",
            '[{"op":"add","path":"/states/nouveau/reboot_timeout_s","value":60}]',
            "nouveau",
            "reboot_timeout_s",
            60,
        ),
        (
            "own.py",
            '[{"op":"replace","path":"/states/driver/branch","value":570}]',
            "driver",
            "branch",
            570,
        ),
        ("own.py", '{"states":{"driver":{"branch":570}}}', "driver", "branch", 570),
    ],
)
def test_a_patch_works_on_what_the_file_leaves_at_its_default(
    source: str, patch: str, state: str, parameter: str, value: Any
) -> None:
    Path("driver.yaml").write_text(
        "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: gpus}\nspec: {driverType: gpu}\n"
    )
    Path("own.yaml").write_text("format: gpustate.policy/1\nstates:\n  driver:\n  nouveau: {}\n")
    Path("own.py").write_text(
        "from gpustate import Policy\nfrom gpustate.states.driver import DriverInstalled\npolicy = Policy(DriverInstalled())\n"
    )
    assert states(load(source, patches=patch))[state][parameter] == value


@pytest.mark.parametrize(
    "change",
    [
        {"patches": '{"driver":{"branch":570}}'},
        {"patches": '[{"op":"replace","path":"/driver/branch","value":570}]'},
        {"patches": '[{"op":"add","path":"/states/driver/branch","value":570}]'},
        {"set_typed": "driver.branch=570"},
        {"values": "branch.yaml"},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("name", ["preset.yaml", "own.yaml", "own.py"])
def test_every_way_of_overriding_works_with_policies_of_gpustate(
    name: str, change: dict[str, Any]
) -> None:
    Path("branch.yaml").write_text("driver: {branch: 570}\n")
    Path("preset.yaml").write_text("preset: kubernetes-node\ndriver: {branch: 580}\n")
    Path("own.yaml").write_text("format: gpustate.policy/1\nstates: {driver: {branch: 580}}\n")
    Path("own.py").write_text(
        "from gpustate import presets\npolicy = presets.kubernetes_node(driver={'branch': 580})\n"
    )
    assert states(load(name, **change))["driver"]["branch"] == 570


DRIVER_OBJECT = """\
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {name: gpus}
spec: {driverType: gpu}
"""
DRA_CLUSTER = """\
apiVersion: nvidia.com/v1alpha1
kind: GPUCluster
metadata: {name: gpu-cluster}
spec: {}
"""
#: Files that hold an object of the kind, alone and beside others.
OBJECT_FILES = {
    "NVIDIADriver": {
        "alone": DRIVER_OBJECT,
        "with a version": DRIVER_OBJECT.replace("gpu}", "gpu, version: 580.178.04}"),
        "beside a GPUCluster": f"{DRA_CLUSTER}---\n{DRIVER_OBJECT}",
        "beside a ClusterPolicy": CLUSTER_POLICY.replace(
            "{}, toolkit", "{useNvidiaDriverCRD: true}, toolkit"
        )
        + f"---\n{DRIVER_OBJECT}",
        "in a List": yaml.safe_dump(
            {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(DRIVER_OBJECT)]}
        ),
    },
    "GPUCluster": {
        "alone": DRA_CLUSTER,
        "with a value": DRA_CLUSTER.replace("{}", "{dcgmExporter: {enabled: false}}"),
        "beside an NVIDIADriver": f"{DRIVER_OBJECT}---\n{DRA_CLUSTER}",
    },
}
#: By kind: a path below spec, its value, and where a policy has it.
OBJECT_VALUES: dict[str, tuple[str, Any, tuple[str, str]]] = {
    "NVIDIADriver": ("version", "570.195.03", ("driver", "version")),
    "GPUCluster": ("dcgmExporter.enabled", True, ("dcgm-exporter", "")),
}


def overrides(path: str, value: Any) -> dict[str, dict[str, Any]]:
    """Each way of setting a value of an object, by its name."""
    text = json.dumps(value)
    tree: Any = value
    for key in reversed(path.split(".")):
        tree = {key: tree}
    Path("bare.yaml").write_text(yaml.safe_dump(tree))
    Path("spec.yaml").write_text(yaml.safe_dump({"spec": tree}))
    Path("patch.json").write_text(json.dumps({"spec": tree}))
    pointer = f"/spec/{path.replace('.', '/')}"
    (first, inner), *_ = tree.items()
    return {
        "set": {"set_typed": f"{path}={value if isinstance(value, str) else text}"},
        "set of spec": {"set_typed": f"spec.{path}={value if isinstance(value, str) else text}"},
        **({"set text": {"set_typed": f'{path}="{value}"'}} if isinstance(value, str) else {}),
        "values": {"values": "bare.yaml"},
        "values of spec": {"values": "spec.yaml"},
        "merge patch": {"patches": json.dumps({"spec": tree})},
        "patch file": {"patches": "@patch.json"},
        "replace": {"patches": json.dumps([{"op": "replace", "path": pointer, "value": value}])},
        "add": {"patches": json.dumps([{"op": "add", "path": f"/spec/{first}", "value": inner}])},
    }


@pytest.mark.parametrize(
    ("kind", "file"), [(kind, file) for kind, files in OBJECT_FILES.items() for file in files]
)
def test_every_way_of_overriding_works_with_objects_beside_a_cluster_policy(
    kind: str, file: str
) -> None:
    Path("object.yaml").write_text(OBJECT_FILES[kind][file])
    path, value, (state, parameter) = OBJECT_VALUES[kind]
    before = states(load("object.yaml"))
    for name, change in overrides(path, value).items():
        after = states(load("object.yaml", **change))
        if parameter:
            assert after[state][parameter] == value, name
        else:
            assert state in after, name
        assert before.get(state) != after[state], name


def test_a_change_that_no_object_of_a_file_takes_is_refused_as_by_the_first() -> None:
    Path("object.yaml").write_text(OBJECT_FILES["NVIDIADriver"]["beside a GPUCluster"])
    with pytest.raises(PolicyError, match="unknown key 'driver'") as refused:
        load("object.yaml", set_typed="driver.version=570.195.03")
    assert refused.value.fix == "use an object of kind NVIDIADriver"


def test_a_patch_appends_to_a_list_of_the_chart_s_defaults(gpustate: Cli) -> None:
    patch = '[{"op":"add","path":"/daemonsets/tolerations/-","value":{"key":"site","operator":"Exists"}}]'
    done = gpustate("cluster", "render", "values.yaml", "-p", patch)
    plugin = next(one for one in yaml.safe_load_all(done.out) if one["kind"] == "DaemonSet")
    keys = [one["key"] for one in plugin["spec"]["template"]["spec"]["tolerations"]]
    assert "nvidia.com/gpu" in keys
    assert "site" in keys


def test_a_patch_of_a_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        PolicyError, match=r"--patch: operation 1 of the patch \(/spec/mig/strateg\)"
    ):
        load("cp.yaml", patches=MIXED.replace("strategy", "strateg"))


def test_null_removes_the_chart_s_default_as_for_helm() -> None:
    assert "mig_strategy" in states(load("values.yaml"))["gpu-labels"]
    changes: tuple[dict[str, Any], ...] = (
        {"set_typed": "mig.strategy=null"},
        {"patches": '[{"op":"remove","path":"/spec/mig/strategy"}]'},
    )
    for change in changes:
        assert "mig_strategy" not in states(load("values.yaml", **change))["gpu-labels"]


def test_the_values_of_production_with_a_release() -> None:
    policy = load("values-prod.yaml", release="v26.3.1")
    assert states(policy)["driver"]["module_type"] == "open"
    assert "peermem" in states(policy)
    assert states(policy)["gpu-labels"]["mig_strategy"] == "mixed"


def test_a_patch_of_job_mapping_reaches_the_exporter() -> None:
    patch = '{"spec":{"dcgmExporter":{"enabled":true,"hpcJobMapping":{"enabled":true,"directory":"/jobs"}}}}'
    assert states(load("cp.yaml", patches=patch))["dcgm-exporter"]["job_mapping"] == "/jobs"


@pytest.mark.parametrize(
    ("version", "kind", "meant"),
    [
        ("gpu.nvidia.com/v1", "GPUClusterPolicy", "ClusterPolicy of nvidia.com/v1"),
        ("nvidia.com/v1", "GpuPolicy", "ClusterPolicy of nvidia.com/v1"),
        ("gpu.nvidia.com/v1alpha1", "NvidiaDriver", "NVIDIADriver of nvidia.com/v1alpha1"),
    ],
)
def test_a_kind_that_no_release_has_is_refused_with_the_one_to_write(
    version: str, kind: str, meant: str
) -> None:
    Path("wrong.yaml").write_text(
        f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{cuda: {{version: '12.4'}}}}\n"
    )
    with pytest.raises(PolicyError, match="no release of the GPU Operator has it") as caught:
        load("wrong.yaml")
    assert f"did you mean {meant}" in str(caught.value)
    Path("meant.yaml").write_text(
        CLUSTER_POLICY.replace("driver: {}", "driver: {}, cuda: {version: '12.4'}")
    )
    assert any("installs no CUDA toolkit" in note for note in load("meant.yaml").notes)


@pytest.mark.parametrize(
    ("label", "near"),
    [
        ("1g.10gb-2,3g.40gb-1", "all-balanced"),
        ("2g.20gb-3", "all-2g.20gb"),
        ("1g.5gb-7", "all-1g.5gb"),
    ],
)
def test_a_layout_that_does_not_exist_is_refused_with_those_that_come_near(
    label: str, near: str
) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"nvidia.com/mig.config": label}},
    }
    Path("cp.yaml").write_text(f"{CLUSTER_POLICY}---\n{yaml.safe_dump(node)}")
    with pytest.raises(PolicyError, match=f"label nvidia.com/mig.config is '{label}'") as caught:
        load("cp.yaml")
    assert near in str(caught.value).partition("did you mean")[2]


TIME_SLICING = '{"spec":{"devicePlugin":{"config":{"name":"time-slicing-config","default":"any"}}}}'


@pytest.mark.parametrize(
    "source", ["clusterpolicy-with-versions.yaml", "values.yaml", "helmrelease.yaml", CHART]
)
def test_a_config_map_in_a_file_beside_the_policy_is_read(source: str) -> None:
    plugin = states(load(source, patches=TIME_SLICING))["device-plugin-config"]
    assert plugin["default"] == "any"
    assert plugin["configs"]["any"]["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4


def test_a_config_map_that_a_kustomization_generates_beside_the_policy_is_read() -> None:
    text = yaml.safe_load(Path("time-slicing-config.yaml").read_text())["data"]["any"]
    Path("time-slicing-config.yaml").unlink()
    Path("several.yaml").unlink()
    Path("any").write_text(text)
    generator = {"name": "time-slicing-config", "files": ["any"]}
    Path("kustomization.yaml").write_text(yaml.safe_dump({"configMapGenerator": [generator]}))
    assert "device-plugin-config" in states(load("cp.yaml", patches=TIME_SLICING))


def test_several_config_maps_of_a_name_beside_the_policy_are_refused() -> None:
    other = Path("time-slicing-config.yaml").read_text().replace("replicas: 4", "replicas: 2")
    Path("other.yaml").write_text(other)
    with pytest.raises(PolicyError, match="several files have the ConfigMap 'time-slicing-config'"):
        load("cp.yaml", patches=TIME_SLICING)


@pytest.mark.parametrize("enabled", ["", "dcgmExporter.enabled=true,"])
def test_the_only_key_of_the_counters_is_read_whatever_its_name(
    gpustate: Cli, enabled: str
) -> None:
    change = f"{enabled}dcgmExporter.config.name=dcgm-metrics"
    policy = load("cp.yaml", set_typed=change)
    (note,) = [one for one in policy.notes if "is read as dcgm-metrics.csv" in one]
    assert note.startswith("dcgm-metrics.yaml:1: warning: default-counters.csv of the ConfigMap")
    if enabled:
        (text,) = states(policy)["dcgm-exporter"]["contents"].values()
        assert "DCGM_FI_DEV_GPU_UTIL" in text
    else:
        done = gpustate("cluster", "render", "cp.yaml", "--set", change)
        maps = [one for one in yaml.safe_load_all(done.out) if one["kind"] == "ConfigMap"]
        assert any("dcgm-metrics.csv" in one["data"] for one in maps)
    with pytest.raises(PolicyError, match="has no key dcgm-metrics"):
        load("cp.yaml", set_typed=change, strict=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "driver: {manager: {env: [{name: ENABLE_AUTO_DRAIN, value: 'true'}]}}\n",
            "is ignored with driver.upgradePolicy.autoUpgrade; use driver.upgradePolicy.drain.enable",
        ),
        (
            "dcgmExporter: {serviceMonitor: {metricRelabelings: []}}\n",
            "write a ServiceMonitor or a PodMonitor of your own",
        ),
        ("toolkit: {version: 1.17.8}\n", "write the complete tag"),
        ("toolkit: {version: 1.19.0}\n", "write v1.19.0"),
        ("devicePlugin: {tolerations: []}\n", "use daemonsets.tolerations, for all components"),
    ],
)
def test_lint_says_what_to_write_instead(gpustate: Cli, text: str, said: str) -> None:
    Path("v.yaml").write_text(text)
    assert said in gpustate("lint", "v.yaml").out


def test_an_alias_is_a_key() -> None:
    Path("v.yaml").write_text(
        "x-keys: &pool example.com/gpu-pool\ndaemonsets: {annotations: {*pool : 'true'}}\n"
    )
    assert load("v.yaml").states
    Path("v.yaml").write_text("x-keys: &pool [a]\ndaemonsets: {annotations: {*pool : 'true'}}\n")
    with pytest.raises(PolicyError, match="a key is not a string"):
        load("v.yaml")


def test_a_policy_of_gpustate_is_none_of_the_operator_s(gpustate: Cli) -> None:
    Path("own.yaml").write_text(
        "format: gpustate.policy/1\nstates:\n  driver: {branch: 580}\n  validator: {cuda: false}\n"
    )
    assert "is a gpustate policy" in gpustate("lint", "own.yaml").err


def test_settings_of_pods_are_named_where_the_exporter_is_a_service_of_the_nodes(
    gpustate: Cli,
) -> None:
    Path("v.yaml").write_text("dcgmExporter: {enabled: true, serviceMonitor: {interval: 15s}}\n")
    assert (
        "as pods with --set dcgmExporter.enabled=null"
        in gpustate("cluster", "render", "v.yaml").err
    )
    done = gpustate("cluster", "render", "v.yaml", "--set", "dcgmExporter.enabled=null")
    assert "as pods" not in done.err
    assert "kind: ServiceMonitor" in done.out


DRA_VALUES = """\
nvidiaDriverRoot: /
gpuResourcesEnabledOverride: true
resources: {gpus: {enabled: true}, computeDomains: {enabled: false}}
featureGates: {TimeSlicingSettings: true}
kubeletPlugin: {priorityClassName: system-node-critical}
"""


def test_values_of_the_dra_driver_s_chart_are_noted_key_by_key() -> None:
    Path("dra.yaml").write_text(DRA_VALUES)
    evict = (
        "driver.manager.env[0].name=NODE_LABEL_FOR_GPU_POD_EVICTION,driver.manager.env[0].value=x"
    )
    policy = load(CHART, values="dra.yaml", set_typed=f"devicePlugin.enabled=false,{evict}")
    assert "driver" in states(policy)
    notes = [note for note in policy.notes if note.startswith("dra.yaml: ")]
    assert "left to that chart" in notes[0]
    told = "\n".join(notes[1:])
    for key in (
        "nvidiaDriverRoot",
        "gpuResourcesEnabledOverride",
        "resources.gpus.enabled",
        "kubeletPlugin",
    ):
        assert f"not carried out: {key}" in told
    assert "featureGates: with a GPUCluster draDriver.featureGates" in told
    with pytest.raises(PolicyError, match="is a values file of the DRA driver's chart"):
        load("dra.yaml")
