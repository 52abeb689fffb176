"""What the Operator runs as pods, as far as it leaves something on a node: labels, plugin, MIG, runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operatorfiles import HEAD, load, read, states

from gpustate import gpu_operator
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import Policy, parameters, resolve
from gpustate.errors import PolicyError

SLICED = (
    "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n"
    "  a100: |\n    version: v1\n    sharing:\n      timeSlicing:\n        resources:\n"
    "        - {name: nvidia.com/gpu, replicas: 4}\n"
    "  any: |\n    version: v1\n    flags: {migStrategy: single}\n"
)
BY_MPS = SLICED.replace(
    "flags: {migStrategy: single}", "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
)
LAYOUTS = (
    "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  config.yaml: |\n"
    "    version: v1\n    mig-configs:\n      train:\n      - devices: all\n"
    "        mig-enabled: true\n        mig-devices: {7g.80gb: 1}\n"
)


def node(name: str, **labels: str) -> str:
    rows = "".join(f"    {key}: {value}\n" for key, value in labels.items())
    return f"---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  labels:\n{rows}"


def mig(name: str, config: str) -> str:
    return node(name, **{"nvidia.com/mig.config": config})


def on(policy: Policy, name: str) -> dict[str, dict[str, Any]]:
    found = resolve(policy, InventoryNode(name))
    return {state.name: parameters(state) for state in found.states}


# --- MIG ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "  {}\n",
        "  migManager: {}\n",
        "  migManager: {enabled: true}\n",
        "  migManager: {enabled: true, config: {default: all-disabled}}\n",
        "  migManager: {config: {name: default-mig-parted-config, default: all-disabled}}\n",
    ],
)
def test_the_operators_own_default_never_takes_a_layout_away(spec: str) -> None:
    reading = read(spec)
    assert "mig" not in states(reading)
    (note,) = [one for one in reading.notes if "MIG layouts are not changed" in one]
    assert "is never carried out; to set a layout, add Node objects with the label" in note


@pytest.mark.parametrize(
    "spec", ["  migManager: {enabled: false}\n", "  migManager: {config: {default: ''}}\n"]
)
def test_where_the_operator_would_not_divide_either_nothing_is_noted(spec: str) -> None:
    assert not [one for one in read(spec).notes if "MIG layouts" in one]


def test_a_nodes_own_label_divides_it_and_no_other(tmp_path: Path) -> None:
    policy = load(f"{HEAD}  {{}}\n{mig('gpu1', 'all-1g.10gb')}", tmp_path)
    assert on(policy, "gpu1")["mig"] == {"config": "all-1g.10gb", "only": None}
    other = next(s for s in resolve(policy, InventoryNode("gpu2")).states if s.name == "mig")
    assert other.only is not None
    assert other.only.text == "~node('*')"
    assert any("on nodes without the label nvidia.com/mig.config" in note for note in policy.notes)


def test_all_disabled_in_a_nodes_own_label_is_carried_out(tmp_path: Path) -> None:
    policy = load(f"{HEAD}  {{}}\n{mig('gpu1', 'all-disabled')}", tmp_path)
    assert on(policy, "gpu1")["mig"]["config"] == "all-disabled"


def test_labels_choose_from_the_config_map_that_the_policy_names(tmp_path: Path) -> None:
    spec = (
        "  migManager: {config: {name: m}, gpuClientsConfig: {name: g},"
        " env: [{name: WITH_REBOOT, value: 'true'}, {name: X, value: y}]}\n"
    )
    clients = (
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: g}\ndata:\n  clients.yaml: |\n"
        "    version: v1\n    systemd-services: [acme.service, kubelet.service]\n"
    )
    policy = load(f"{HEAD}{spec}{LAYOUTS}{clients}{mig('gpu1', 'train')}", tmp_path)
    given = on(policy, "gpu1")["mig"]
    assert given["file"] == "ConfigMap m"
    assert "7g.80gb" in given["contents"]["ConfigMap m"]
    assert (given["clients"], given["in_use"]) == (["acme.service"], "reboot")
    assert any("the kubelet is never stopped" in note for note in policy.notes)
    assert any("migManager.env X" in note for note in policy.notes)


def test_nodes_are_found_in_the_folder_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "cp.d").mkdir()
    listed = "apiVersion: v1\nkind: List\nitems:\n" + "".join(
        f"- apiVersion: v1\n  kind: Node\n  metadata: {{name: gpu{n}, labels: "
        f"{{nvidia.com/mig.config: all-balanced}}}}\n"
        for n in range(300)
    )
    (tmp_path / "cp.d" / "nodes.yaml").write_text(listed)
    policy = load(f"{HEAD}  {{}}\n", tmp_path)
    assert on(policy, "gpu299")["mig"]["config"] == "all-balanced"
    assert any("of 300 Nodes are read" in note for note in policy.notes)


# --- the device plugin -------------------------------------------------------------------


def test_the_config_map_becomes_the_configuration_with_its_default(tmp_path: Path) -> None:
    policy = load(
        f"{HEAD}  devicePlugin: {{config: {{name: c, default: a100}}}}\n{SLICED}", tmp_path
    )
    given = on(policy, "gpu1")["device-plugin-config"]
    assert given["default"] == "a100"
    assert set(given["configs"]) == {"a100", "any"}


def test_without_a_default_an_empty_configuration_counts_and_a_label_chooses(
    tmp_path: Path,
) -> None:
    chosen = node("gpu1", **{"nvidia.com/device-plugin.config": "a100"})
    policy = load(f"{HEAD}  devicePlugin: {{config: {{name: c}}}}\n{SLICED}{chosen}", tmp_path)
    assert on(policy, "gpu1")["device-plugin-config"]["selected"] == "a100"
    given = on(policy, "gpu2")["device-plugin-config"]
    assert given["configs"][given["default"]] == {"version": "v1"}
    assert "selected" not in given


def test_the_chart_makes_the_config_map_of_the_values(tmp_path: Path) -> None:
    values = (
        "devicePlugin:\n  config:\n    create: true\n    name: c\n    default: any\n    data:\n"
        "      any: |-\n        version: v1\n        sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"
    )
    given = on(load(values, tmp_path), "gpu1")["device-plugin-config"]
    assert given["configs"]["any"]["sharing"]["mps"]["resources"][0]["replicas"] == 2


# --- labels ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "  {}\n", {}),
        (HEAD + "  mig: {strategy: mixed}\n", {"mig_strategy": "mixed"}),
        (HEAD + "  gfd: {enabled: false}\n  mig: {strategy: mixed}\n", None),
        ("driver: {}\n", {"mig_strategy": "single"}),  # the chart's own default
        ("driver: {}\nmig: {strategy: null}\n", {}),
        ("driver: {}\nmig: {strategy: none}\n", {"mig_strategy": "none"}),
    ],
)
def test_labels_have_the_strategy_of_the_policy_or_of_the_chart(
    text: str, expected: dict[str, str] | None
) -> None:
    reading = gpu_operator.read(text, "f.yaml")
    assert states(reading).get("gpu-labels") == expected
    if expected is None:
        assert any(
            "not used: mig.strategy (line 6): gfd.enabled is false" in n for n in reading.notes
        )


# --- runtimes ----------------------------------------------------------------------------


def env(**variables: str) -> str:
    rows = ", ".join(f"{{name: {name}, value: '{value}'}}" for name, value in variables.items())
    return f"  toolkit: {{env: [{rows}]}}\n"


ALL = {"containerd", "k3s", "k0s", "microk8s", "crio", "docker"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("  {}\n", ALL - {"docker"}),
        (env(RUNTIME="containerd"), {"containerd", "k3s", "k0s", "microk8s"}),
        (env(RUNTIME="crio"), {"crio"}),
        (env(RUNTIME="docker"), {"docker"}),
        (env(NO_RUNTIME_CONFIG="true"), set()),
        (env(NO_RUNTIME_CONFIG="false"), ALL - {"docker"}),
        (env(CONTAINERD_SOCKET="/run/k3s/containerd/containerd.sock"), {"k3s"}),
        (env(CONTAINERD_CONFIG="/var/lib/rancher/rke2/agent/etc/containerd/config.toml"), {"k3s"}),
        (env(RUNTIME_CONFIG="/etc/k0s/containerd.d/nvidia.toml"), {"k0s"}),
        (env(CONTAINERD_SOCKET="/var/snap/microk8s/common/run/containerd.sock"), {"microk8s"}),
        (env(CONTAINERD_CONFIG="/etc/containerd/config.toml"), ALL - {"docker"}),
        ("  toolkit: {enabled: false}\n", set()),
    ],
)
def test_each_runtime_that_may_be_meant_has_its_state(spec: str, expected: set[str]) -> None:
    assert ALL & set(states(read(spec))) == expected


def test_settings_go_to_the_runtimes_that_have_them_and_the_rest_is_noted() -> None:
    spec = env(
        RUNTIME="crio",
        NVIDIA_RUNTIME_SET_AS_DEFAULT="true",
        RUNTIME_RESTART_MODE="none",
        NVIDIA_RUNTIME_NAME="gpu",
        CRIO_CONFIG_MODE="hook",
        RUNTIME_ENABLE_CDI="true",
    )
    reading = read(spec)
    assert states(reading)["crio"] == {"handler": "gpu", "default": True, "restart": "none"}
    noted = " ".join(reading.notes)
    assert "toolkit.env CRIO_CONFIG_MODE: OCI hooks are unsupported" in noted
    assert "toolkit.env RUNTIME_ENABLE_CDI: this runtime always injects CDI devices" in noted


def test_a_handler_of_another_name_is_nothing_k3s_can_do() -> None:
    spec = "  operator: {runtimeClass: gpu}\n" + env(CONTAINERD_SOCKET="/run/k3s/c.sock")
    assert any(
        "not used: operator.runtimeClass (line 5): in k3s it is always nvidia" in note
        for note in read(spec).notes
    )


def test_links_below_dev_char_are_left_out_where_the_validator_is_told_so() -> None:
    off = (
        "  validator: {driver: {env: [{name: DISABLE_DEV_CHAR_SYMLINK_CREATION, value: 'true'}]}}\n"
    )
    assert "dev-char" not in states(read(off))
    assert "dev-char" in states(read(off.replace("'true'", "'false'")))


# --- GPUDirect and metrics ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "state", "expected"),
    [
        ("  gds: {enabled: true, version: 2.17.5-ubuntu22.04}\n", "gds", {"version": "2.17.5"}),
        ("  gds: {enabled: true}\n", "gds", {}),
        ("  gds: {version: '2.17'}\n", "gds", None),
        ("  driver: {enabled: false}\n  gds: {enabled: true}\n", "gds", None),
        ("  gdrcopy: {enabled: true, version: v2.5.1}\n", "gdrcopy", {"version": "2.5.1"}),
        ("  driver: {rdma: {enabled: true, useHostMofed: true}}\n", "peermem", {}),
        ("  driver: {rdma: {enabled: false}}\n", "peermem", None),
        ("  dcgm: {enabled: true, version: 4.6.0-1-ubuntu24.04}\n", "dcgm", {"version": "4.6.0"}),
        ("  dcgm: {}\n", "dcgm", None),
        ("  dcgmExporter: {}\n", "dcgm-exporter", None),
        ("  dcgmExporter: {enabled: true}\n", "dcgm-exporter", {"engine": ""}),
        ("  dcgm: {enabled: true}\n  dcgmExporter: {enabled: true}\n", "dcgm-exporter", {}),
        (
            "  dcgmExporter: {enabled: true, version: 4.6.0-4.8.3-distroless,"
            " hpcJobMapping: {enabled: true}}\n",
            "dcgm-exporter",
            {"version": "4.8.3", "engine": "", "job_mapping": "/var/lib/dcgm-exporter/job-mapping"},
        ),
    ],
)
def test_what_takes_packages_or_ports_is_set_up_where_it_is_written(
    spec: str, state: str, expected: dict[str, str] | None
) -> None:
    assert states(read(spec)).get(state) == expected


def test_what_is_said_of_a_component_that_is_off_is_noted() -> None:
    spec = "  gds: {version: '2.17'}\n  dcgm: {version: 4.6.0, enabled: false}\n"
    notes = " ".join(read(spec).notes)
    assert "not used: gds.version (line 5): gds.enabled is not true" in notes
    assert "not used: dcgm.version (line 6): dcgm.enabled is not true" in notes


def test_modules_beside_the_driver_come_from_the_nvidiadriver_where_that_is_asked_for() -> None:
    text = (
        f"{HEAD}  driver: {{useNvidiaDriverCRD: true}}\n  gds: {{enabled: true}}\n---\n"
        "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: d}\n"
        "spec: {gdrcopy: {enabled: true}, rdma: {enabled: true}}\n"
    )
    reading = gpu_operator.read(text, "cp.yaml")
    assert {"gdrcopy", "peermem"} <= set(states(reading))
    assert "gds" not in states(reading)
    assert any(
        "not used: gds.enabled (line 6): set by the NVIDIADriver" in n for n in reading.notes
    )


def test_the_counters_file_is_the_config_map(tmp_path: Path) -> None:
    rows = (
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: rows}\ndata:\n  dcgm-metrics.csv: |\n"
        "    DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
    )
    policy = load(
        f"{HEAD}  dcgmExporter: {{enabled: true, config: {{name: rows}}}}\n{rows}", tmp_path
    )
    given = on(policy, "gpu1")["dcgm-exporter"]
    assert given["counters"] == "ConfigMap rows"
    assert "GPU_TEMP" in given["contents"]["ConfigMap rows"]


# --- wrong -------------------------------------------------------------------------------

PLUGIN = "  devicePlugin: {config: {name: c, default: any}}\n"
MIG_MAP = "  migManager: {config: {name: m}}\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (PLUGIN.replace("any", "b200") + SLICED, 5, "default is 'b200', and the ConfigMap 'c' has a100, any"),
        (PLUGIN + SLICED.replace("replicas", "replica"), 16, "unknown key replica; did you mean replicas"),
        (PLUGIN + SLICED + node("n", **{"nvidia.com/device-plugin.config": "h1"}), 26, "'n' is 'h1', and the ConfigMap 'c' has"),
        ("  {}\n" + node("n", **{"nvidia.com/device-plugin.config": "h1"}), 12, "devicePlugin.config.name names no ConfigMap"),
        ("  {}\n" + mig("n", "all-1g.10g"), 12, "no configuration 'all-1g.10g', in built-in configurations; did you mean"),
        ("  {}\n" + mig("n", "yes"), 12, "of Node 'n' is a boolean, wanted text; put it in quotes"),
        ("  {}\n" + mig("n", "all-balanced") + mig("n", "all-balanced"), 14, "a second Node 'n', the first is at cp.yaml:7"),
        ("  {}\n---\napiVersion: v1\nkind: Node\nmetadata: {}\n", 7, "metadata.name of the Node is missing"),
        (MIG_MAP + mig("n", "train"), 5, "names the ConfigMap 'm', which is not in this file"),
        (MIG_MAP + LAYOUTS + mig("n", "trian"), 24, "no configuration 'trian', in ConfigMap m; did you mean train"),
        (MIG_MAP + LAYOUTS.replace("7g.80gb", "7g.80g") + mig("n", "train"), 17, "'7g.80g'"),
        (MIG_MAP + LAYOUTS.replace("config.yaml", "config.yml") + mig("n", "train"), 7, "has no key config.yaml"),
        ("  dcgm: {enabled: true, version: latest}\n", 5, "dcgm.version is 'latest', wanted a version such as 4.6.0"),
        ("  dcgmExporter: {enabled: true, config: {name: c}}\n" + SLICED, 7, "has no key dcgm-metrics.csv"),
        ("  mig: {strategy: mixed}\n  devicePlugin: {config: {name: c, default: any}}\n" + BY_MPS, 5,
         "mig.strategy is mixed, and any of the ConfigMap 'c' shares GPUs with MPS: the device plugin refuses both"),
        (env(RUNTIME="cri-o"), 5, "RUNTIME is 'cri-o', wanted 'containerd' or 'crio' or 'docker'"),
        (env(NO_RUNTIME_CONFIG="ja"), 5, "NO_RUNTIME_CONFIG is 'ja', wanted 'true' or 'false'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_error_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(text)
    assert str(caught.value).startswith(f"cp.yaml:{line}: "), caught.value
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_that_keep_a_component_off_a_node_are_noted() -> None:
    labels = {
        "nvidia.com/gpu.deploy.driver": "'false'",
        "nvidia.com/gpu.deploy.dcgm": "'true'",
        "nvidia.com/gpu.workload.config": "vm-passthrough",
    }
    noted = [one for one in read("  {}\n", node("n", **labels)).notes if "select the nodes" in one]
    assert len(noted) == 1
    assert "gpu.deploy.driver 'false' of Node 'n'" in noted[0]
