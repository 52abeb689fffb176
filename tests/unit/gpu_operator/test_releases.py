"""A file is read as the release of the Operator reads it that it is for."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import gpu_operator
from gpustate.errors import PolicyError, UsageError
from gpustate.formats import deviceplugin
from gpustate.gpu_operator import history
from gpustate.gpu_operator.check import always_strict
from gpustate.gpu_operator.keys import Support, fields
from gpustate.gpu_operator.lint import lint
from gpustate.policies import operator

HEAD = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"


def states(spec: str, release: str, *, values: bool = False) -> dict[str, dict[str, Any]]:
    text = spec if values else HEAD + spec
    reading = gpu_operator.read(text, "f.yaml", release=release)
    return {one.state: dict(one.parameters) for one in reading.states}


@pytest.mark.parametrize(
    ("release", "spec", "module_type"),
    [
        ("v24.6.1", "{version: '550.90.07', useOpenKernelModules: true}", "open"),
        ("v24.6.1", "{version: '550.90.07'}", "proprietary"),
        ("v24.9.2", "{version: '570.86.15'}", None),
        ("v24.6.1", "{version: '550.90.07', kernelModuleType: open}", "proprietary"),
        ("v25.3.0", "{version: '550.90.07', useOpenKernelModules: true}", None),
        ("v25.3.0", "{version: '550.90.07', kernelModuleType: open}", "open"),
    ],
)
def test_the_type_of_the_modules_is_said_as_the_release_says_it(
    release: str, spec: str, module_type: str | None
) -> None:
    assert states(f"  driver: {spec}\n", release)["driver"].get("module_type") == module_type


@pytest.mark.parametrize(
    ("release", "spec", "cdi", "default", "mode"),
    [
        ("v25.3.4", "{}", False, True, None),
        ("v25.3.4", "{enabled: true}", True, True, None),
        ("v25.3.4", "{enabled: true, default: true}", True, True, "cdi"),
        ("v25.10.0", "{enabled: true, default: true}", True, False, None),
        ("v25.10.0", "{}", True, False, None),
        ("v22.9.2", "{enabled: true}", False, True, None),  # there was no such key
    ],
)
def test_cdi_is_what_it_was_in_the_release(
    release: str, spec: str, cdi: bool, default: bool, mode: str | None
) -> None:
    for text in (HEAD + f"  cdi: {spec}\n", f"cdi: {spec}\n"):
        reading = gpu_operator.read(text, "f.yaml", release=release)
        found = {one.state: dict(one.parameters) for one in reading.states}
        assert ("cdi" in found) is cdi
        assert found["containerd"]["default"] is default
        config = found["container-toolkit"].get("config", {})
        assert config.get("nvidia-container-runtime.mode") == mode


def test_a_driver_of_the_chart_is_for_the_nodes_that_it_names_up_to_v26_3() -> None:
    values = "driver: {nvidiaDriverCRD: {enabled: true, nodeSelector: {pool: gold}}}\n"
    assert states(values, "v26.3.3", values=True)["driver"]["only"] == "label('pool', 'gold')"
    assert "only" not in states(values, "v26.7.0", values=True)["driver"]


def test_keys_of_later_releases_are_dropped_with_a_warning_and_strictly_refused() -> None:
    text = HEAD + "  driver: {kernelModuleType: open}\n"
    reading = gpu_operator.read(text, "cp.yaml", release="v24.9.2")
    assert any(
        "kernelModuleType was added in v25.3.0, and v24.9.2, the release" in n
        for n in reading.notes
    )
    with pytest.raises(PolicyError, match=r"was added in v25\.3\.0"):
        gpu_operator.read(text, "cp.yaml", release="v24.9.2", strict=always_strict)


def test_the_chart_s_defaults_are_those_of_the_release() -> None:
    notes = gpu_operator.read("operator: {}\n", "v.yaml", release="v24.6.0").notes
    (note,) = [one for one in notes if "default versions of the chart of v24.6.0" in one]
    assert "driver.version 550.90.07" in note


def test_a_rendered_object_says_its_release() -> None:
    text = (
        HEAD.replace("{name: x}", "{name: x, labels: {helm.sh/chart: gpu-operator-v24.6.1}}")
        + "  cdi: {}\n"
    )
    assert gpu_operator.read(text, "cp.yaml").release == "v24.6.1"
    assert gpu_operator.read(text, "cp.yaml", release="v26.7.0").release == "v26.7.0"


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("24.9.0", "v24.9.0"),
        ("v24.9", "v24.9.2"),
        ("24.9.x", "v24.9.2"),
        ("v25.3.*", "v25.3.4"),
        ("~24.6.1", "v24.6.1"),
        ("gpu-operator-v24.9.0", "v24.9.0"),
        ("*", ""),
        (">=24.0.0 <25", ""),
        ("v99.1.0", ""),
        ("", ""),
    ],
)
def test_versions_of_the_chart_name_releases(text: str, tag: str) -> None:
    assert history.release_of_chart(text) == tag


def test_a_release_that_there_is_not_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"no GPU Operator release 'v24\.9\.7'"):
        operator.read(HEAD + "  {}\n", "cp.yaml", release="v24.9.7")


def test_keys_of_a_gpucluster_that_nothing_reads_are_ignored_keys() -> None:
    unread = "daemonsets.podSecurityContext."
    found = [one for path, one in fields("gpucluster").items() if path.startswith(unread)]
    assert len(found) == 22
    assert {one.support for one in found} == {Support.DEAD}


@pytest.mark.parametrize(
    ("updates", "strategy", "unavailable"),
    [
        ("updateStrategy: OnDelete", "OnDelete", 1),
        ("rollingUpdate: {maxUnavailable: 30%}", "RollingUpdate", "30%"),
    ],
)
def test_updates_of_a_gpucluster_are_those_of_its_pods(
    updates: str, strategy: str, unavailable: int | str
) -> None:
    text = (
        "apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nmetadata: {name: gpu-cluster}\n"
        f"spec: {{daemonsets: {{{updates}}}}}\n"
    )
    objects = gpu_operator.read(text, "f.yaml").objects
    assert objects is not None
    assert (objects.pods.update_strategy, objects.pods.max_unavailable) == (strategy, unavailable)


@pytest.mark.parametrize(
    "version", ["nvidia.com/v1", "nvidia.com/v1alpha1", "gpu.nvidia.com/v1", "v1"]
)
def test_a_kind_that_there_is_not_is_named_with_what_was_meant(version: str) -> None:
    text = f"apiVersion: {version}\nkind: GPUClusterPolicy\nmetadata: {{name: x}}\nspec: {{}}\n"
    (finding,) = lint(text, "f.yaml").findings
    assert "unknown kind 'GPUClusterPolicy'" in finding.message
    assert finding.fix == "did you mean ClusterPolicy of nvidia.com/v1"


def test_mps_without_a_root_is_told() -> None:
    text = "version: v1\nflags: {mpsRoot: %s}\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
    assert any("mpsRoot is empty" in note for note in deviceplugin.read(text % "''", "c").notes)
    assert not any("is empty" in note for note in deviceplugin.read(text % "/run/mps", "c").notes)


def test_since_and_until_when_keys_are_there_is_counted_from_the_releases() -> None:
    assert history.since("helm", "node-feature-discovery.gc.enable") == "v23.9.0"
    assert history.api_default("clusterpolicy", "cdi.enabled", "v25.3.4") is False
    assert history.api_default("clusterpolicy", "cdi.enabled", "v25.10.0") is True
    found = lint(
        "operator: {defaultGPUMode: vgpu}\ndriver: {}\n", "v.yaml", release="1.5.0"
    ).findings
    assert not [one for one in found if one.path == "operator.defaultGPUMode"]


@pytest.mark.parametrize("head", [HEAD, ""])
def test_lint_lists_what_the_release_reads_as_read(head: str) -> None:
    text = (
        "  driver: {useOpenKernelModules: true}\n"
        "  cdi: {enabled: true, default: true}\n  psp: {enabled: true}\n"
    )
    text = head + text if head else "\n".join(line[2:] for line in text.split("\n"))

    def supports(release: str) -> dict[str, Support]:
        return {use.path: use.support for use in lint(text, "f.yaml", release=release).uses}

    ignored = dict.fromkeys(("driver.useOpenKernelModules", "cdi.default"), Support.DEAD)
    read = dict.fromkeys(ignored, Support.HONOURED)
    assert supports("v26.7.0").items() >= ignored.items()
    assert supports("v24.6.2").items() >= read.items()
    if head:
        assert supports("v23.9.1")["psp.enabled"] is Support.LATER


@pytest.mark.parametrize(
    ("release", "version"),
    [("v24.6.2", "550.90.07"), ("v25.3.0", "570.124.06"), ("v26.7.0", "595.91.07")],
)
def test_a_wrong_tag_is_answered_with_the_default_of_the_release(
    release: str, version: str
) -> None:
    report = lint("driver: {version: 580-latest}\n", "f.yaml", release=release)
    (finding,) = [one for one in report.findings if one.rule == "tag"]
    assert f"the default of {release} is {version}" in str(finding.fix)


def test_a_partial_image_is_refused_by_the_release_that_checks_it_alone() -> None:
    text = HEAD + "  driver: {version: 580.95.05}\n"

    def finding(release: str) -> tuple[str, str]:
        found = lint(text, "f.yaml", release=release).findings
        (one,) = [one for one in found if one.rule == "image"]
        return one.message, str(one.fix)

    message, fix = finding("v26.7.0")
    assert (
        message == "driver has version and no repository and no image, which the Operator refuses"
    )
    assert fix.startswith("set driver.repository and driver.image too, or none of")
    message, fix = finding("v24.6.2")
    assert "refuses" not in message
    assert "of which v24.6.2 makes '/:580.95.05', no valid image" in message
    assert fix.startswith("set driver.repository and driver.image too")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("v99.1.0", "the newest supported release is v26.7.0"),
        ("26.11.0", "the newest supported release is v26.7.0"),
        ("v24.9.7", "did you mean v24.9.2"),
        ("main", "the newest supported release is v26.7.0"),
    ],
)
def test_an_unknown_release_is_answered_with_one_that_helps(name: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        history.release(name)
    assert caught.value.fix == fix


def test_variables_that_a_release_drops_are_ignored_with_a_warning() -> None:
    text = (
        "apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nmetadata: {name: gpu-cluster}\n"
        "spec:\n  hostPaths: {rootFS: /host}\n  dcgm: {env: [{name: A, value: b}]}\n"
    )
    reading = gpu_operator.read(text, "gpucluster.yaml", release="v26.3.3")
    assert reading.objects is not None
    assert reading.objects.dcgm.env == {}
    assert reading.objects.host_root == "/"  # the schema does not have it
