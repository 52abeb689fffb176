"""Operator files turned into states and notes: golden files, meanings and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpustate import gpu_operator, policies
from gpustate.core.policy import parameters
from gpustate.errors import PolicyError
from gpustate.gpu_operator import Reading
from gpustate.gpu_operator.check import always_strict

ROOT = Path(__file__).parents[3]
UPSTREAM = ROOT.parent / "shared" / "upstream" / "gpu-operator"
GOLDEN = ROOT / "tests" / "golden" / "clusterpolicy"
OURS = [*sorted(GOLDEN.glob("*.yaml")), ROOT / "docs" / "examples" / "clusterpolicy.yaml"]
THEIRS = {
    "upstream-clusterpolicy": UPSTREAM / "v1_clusterpolicy.yaml",
    "upstream-nvidiadriver": UPSTREAM / "nvidia_v1alpha1_nvidiadriver.yaml",
    "upstream-values": UPSTREAM / "values.yaml",
}
CASES = {**{file.stem: file for file in OURS}, **THEIRS}
HEAD = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"


def read(spec: str) -> Reading:
    return gpu_operator.read(HEAD + spec, "cp.yaml")


def states(reading: Reading) -> dict[str, dict[str, object]]:
    return {wanted.state: wanted.parameters for wanted in reading.states}


def present(file: Path) -> Path:
    if not file.is_file():
        pytest.skip("wants ../shared/upstream/gpu-operator beside the repository")
    return file


@pytest.mark.parametrize("name", CASES)
def test_a_file_asks_for_what_the_golden_file_says(
    name: str, request: pytest.FixtureRequest
) -> None:
    file = present(CASES[name])
    reading = gpu_operator.read(file.read_text(), file.name)
    shown = {
        "kind": reading.kind,
        "name": reading.name,
        "states": states(reading),
        "notes": reading.notes,
    }
    text = json.dumps(shown, indent=2) + "\n"
    golden = GOLDEN / f"{name}.json"
    if request.config.getoption("--update-golden", default=False):
        golden.write_text(text)
    assert golden.read_text() == text


@pytest.mark.parametrize("name", CASES)
def test_the_states_take_what_the_reader_gives_them(name: str) -> None:
    file = present(CASES[name])
    policy = policies.load(str(file))
    reading = gpu_operator.read(file.read_text(), file.name)
    assert [state.name for state in policy.states] == [w.state for w in reading.states]
    for state, wanted in zip(policy.states, reading.states, strict=True):
        assert parameters(state) == wanted.parameters, state.name


def test_the_upstream_sample_means_the_whole_stack() -> None:
    policy = policies.load(str(present(THEIRS["upstream-clusterpolicy"])))
    assert [state.name for state in policy.states] == [
        "preflight",
        "nouveau",
        "driver-repository",
        "driver",
        "persistenced",
        "nvlsm",
        "fabric-manager",
        "toolkit-repository",
        "container-toolkit",
        "containerd",
        "k3s",
        "k0s",
        "microk8s",
        "crio",
        "cdi",
        "dev-char",
        "gpu-labels",
        "dcgm",
        "dcgm-exporter",
        "validator",
    ]
    assert policy.name == "gpu-cluster-policy"


def test_nothing_said_is_not_false() -> None:
    silent, off = states(read("  driver: {}\n")), states(read("  driver: {enabled: false}\n"))
    assert "driver" in silent
    assert not {"driver", "nouveau", "persistenced", "fabric-manager", "driver-repository"} & set(
        off
    )
    assert "container-toolkit" in off
    assert "driver" in states(read("  driver: {enabled: null}\n"))
    assert "driver" in states(read("  driver:\n"))


@pytest.mark.parametrize(
    ("spec", "default"),
    [
        ("  cdi: {}\n", False),
        ("  cdi: {enabled: false}\n", True),
        (
            "  cdi: {enabled: false}\n  toolkit: {env: [{name: CONTAINERD_SET_AS_DEFAULT, value: 'false'}]}\n",
            False,
        ),
        ("  toolkit: {env: [{name: NVIDIA_RUNTIME_SET_AS_DEFAULT, value: '1'}]}\n", True),
    ],
)
def test_the_default_runtime_follows_cdi_unless_it_is_said(spec: str, default: bool) -> None:
    assert states(read(spec))["containerd"]["default"] is default


@pytest.mark.parametrize(
    ("version", "parameters"),
    [
        ("580.95.05", {"version": "580.95.05"}),
        ("'580'", {"branch": 580}),
        ("580.95.05-ubuntu24.04", {"version": "580.95.05"}),
        ("580.95.05-rhel9.4", {"version": "580.95.05"}),
    ],
)
def test_an_image_tag_is_read_as_a_driver_version(
    version: str, parameters: dict[str, object]
) -> None:
    assert states(read(f"  driver: {{version: {version}}}\n"))["driver"] == parameters


def test_module_parameters_come_from_the_config_map_in_the_same_file() -> None:
    config_map = (
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: km}\ndata:\n"
        '  nvidia.conf: |\n    NVreg_A=1\n\n    NVreg_B="x=y"\n  nvidia-uvm.conf: uvm_c=0\n'
    )
    reading = read("  driver: {kernelModuleConfig: {name: km}}\n" + config_map)
    given = {"NVreg_A": 1, "NVreg_B": "x=y", "nvidia-uvm.uvm_c": 0}
    assert states(reading)["driver"] == {"parameters": given}


@pytest.mark.parametrize(
    ("spec", "line", "said"),
    [
        ("  driver: {versoin: '580'}\n", 5, "'driver.versoin', .* did you mean driver.version"),
        ("  drivers: {}\n", 5, "did you mean driver"),
        ("  driver:\n    runtimeClass: x\n", 6, "did you mean operator.runtimeClass"),
        ("  driver:\n    KernelModuleType: x\n", 6, "did you mean driver.kernelModuleType"),
        ("  driver: {version: 580}\n", 5, r"driver.version is a number \('580'\), wanted a string; put it in"),
        ("  driver: {enabled: 'true'}\n", 5, "wanted a boolean; write true or false, without quotes"),
        ("  driver: [1]\n", 5, "driver is a list, wanted a mapping"),
        ("  driver: {kernelModuleType: closed}\n", 5, "'closed', wanted 'auto' or 'open' or 'proprietary'"),
        ("  driver: {version: sha256:0123}\n", 5, "is a digest, .* write the driver version of that image"),
        ("  driver: {version: latest}\n", 5, "wanted a driver version such as"),
        ("  driver: {upgradePolicy: {maxParallelUpgrades: -1}}\n", 5, "is -1, wanted 0 or more"),
        ("  driver: {upgradePolicy: {maxUnavailable: 1.5}}\n", 5, "wanted a whole number or a string"),
        ("  driver: {imagePullSecrets: [1]}\n", 5, "an element of driver.imagePullSecrets is a number"),
        ("  toolkit:\n    resources:\n      limits:\n        cpu: lots\n", 8, r"toolkit.resources.limits.cpu is a string \('lots'\), wanted a quantity such as 500m or 2Gi"),
        ("  toolkit: {resources: {requests: {memory: 2GB}}}\n", 5, "requests.memory is a string .*, wanted a quantity"),
        ("  toolkit: {resources: {requests: {cpu: 0.5}}}\n", 5, "requests.cpu is a number .*; put it in quotes"),
        ("  toolkit: {resources: {requests: {cpu: -1}}}\n", 5, "requests.cpu is a number .*, wanted a quantity"),
        ("  driver: {kernelModuleConfig: {name: km}}\n", 5, "ConfigMap 'km', which is not in this file"),
        ("  toolkit:\n    env:\n      - value: x\n", 7, "an element of toolkit.env has no name"),
        ("  toolkit:\n    env:\n      -\n", 7, "an element of toolkit.env is nothing"),
        ("  toolkit:\n    env: {A: b}\n", 6, "toolkit.env is a mapping, wanted a list"),
        ("  toolkit: {env: [{name: CONTAINERD_SET_AS_DEFAULT, value: ja}]}\n", 5, "wanted 'true' or 'false'"),
        ("  toolkit: {env: [{name: RUNTIME_RESTART_MODE, value: hup}]}\n", 5, "'hup', wanted 'signal' or"),
        ("  ccManager:\n    defaultMode: on\n", 6, r"is a boolean \('True'\), wanted a string; put it in"),
        ("  cdi: {enabled: false, nriPluginEnabled: true}\n", 5, "requires cdi.enabled and toolkit.enabled"),
        ("  sandboxWorkloads:\n    enabled: true\n    defaultWorkload: vm-vgpu\n", 7, "installs no driver"),
        ("  {}\ndriver: {version: '570'}\n", 6, "unknown key 'driver' next to spec, .*; move it below spec"),
        ("  {}\nfoo: 1\n", 6, "unknown key 'foo' next to spec"),
        ("  {}\n---\n" + HEAD + "  {}\n", 7, "a second ClusterPolicy, the first is in line 1"),
    ],
)  # fmt: skip
def test_a_wrong_clusterpolicy_is_one_error_with_its_line(spec: str, line: int, said: str) -> None:
    with pytest.raises(PolicyError, match=said) as caught:
        gpu_operator.read(HEAD + spec, "cp.yaml", strict=always_strict)
    assert str(caught.value).startswith(f"cp.yaml:{line}: ")


@pytest.mark.parametrize(
    "text",
    ["2", "0", "1.5", ".5", "5.", "+1", "100m", "2Gi", "128974848", "129e6", "1E3", "1E", "3k"],
)
def test_a_quantity_of_kubernetes_is_right(text: str) -> None:
    read(f"  toolkit: {{resources: {{limits: {{memory: '{text}'}}}}}}\n")


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (
            "  nvidia.conf: |\n    NVreg_A=1\n    options nvidia x\n",
            13,
            "'options nvidia x', wanted NAME=VALUE",
        ),
        ("  nvidia.cnf: a=1\n", 11, "'nvidia.cnf', which no module reads; wanted nvidia.conf"),
    ],
)
def test_a_wrong_config_map_is_one_error_with_its_line(data: str, line: int, said: str) -> None:
    text = "  driver: {kernelModuleConfig: {name: km}}\n---\napiVersion: v1\nkind: ConfigMap\n"
    with pytest.raises(PolicyError, match=said) as caught:
        read(text + f"metadata: {{name: km}}\ndata:\n{data}")
    assert str(caught.value).startswith(f"cp.yaml:{line}: ")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("driverType: vgpu", "driverType 'vgpu' is unsupported"),
        (
            "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
            "[{matchExpressions: [{key: zone, operator: Gt, values: ['1']}]}]}}",
            "uses operator 'Gt' for 'zone', which is unsupported",
        ),
    ],
)
def test_a_driver_that_cannot_be_placed_is_refused(spec: str, said: str) -> None:
    head = "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nspec:\n  "
    with pytest.raises(PolicyError, match=said):
        gpu_operator.read(head + spec, "nd.yaml")
    with pytest.raises(PolicyError, match="a second NVIDIADriver for the same nodes"):
        gpu_operator.read(f"{head}version: '580'\n---\n{head}version: '570'\n", "nd.yaml")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            "gpuCluster: {deployCR: true}",
            "are mutually exclusive, and both are true; set clusterPolicy",
        ),
        (
            "{gpuCluster: {deployCR: true}, clusterPolicy: {deployCR: false}}",
            "requires driver.nvidiaDriverCRD.enabled, or driver.enabled false",
        ),
        ("clusterPolicy: {deployCR: false}", "nothing is deployed"),
        ("driver: {nvidiaDriverCRD: {enabled: true, driverType: vgpu}}", "is 'vgpu', wanted 'gpu'"),
        ("driver: {useNvidiaDriverCRD: true}", "did you mean driver.nvidiaDriverCRD"),
    ],
)
def test_helm_values_that_ask_for_more_are_refused(values: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        gpu_operator.read(values, "values.yaml", strict=always_strict)


def test_a_gpucluster_leaves_a_node_its_driver_and_metrics_and_nothing_else() -> None:
    head = "apiVersion: nvidia.com/v1alpha1\nkind: {}\nmetadata: {{name: gpu-cluster}}\nspec: {}\n"
    cluster = head.format("GPUCluster", "{dcgm: {enabled: true}}")
    alone = gpu_operator.read(cluster, "gc.yaml")
    assert alone.kind == "gpucluster"
    assert list(states(alone)) == ["preflight", "validator", "dcgm"]
    assert any("the driver is managed elsewhere" in note for note in alone.notes)
    both = gpu_operator.read(
        cluster + "---\n" + head.format("NVIDIADriver", "{version: '580'}"), "gc"
    )
    assert list(states(both))[:4] == ["preflight", "nouveau", "driver-repository", "driver"]
    assert states(both)["driver"] == {"branch": 580}
    assert not {"containerd", "container-toolkit", "cdi"} & set(states(both))
    with pytest.raises(PolicyError, match="contains a ClusterPolicy and a GPUCluster"):
        gpu_operator.read(HEAD + "  {}\n---\n" + cluster, "gc.yaml")


def test_values_for_a_gpucluster_mean_its_driver_and_nothing_else() -> None:
    values = (
        "{gpuCluster: {deployCR: true}, clusterPolicy: {deployCR: false}, "
        "driver: {version: 580.95.05, nvidiaDriverCRD: {enabled: true}}}"
    )
    found = states(gpu_operator.read(values, "values.yaml"))
    assert found["driver"] == {"version": "580.95.05"}
    assert not {"containerd", "container-toolkit", "cdi"} & set(found)


def test_values_are_found_inside_an_umbrella_chart_and_a_helmrelease() -> None:
    bare = gpu_operator.read("driver: {version: 580.95.05}\n", "values.yaml")
    umbrella = gpu_operator.read(
        "other: {a: 1}\ngpu-operator:\n  enabled: true\n  driver: {version: 580.95.05}\n",
        "values.yaml",
    )
    release = gpu_operator.read(
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec:\n"
        "  values: {driver: {version: 580.95.05}}\n",
        "values.yaml",
    )
    assert states(bare) == states(umbrella) == states(release)


def test_what_the_chart_fills_in_is_told_and_its_versions_are_not_taken() -> None:
    reading = gpu_operator.read("driver: {kernelModuleType: open}\n", "values.yaml")
    assert states(reading)["driver"] == {"module_type": "open"}
    (note,) = [note for note in reading.notes if "the defaults of the chart" in note]
    assert "mig.strategy single, dcgm.enabled false" in note
    (note,) = [note for note in reading.notes if "the default versions of the chart" in note]
    assert "are not used: driver.version 595.91.07" in note


def test_a_branch_without_a_preset_is_not_read_as_values_of_the_chart() -> None:
    with pytest.raises(PolicyError, match=r"driver\.branch is a key of gpustate's own policies"):
        gpu_operator.read("driver: {branch: 580}\n", "p.yaml")


def test_values_with_an_unknown_key_are_said_to_be_values() -> None:
    ours = "a policy of gpustate's own begins with 'format: gpustate.policy/1'"
    notes = gpu_operator.read("driver: {brand: x}\n", "p.yaml").notes
    assert f"p.yaml: read as Helm values of the GPU Operator; {ours}" in notes
    assert not any(ours in note for note in gpu_operator.read("driver: {}\n", "p.yaml").notes)


def test_null_in_values_is_neither_false_nor_left_out() -> None:
    def on(values: str) -> str:
        notes = gpu_operator.read(values, "v.yaml").notes
        return next(note for note in notes if "enabled in the Operator" in note)

    assert " dcgm," not in on("dcgm: {}\n")
    assert " dcgm," not in on("dcgm: {enabled: false}\n")
    assert " dcgm," in on("dcgm: {enabled: null}\n")
    notes = gpu_operator.read("dcgm: {enabled: null}\n", "v.yaml").notes
    assert any("dcgm.enabled is null" in note and "default is on" in note for note in notes)


def test_config_maps_come_from_the_folder_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cp.yaml"
    text = (
        HEAD + "  driver: {kernelModuleConfig: {name: km}}\n  migManager: {config: {name: mig}}\n"
    )
    folder = tmp_path / "cp.d"
    (folder / "mig").mkdir(parents=True)
    (folder / "mig" / "config.yaml").write_text("version: v1\n")
    (folder / "maps.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: km}\ndata: {nvidia.conf: NVreg_A=1}\n"
    )
    reading = gpu_operator.read(text, str(file))
    assert states(reading)["driver"] == {"parameters": {"NVreg_A": 1}}
    (folder / "maps.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: km}\ndata: 1\n"
    )
    with pytest.raises(
        PolicyError, match=r"cp\.d/maps\.yaml:1: data of the ConfigMap 'km' is not a mapping"
    ):
        gpu_operator.read(text, str(file))


def test_a_secret_is_decoded_and_a_wrong_one_is_an_error() -> None:
    secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: env}\ndata: {TOKEN: %s}\n"
    assert read("  driver: {secretEnv: env}\n" + secret % "c2VjcmV0").states
    with pytest.raises(PolicyError, match=r"cp\.yaml:10: TOKEN of a Secret is not base64"):
        read("  driver: {secretEnv: env}\n" + secret % "'%'")


def test_objects_beside_a_policy_that_nobody_asks_for_are_noted() -> None:
    config_map = "---\napiVersion: v1\nkind: {}\nmetadata: {{name: spare}}\n"
    reading = read("  {}\n" + config_map.format("ConfigMap") + config_map.format("Secret"))
    notes = " ".join(reading.notes)
    assert "cp.yaml:7: not read: ConfigMap 'spare'" in notes
    assert "cp.yaml:11: not read: Secret 'spare'" in notes


def test_a_wrong_parameter_names_the_line_it_stands_on(tmp_path: Path) -> None:
    file = tmp_path / "cp.yaml"
    file.write_text(HEAD + "  toolkit:\n    version: '!'\n")
    with pytest.raises(PolicyError, match="container-toolkit: version") as caught:
        policies.load(str(file))
    assert str(caught.value).startswith(f"{file}:6: ")


def test_every_key_of_a_file_is_honoured_or_in_a_note() -> None:
    notes = " ".join(
        read(
            "  nodeStatusExporter: {enabled: true}\n  psa: {enabled: true}\n  dcgm: {hostPort: 1}\n"
        ).notes
    )
    for key in (
        "nodeStatusExporter.enabled (line 5)",
        "psa.enabled (line 6)",
        "dcgm.hostPort (line 7)",
    ):
        assert key in notes


def test_without_strict_an_unknown_key_is_a_note() -> None:
    reading = gpu_operator.read(HEAD + "  driver: {versoin: '580'}\n", "cp.yaml")
    said = (
        "cp.yaml:5: warning: unknown key 'driver.versoin', which the API server would silently drop"
    )
    assert any(said in note and "did you mean driver.version" in note for note in reading.notes)


def test_status_and_managed_fields_of_a_live_object_do_not_matter() -> None:
    text = HEAD + "  driver: {version: '580'}\nstatus: {state: ready, namespace: gpu-operator}\n"
    assert states(gpu_operator.read(text, "cp.yaml"))["driver"] == {"branch": 580}


def test_json_as_kubectl_prints_it_is_read() -> None:
    text = json.dumps(
        {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "spec": {"cdi": {"enabled": False}},
        },
        indent=4,
    )
    assert "cdi" not in states(gpu_operator.read(text, "cp.json"))
