"""Objects of a cluster from policies: golden files, order, bytes, and the settings behind them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpustate import Policy, policies
from gpustate.errors import PolicyError
from gpustate.formats.yaml_events import dump_objects
from gpustate.gpu_operator import history
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterSettings, Component, DraDriver, Exporter, PluginConfig, Pods
from gpustate.manifests.build import build, node_labels
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import KINDS, order
from gpustate.manifests.ownership import OWNER, is_owned

GOLDEN = Path(__file__).parents[2] / "golden" / "manifests"
CASES = sorted(file.name.removesuffix(".policy.yaml") for file in GOLDEN.glob("*.policy.yaml"))
HEAD = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"


def load(path: Path, **options: Any) -> ClusterSettings:
    policy = policies.load(str(path), **options)
    assert policy.cluster is not None
    return settings_of(policy)


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    def read(spec: str) -> ClusterSettings:
        file = tmp_path / "cp.yaml"
        file.write_text(HEAD + spec)
        return load(file)

    return read


def daemon_set(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (one,) = (
        one for one in found if one["metadata"]["name"] == name and one["kind"] == "DaemonSet"
    )
    spec: dict[str, Any] = one["spec"]["template"]["spec"]
    return spec


def test_fields_that_the_server_does_not_store_are_left_out(tmp_path: Path) -> None:
    """With them, the same objects of another manager are a conflict."""
    empty = {"key": "k", "operator": "Exists", "value": ""}
    values = {
        "master": {
            "tolerations": [empty],
            "extraEnvs": [{"name": "A", "value": ""}, {"name": "B", "value": "b"}],
            "initContainers": [
                {"name": "i", "volumeMounts": [{"name": "v", "mountPath": "/", "readOnly": False}]}
            ],
        }
    }
    settings = ClusterSettings(
        pods=Pods(tolerations=(empty,)),
        device_plugin=Component(env={"C": ""}),
        node_feature_discovery=values,
    )
    found = build(settings, images())
    plugin = daemon_set(found, "nvidia-device-plugin-daemonset")
    (master,) = (
        one["spec"]["template"]["spec"]
        for one in found
        if one["metadata"]["name"] == "gpu-operator-node-feature-discovery-master"
        and one["kind"] == "Deployment"
    )
    assert {"name": "C"} in plugin["containers"][0]["env"]
    assert master["containers"][0]["env"][-2:] == [{"name": "A"}, {"name": "B", "value": "b"}]
    assert master["initContainers"][0]["volumeMounts"] == [{"name": "v", "mountPath": "/"}]
    for pod in (plugin, master):
        assert {"key": "k", "operator": "Exists"} in pod["tolerations"]
        assert "hostNetwork" not in pod


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container["env"]}


@pytest.mark.parametrize("name", CASES)
def test_a_policy_s_objects_are_those_of_the_golden_file(
    name: str, request: pytest.FixtureRequest
) -> None:
    found = build(load(GOLDEN / f"{name}.policy.yaml"), images("v26.7.0"))
    golden = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(dump_objects(found))
    assert golden.read_text() == dump_objects(found)
    assert list(yaml.safe_load_all(dump_objects(found))) == found
    assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(dump_objects(found)))


@pytest.mark.parametrize("name", CASES)
def test_every_object_is_ours_has_a_known_kind_and_is_in_order(name: str) -> None:
    found = build(load(GOLDEN / f"{name}.policy.yaml"), images())
    kinds = {kind.name: kind for kind in KINDS}
    for one in found:
        kind = kinds[one["kind"]]
        assert one["apiVersion"] == kind.version
        assert is_owned(one)
        assert ("namespace" in one["metadata"]) == kind.namespaced
    mixed = random.Random(1).sample(found, len(found))
    assert sorted(mixed, key=order) == found
    assert len({(one["kind"], one["metadata"]["name"]) for one in found}) == len(found)


def test_bytes_do_not_depend_on_the_order_of_keys_in_a_policy(tmp_path: Path) -> None:
    texts = []
    for number, keys in enumerate((("b", "a"), ("a", "b"))):
        file = tmp_path / f"{number}.yaml"
        data = "".join(f"  {key}: 'version: v1'\n" for key in keys)
        file.write_text(
            HEAD + "  devicePlugin: {config: {name: c, default: a}}\n---\n"
            f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata:\n{data}"
        )
        texts.append(dump_objects(build(load(file), images())))
    assert texts[0] == texts[1]


def test_roles_have_only_the_verbs_that_the_programs_use() -> None:
    plain, configured = ClusterSettings(), ClusterSettings(config=PluginConfig("c", "a", {}))
    assert rules(plain) == {
        "Role/nvidia-gpu-feature-discovery": {
            "nodefeatures": ["get", "create", "update"],
            "pods": ["get"],
        }
    }
    reads = {"nodes": ["get", "list", "watch"]}
    assert rules(configured) == {
        **rules(plain),
        "ClusterRole/nvidia-device-plugin": reads,
        "ClusterRole/nvidia-gpu-feature-discovery": reads,
    }
    plugin = daemon_set(build(plain, images()), "nvidia-device-plugin-daemonset")
    assert plugin["automountServiceAccountToken"] is False


def rules(settings: ClusterSettings) -> dict[str, dict[str, list[str]]]:
    return {
        f"{one['kind']}/{one['metadata']['name']}": {
            resource: rule["verbs"] for rule in one["rules"] for resource in rule["resources"]
        }
        for one in build(settings, images())
        if one["kind"].endswith("Role")
    }


def test_images_are_those_of_the_policy_or_of_its_release(settings: Any, tmp_path: Path) -> None:
    assert images("v24.9.0")["devicePlugin"] == "nvcr.io/nvidia/k8s-device-plugin:v0.17.0-ubi9"
    assert images()["gfd"] == "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    for release in history.releases():
        found = images(release)
        assert all(found[name] for name in ("devicePlugin", "gfd", "dcgmExporter")), release
        later = not history.before(release, "v1.8.0")
        assert bool(found["dcgm"]) == bool(found["nodeStatusExporter"].count("/")) == later, release
    assert images("v24.9.0")["nodeStatusExporter"].endswith("/gpu-operator-validator:v24.9.0")
    whole = "  devicePlugin: {repository: r.io/n, image: p, version: %s}\n"
    assert settings(whole % "v1").device_plugin.image == "r.io/n/p:v1"
    assert settings(whole % "sha256:ab").device_plugin.image == "r.io/n/p@sha256:ab"
    assert settings("  gfd: {image: r.io/n/g}\n").feature_discovery.image == "r.io/n/g"
    image = settings("  devicePlugin: {version: v1}\n").device_plugin.image
    assert image == "nvcr.io/nvidia/k8s-device-plugin:v1", "the chart of the release has the rest"
    values = tmp_path / "values.yaml"
    values.write_text("devicePlugin: {version: v0.19.0}\n")
    image = load(values).device_plugin.image
    assert image == "nvcr.io/nvidia/k8s-device-plugin:v0.19.0", "the chart has the rest"
    with pytest.raises(PolicyError, match="gfd has no image"):
        build(ClusterSettings(), {"devicePlugin": "p:v1"})


def test_the_strategy_fits_the_toolkit_s_configuration(settings: Any) -> None:
    assert settings("  toolkit: {}\n").device_list_strategy == "cdi-annotations,cdi-cri"
    without = "  cdi: {enabled: false}\n"
    assert settings(without).device_list_strategy == "envvar"
    toolkit = (
        "  toolkit:\n    env:\n"
        "    - {name: ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED, value: 'false'}\n"
        "    - {name: ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS, value: 'true'}\n"
    )
    assert settings(without + toolkit).device_list_strategy == "volume-mounts"
    plugin = daemon_set(build(settings(without), images()), "nvidia-device-plugin-daemonset")
    assert not {"CDI_ENABLED", "NVIDIA_CDI_HOOK_PATH"} & set(variables(plugin["containers"][0]))


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        ("", {"NVIDIA_MIG_MONITOR_DEVICES": "all"}),
        ("none", {"MIG_STRATEGY": "none"}),
        ("single", {"MIG_STRATEGY": "single", "NVIDIA_MIG_MONITOR_DEVICES": "all"}),
        ("mixed", {"MIG_STRATEGY": "mixed", "NVIDIA_MIG_MONITOR_DEVICES": "all"}),
    ],
)
def test_the_mig_strategy_reaches_every_program(strategy: str, wanted: dict[str, str]) -> None:
    found = build(ClusterSettings(mig_strategy=strategy), images())
    for name in ("nvidia-device-plugin-daemonset", "gpu-feature-discovery"):
        env = variables(daemon_set(found, name)["containers"][0])
        assert {key: value for key, value in env.items() if "MIG" in key} == wanted


def test_a_config_map_that_was_not_found_is_mounted_but_not_managed(tmp_path: Path) -> None:
    file = tmp_path / "cp.yaml"
    file.write_text(HEAD + "  devicePlugin: {config: {name: theirs, default: a}}\n")
    found = build(load(file), images())
    assert "ConfigMap" not in {one["kind"] for one in found}
    plugin = daemon_set(found, "nvidia-device-plugin-daemonset")
    assert {"name": "available-configs", "configMap": {"name": "theirs"}} in plugin["volumes"]


@pytest.mark.parametrize(
    ("section", "names"),
    [
        (
            "devicePlugin: {{config: {{create: true, name: c, data: {{a: 'version: v1 # {0}'}}}}}}",
            {"nvidia-device-plugin-daemonset", "gpu-feature-discovery"},
        ),
        (
            "dcgmExporter: {{config: {{create: true, name: c, data: 'DCGM_FI_DEV_GPU_TEMP, gauge, {0}.'}}}}",
            {"nvidia-dcgm-exporter"},
        ),
        (
            "nfd: {{enabled: true}}\nnode-feature-discovery: {{worker: {{config: {{core: {{sleepInterval: {0}s}}}}}}}}",
            {"gpu-operator-node-feature-discovery-worker"},
        ),
    ],
)
def test_a_changed_config_map_replaces_the_pods_that_mount_it(
    section: str, names: set[str], tmp_path: Path
) -> None:
    def templates(number: int) -> dict[str, Any]:
        file = tmp_path / "values.yaml"
        file.write_text(section.format(number) + "\n")
        found = build(load(file), images())
        workloads = (one for one in found if one["kind"] in ("DaemonSet", "Deployment"))
        return {one["metadata"]["name"]: one["spec"]["template"] for one in workloads}

    before, again, after = templates(1), templates(1), templates(2)
    assert before == again
    assert {name for name in before if before[name] != after[name]} == names


def test_a_pull_secret_that_is_named_twice_is_one(settings: Any) -> None:
    found = build(settings("  devicePlugin: {imagePullSecrets: [a, b, a]}\n"), images())
    spec = daemon_set(found, "nvidia-device-plugin-daemonset")
    assert spec["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]


def test_what_is_disabled_has_no_objects_and_no_label() -> None:
    off = Component(enabled=False)
    settings = ClusterSettings(device_plugin=off, feature_discovery=off)
    assert [one["kind"] for one in build(settings, images())] == ["Namespace", "RuntimeClass"]
    assert node_labels(settings) == {"nvidia.com/gpu.present": "true"}


@pytest.mark.parametrize("monitoring", ["", "dcgm", "dcgm_exporter"])
def test_only_monitoring_may_claim_gpus_that_others_use(monitoring: str) -> None:
    component = Exporter(image="x") if monitoring == "dcgm_exporter" else Component(image="x")
    more: dict[str, Any] = {monitoring: component} if monitoring else {}
    found = build(ClusterSettings(dra_driver=DraDriver(image="x"), **more), images())
    labels = next(one for one in found if one["kind"] == "Namespace")["metadata"]["labels"]
    claims = [one for one in found if one["kind"] == "ResourceClaimTemplate"]
    assert bool(claims) == bool(monitoring)
    assert (labels.get("resource.kubernetes.io/admin-access") == "true") == bool(monitoring)


def test_settings_in_python_are_checked(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="update_strategy is 'Recreate', wanted 'RollingUpdate'"):
        Pods(update_strategy="Recreate")
    with pytest.raises(PolicyError, match="mig_strategy is 'both'"):
        ClusterSettings(mig_strategy="both")
    with pytest.raises(PolicyError, match="app selects the pods"):
        Pods(labels={"app": "x"})
    policy = Policy(cluster=ClusterSettings(namespace="gpus"))
    kept = settings_of(policy.with_states(name="other"))
    assert kept.namespace == "gpus"
    assert OWNER.items() <= build(kept, images())[0]["metadata"]["labels"].items()
