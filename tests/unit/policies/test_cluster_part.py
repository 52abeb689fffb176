"""The part ``cluster`` of policies in YAML and Python: the same objects, and every mistake with its file, line and key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from gpustate import policies
from gpustate.errors import PolicyError
from gpustate.gpu_operator.objects import images
from gpustate.manifests import (
    ClusterSettings,
    Component,
    Container,
    Counters,
    DraDriver,
    Exporter,
    Monitor,
    PluginConfig,
    Pods,
    cluster_part,
)
from gpustate.manifests.build import build, with_images
from gpustate.manifests.cluster_part import settings_of
from gpustate.policies import Changes, document, schemas
from gpustate.policies.converting import convert

TOP = "format: gpustate.policy/1\nstates: {nouveau: }\n"
SHARED = (
    "version: v1\nsharing:\n  timeSlicing:\n    resources: [{name: nvidia.com/gpu, replicas: 4}]\n"
)
MPS = "{version: v1, sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: %d}]}}}"
#: Something of every kind of setting.
SETTINGS = ClusterSettings(
    namespace="gpus",
    privileged_namespace=True,
    device_plugin=Component(image="p:v1", args=("--a",), image_pull_secrets=("one",)),
    feature_discovery=Component(enabled=False),
    dcgm=Component(),
    dcgm_exporter=Exporter(
        env={"A": "b"},
        counters=Counters("counters", {"dcgm-metrics.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, x\n"}),
        monitor=Monitor(enabled=True, honor_labels=False, relabelings=({"action": "drop"},)),
    ),
    dra_driver=DraDriver(feature_gates={"A": True}, gpus=Container(env={"A": "b"})),
    config=PluginConfig("configs", "a", {"a": SHARED}),
    mig={"policy": "all-balanced"},
    node_feature_discovery={"worker": {"tolerations": []}},
    pods=Pods(max_unavailable="10%", tolerations=(), labels={"a": "b"}),
)


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, changes: Changes | None = None) -> ClusterSettings | None:
    Path("p.yaml").write_text(TOP + text)
    policy = policies.load("p.yaml", changes=changes)
    return None if policy.cluster is None else settings_of(policy)


@pytest.mark.parametrize("settings", [ClusterSettings(), SETTINGS], ids=["defaults", "all"])
@pytest.mark.parametrize("to", ["yaml", "python"])
def test_settings_come_back_from_both_formats(settings: ClusterSettings, to: str) -> None:
    Path("p.yaml").write_text(TOP + yaml.safe_dump({"cluster": settings.as_data()}))
    policy = policies.load("p.yaml")
    assert policy.cluster == settings
    done = convert(policy, to)
    assert not done.lost
    file = Path("again.yaml" if to == "yaml" else "again.py")
    file.write_text(done.text)
    assert policies.load(str(file)).cluster == settings


def test_without_the_part_there_are_no_objects_and_an_empty_one_has_the_defaults() -> None:
    assert load("") is None
    assert load("cluster:\n") == load("cluster: {}\n") == ClusterSettings()
    assert load("cluster: {dcgm: {}}\n") == ClusterSettings(dcgm=Component())


def test_pinned_images_result_in_the_same_objects() -> None:
    settings = replace(SETTINGS, mig=None)
    assert build(with_images(settings, images()), {}) == build(settings, images())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cluster: 3", "3: cluster: is a number, wanted a mapping"),
        (
            "cluster:\n  device_plgin: {}",
            "4: cluster.device_plgin: unknown key; did you mean 'device_plugin'",
        ),
        (
            "cluster:\n  dcgm_exporter:\n    monitor:\n      intervall: 15s",
            "6: cluster.dcgm_exporter.monitor.intervall: unknown key; did you mean 'interval'",
        ),
        (
            "cluster:\n  zzz: 1",
            "4: cluster.zzz: unknown key; supported keys: namespace, privileged",
        ),
        (
            "cluster:\n  device_plugin:\n    image: 580.10",
            "5: cluster.device_plugin.image: wanted text (given: 580.10); put it in quotes",
        ),
        (
            "cluster:\n  pods:\n    max_unavailable: true",
            "5: cluster.pods.max_unavailable: wanted a whole number or text (given: True)",
        ),
        ("cluster:\n  mig_strategy: foo", "4: cluster.mig_strategy: is 'foo', wanted 'none' or"),
        (
            "cluster:\n  namespace: A_b",
            "4: cluster.namespace: 'A_b' is not the name of a namespace",
        ),
        (
            "cluster:\n  dcgm: {}\n  device_plugin:\n    image_pull_policy: x",
            "6: cluster.device_plugin.image_pull_policy: is 'x', wanted 'Always' or",
        ),
        (
            "cluster:\n  pods:\n    labels: {app: x}",
            "5: cluster.pods.labels: app selects the pods and cannot be set",
        ),
        (
            "cluster:\n  startup_taint: a b",
            "4: cluster.startup_taint: 'a b' is not the key of a taint",
        ),
        (
            "cluster:\n  config: {default: a}",
            "4: cluster.config.name: is not given, and has no default",
        ),
        (
            "cluster:\n  config:\n    name: x\n    data:\n      a: '{version: v2}'",
            "7: cluster.config.data.a: line 1: version: is 'v2', wanted v1",
        ),
        (
            "cluster:\n  mig_strategy: mixed\n  config:\n    name: x\n    data:\n      a: '"
            + MPS % 4
            + "'",
            "4: cluster.mig_strategy: is 'mixed', and 'a' of config shares GPUs with MPS: the device plugin refuses "
            "both together; use single or none, or sharing.timeSlicing",
        ),
        (
            "cluster:\n  config:\n    name: x\n    data:\n      a: '" + MPS % 99 + "'",
            "7: cluster.config.data.a: line 1: sharing.mps.resources[0].replicas: is 99, and MPS supports 48",
        ),
        (
            "cluster:\n  config:\n    name: x\n    data:\n      a: '{version: v1, rename: x}'",
            "7: cluster.config.data.a: line 1: unknown key rename; ",
        ),
        (
            "cluster:\n  device_plugin:\n    resources: {limits: {cpu: lots}}",
            "5: cluster.device_plugin.resources.limits.cpu: is 'lots', wanted a quantity such as 500m or 2Gi",
        ),
        (
            "cluster:\n  dra_driver:\n    gpus:\n      resources: {requests: {memory: -1}}",
            "6: cluster.dra_driver.gpus.resources.requests.memory: is '-1', wanted a quantity",
        ),
        (
            "cluster:\n  dcgm:\n    resources: {limits: [1]}",
            "5: cluster.dcgm.resources.limits: is a list, wanted a mapping",
        ),
        (
            "cluster:\n  config:\n    name: x\n    default: b\n    data: {a: ''}",
            "6: cluster.config.default: 'b' is not in data, only a",
        ),
        (
            "cluster:\n  dcgm_exporter:\n    counters: {name: x, data: {dcgm-metrics.csv: foo}}",
            "5: cluster.dcgm_exporter.counters.data.dcgm-metrics.csv: line 1: has 1 columns",
        ),
        (
            "cluster:\n  dcgm: {env: {A_TOKEN: (secret)}}",
            "4: cluster.dcgm.env.A_TOKEN: contains (secret), which gpustate prints in place of",
        ),
        ("clustr: {}", "3: unknown key 'clustr'; did you mean 'cluster'"),
    ],
)
def test_a_mistake_has_file_line_and_key(text: str, error: str) -> None:
    with pytest.raises(PolicyError) as found:
        load(text + "\n")
    assert str(found.value).startswith(f"p.yaml:{error}")


def test_a_mistake_in_python_has_file_and_line() -> None:
    Path("p.py").write_text(
        "from gpustate import Policy\nfrom gpustate.manifests import ClusterSettings\n\n"
        'policy = Policy(cluster=ClusterSettings(mig_strategy="foo"))\n'
    )
    with pytest.raises(PolicyError, match=r"^p\.py:4: mig_strategy is 'foo', wanted"):
        policies.load("p.py")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ('config=PluginConfig("x", data={"a": "{version: v1, rename: x}"})', "config.data.a: line 1: unknown key"),
        ('mig_strategy="mixed", config=PluginConfig("x", data={"a": MPS})', "mig_strategy: is 'mixed', and 'a' of"),
        ('dcgm=Component(resources={"limits": {"cpu": "lots"}})', "dcgm.resources.limits.cpu: is 'lots'"),
    ],
)  # fmt: skip
def test_contents_and_amounts_in_python_are_checked(given: str, error: str) -> None:
    Path("p.py").write_text(
        "from gpustate import Policy\nfrom gpustate.manifests import ClusterSettings, Component, PluginConfig\n\n"
        f"MPS = {MPS % 4!r}\npolicy = Policy(cluster=ClusterSettings({given}))\n"
    )
    with pytest.raises(PolicyError) as found:
        policies.load("p.py")
    assert str(found.value).startswith(f"p.py: cluster.{error}")


def test_amounts_may_be_numbers() -> None:
    found = load(
        "cluster: {dcgm: {resources: {limits: {cpu: 0.5, memory: 2Gi, nvidia.com/x: 1}}}}\n"
    )
    assert found is not None


def test_a_saved_plan_keeps_what_an_operator_file_may_have() -> None:
    settings = ClusterSettings(config=PluginConfig("x", data={"a": "{version: v1, rename: x}"}))
    assert cluster_part.read(settings.as_data(), {}) == settings
    assert "rename" not in str(cluster_part.without_ignored(settings))


def test_the_command_line_changes_settings_and_is_named_in_errors() -> None:
    changes = Changes(set_typed=("cluster.device_plugin.image=x:v2",))
    found = load("cluster: {}\n", changes=changes)
    assert found == ClusterSettings(device_plugin=Component(image="x:v2"))
    wrong = Changes(set_typed=("cluster.device_plugin.imge=x",))
    with pytest.raises(PolicyError, match=r"^--set .*: cluster\.device_plugin\.imge: unknown key"):
        load("cluster: {}\n", changes=wrong)


def test_a_python_policy_keeps_its_objects_when_it_is_changed() -> None:
    Path("p.py").write_text(
        "from gpustate import Policy\nfrom gpustate.manifests import ClusterSettings\n\n"
        'policy = Policy(cluster=ClusterSettings(namespace="gpus"))\n'
    )
    changes = Changes(set_typed=("cluster.mig_strategy=mixed",))
    settings = policies.load("p.py", changes=changes).cluster
    assert settings == ClusterSettings(namespace="gpus", mig_strategy="mixed")


def test_the_schema_has_the_part_and_refuses_what_the_reader_refuses() -> None:
    schema = schemas.schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    good = {"format": document.FORMAT, "states": {}, "cluster": SETTINGS.as_data()}
    assert not list(validator.iter_errors(good))
    for wrong in ({"zzz": 1}, {"device_plugin": {"image": 3}}, {"config": {}}, 3):
        assert list(validator.iter_errors({**good, "cluster": wrong}))
    properties = schema["$defs"]["cluster"]["properties"]
    assert all(one["description"] for one in properties.values())


def test_a_secret_is_not_written_by_convert() -> None:
    Path("p.yaml").write_text(TOP + "cluster: {dcgm: {env: {A_TOKEN: hunter2hunter2}}}\n")
    done = convert(policies.load("p.yaml"), "yaml")
    assert "hunter2" not in done.text
    assert done.lost == (
        "cluster.dcgm.env.A_TOKEN: secrets are not written; pass it with --set or --values",
    )
