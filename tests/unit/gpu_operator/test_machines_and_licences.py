"""Nodes for virtual machines, licences of vGPUs, and the pace of upgrades, out of the Operator's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from operatorfiles import HEAD, load, read, states

from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import Policy, parameters, resolve
from gpustate.core.rollout import RolloutPolicy
from gpustate.errors import PolicyError
from gpustate.policies.converting import convert

MACHINES = "  sandboxWorkloads: {enabled: true, defaultWorkload: vm-passthrough%s}\n"
VFIO = "  vfioManager: {enabled: true}\n"
TOKEN = "client_configuration_token.tok"


def node(name: str, workload: str) -> str:
    return (
        f"---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  labels:\n"
        f"    nvidia.com/gpu.workload.config: {workload}\n"
    )


def on(policy: Policy, name: str) -> set[str]:
    """Names of the states that hold on a node."""
    found = resolve(policy, InventoryNode(name)).states
    return {one.name for one in found if one.only is None or one.only.text != "~node('*')"}


def again(policy: Policy, folder: Path) -> Policy:
    """The policy written as YAML and read."""
    made = convert(policy, "yaml")
    assert not [line for line in made.lost if not line.startswith("pace ")]
    return load(made.text, folder)


# --- virtual machines --------------------------------------------------------------------


def test_nodes_for_virtual_machines_get_no_driver_and_no_toolkit() -> None:
    reading = read(MACHINES % "" + VFIO + "  driver: {version: '580.95.05'}\n")
    assert states(reading) == {"preflight": {}, "vfio": {"devices": ["gpus"]}}
    (note,) = [one for one in reading.notes if "defaultWorkload is vm-passthrough" in one]
    assert "not used: driver.version" in note


@pytest.mark.parametrize(
    ("more", "runtime"),
    [
        ("", "kata"),
        ("  ccManager: {enabled: true}\n", "kata"),
        ("  ccManager: {enabled: true, defaultMode: 'off'}\n", "kata"),
        ("  ccManager: {enabled: false, defaultMode: 'on'}\n", "kata"),
        ("  ccManager: {enabled: true, defaultMode: 'on'}\n", "confidential"),
        ("  ccManager: {enabled: true, defaultMode: devtools}\n", "confidential"),
    ],
)
def test_kata_is_confidential_only_where_the_file_itself_says_so(more: str, runtime: str) -> None:
    found = states(read(MACHINES % ", mode: kata" + VFIO + more))
    assert found["kata"] == {"runtime": runtime}


def test_a_label_makes_one_node_one_for_virtual_machines(tmp_path: Path) -> None:
    spec = "  sandboxWorkloads: {enabled: true}\n" + VFIO
    policy = load(HEAD + spec + node("vm1", "vm-passthrough") + node("vg1", "vm-vgpu"), tmp_path)
    assert on(policy, "vm1") == {"preflight", "vfio"}
    assert on(policy, "vg1") == {"preflight"}
    assert {"driver", "containerd", "validator"} <= on(policy, "other")
    assert "vfio" not in on(policy, "other")
    assert any("host vGPUs are unsupported" in note for note in policy.notes)


def test_a_label_makes_one_node_one_for_containers(tmp_path: Path) -> None:
    policy = load(HEAD + MACHINES % ", mode: kata" + VFIO + node("c1", "container"), tmp_path)
    assert {"driver", "containerd"} <= on(policy, "c1")
    assert not {"vfio", "kata"} & on(policy, "c1")
    assert on(policy, "other") == {"preflight", "vfio", "kata"}


def test_a_node_for_virtual_machines_is_not_divided_whatever_its_other_label_says(
    tmp_path: Path,
) -> None:
    label = "    nvidia.com/mig.config: all-1g.10gb\n"
    spec = "  sandboxWorkloads: {enabled: true}\n" + VFIO
    policy = load(HEAD + spec + node("vm1", "vm-passthrough") + label, tmp_path)
    assert on(policy, "vm1") == {"preflight", "vfio"}


def test_without_the_switch_labels_and_managers_do_nothing() -> None:
    reading = read(VFIO + "  ccManager: {enabled: true}\n", node("vm1", "vm-passthrough"))
    assert "vfio" not in states(reading)
    text = "\n".join(reading.notes)
    assert "not used: vfioManager.enabled (line 5), ccManager.enabled (line 6)" in text
    assert "not used: label nvidia.com/gpu.workload.config 'vm-passthrough'" in text


def test_a_workload_that_there_is_not_is_the_default_as_under_the_operator() -> None:
    reading = read("  sandboxWorkloads: {enabled: true}\n" + VFIO, node("n1", "vm"))
    assert "vfio" not in states(reading)
    assert any("treats as the default, container" in note for note in reading.notes)


@pytest.mark.parametrize(
    "text",
    [
        MACHINES % "" + VFIO,
        MACHINES % ", mode: kata" + VFIO + "  ccManager: {enabled: true, defaultMode: 'on'}\n",
        "  sandboxWorkloads: {enabled: true}\n" + VFIO + node("vm1", "vm-passthrough"),
        MACHINES % "" + VFIO + node("c1", "container"),
    ],
)
def test_what_nodes_are_for_is_written_back(text: str, tmp_path: Path) -> None:
    policy = load(HEAD + text, tmp_path)
    other = again(policy, tmp_path)
    for name in ("vm1", "c1", "other"):
        assert on(other, name) == on(policy, name)


# --- licences ----------------------------------------------------------------------------

LICENSED = "  driver: {licensingConfig: {secretName: lic, nlsEnabled: true}}\n"
SECRET = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: lic}\nstringData:\n  gridd.conf: |\n"


def test_gridd_conf_of_the_secret_becomes_parameters() -> None:
    text = "    # a comment\n    FeatureType=2\n    ServerAddress=lic.example.net\n    ServerPort=7171\n"
    reading = read(LICENSED, SECRET + text + "    LicenseInterval=1440\n")
    given = states(reading)["vgpu-guest"]
    assert given == {"feature_type": 2, "server_address": "lic.example.net", "server_port": 7171}
    assert any("cp.yaml:16: not carried out: LicenseInterval" in note for note in reading.notes)


@pytest.mark.parametrize("line", ["FeatureType=3", "ServerPort=99999", "ServerPort=-1"])
def test_a_value_that_cannot_be_is_an_error_with_its_line(line: str) -> None:
    with pytest.raises(PolicyError, match=r"cp.yaml:12: .* of gridd.conf is"):
        read(LICENSED, f"{SECRET}    {line}\n    ServerAddress=a\n")


def test_a_token_is_taken_as_a_file_of_its_own_only(tmp_path: Path) -> None:
    (tmp_path / "cp.d" / "lic").mkdir(parents=True)
    (tmp_path / "cp.d" / "lic" / TOKEN).write_text("secret-token")
    policy = load(HEAD + LICENSED, tmp_path)
    guest = next(one for one in policy.states if one.name == "vgpu-guest")
    assert parameters(guest) == {"token_file": str(tmp_path / "cp.d" / "lic" / TOKEN)}
    assert "secret-token" not in convert(policy, "yaml").text


def test_a_token_in_an_object_stays_out_of_the_policy() -> None:
    text = f"    ServerAddress=a\n  {TOKEN}: secret-token\n"
    reading = read(LICENSED, SECRET + text)
    assert states(reading)["vgpu-guest"] == {"server_address": "a"}
    (note,) = [one for one in reading.notes if TOKEN in one]
    assert "would be part of every plan" in note
    assert "secret-token" not in repr(reading.states) + note


def test_without_nls_the_token_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cp.d" / "lic").mkdir(parents=True)
    (tmp_path / "cp.d" / "lic" / TOKEN).write_text("secret-token")
    policy = load(HEAD + LICENSED.replace(", nlsEnabled: true", ""), tmp_path)
    assert "vgpu-guest" not in {one.name for one in policy.states}
    assert any("nlsEnabled is not true" in note for note in policy.notes)


def test_a_secret_that_is_not_beside_the_file_is_told_with_the_next_move() -> None:
    reading = read(LICENSED)
    assert "vgpu-guest" not in states(reading)
    assert any(
        "put gridd.conf and client_configuration_token.tok into the folder cp.d/lic" in note
        for note in reading.notes
    )


def test_a_licence_server_is_written_back(tmp_path: Path) -> None:
    policy = load(HEAD + LICENSED + SECRET + "    ServerAddress=a\n    FeatureType=4\n", tmp_path)
    other = again(policy, tmp_path)
    assert [parameters(one) for one in other.states] == [parameters(one) for one in policy.states]


# --- the pace of upgrades ----------------------------------------------------------------

PACE = "  driver: {upgradePolicy: {autoUpgrade: %s, maxParallelUpgrades: %s, maxUnavailable: %s}}\n"


@pytest.mark.parametrize(
    ("auto", "parallel", "unavailable", "rollout"),
    [
        ("true", 4, "25%", RolloutPolicy(serial=("4",), max_unavailable="25%")),
        ("true", 0, "25%", RolloutPolicy(max_unavailable="25%")),
        ("true", 0, "'100%'", RolloutPolicy()),
        ("true", 3, 2, RolloutPolicy(serial=("3",), max_unavailable="2")),
        ("false", 4, "25%", RolloutPolicy()),
    ],
)
def test_limits_of_upgrades_are_waves_and_nodes_out_of_service(
    auto: str, parallel: int, unavailable: object, rollout: RolloutPolicy, tmp_path: Path
) -> None:
    policy = load(HEAD + PACE % (auto, parallel, unavailable), tmp_path)
    assert policy.rollout == rollout


def test_a_limit_that_nobody_wrote_is_not_kept(tmp_path: Path) -> None:
    policy = load(HEAD + "  driver: {upgradePolicy: {autoUpgrade: true}}\n", tmp_path)
    assert policy.rollout == RolloutPolicy()


def test_values_are_upgraded_unless_they_say_otherwise(tmp_path: Path) -> None:
    text = "driver: {upgradePolicy: {maxParallelUpgrades: 2}}\n"
    assert load(text, tmp_path).rollout.serial == ("2",)
    off = text.replace("{max", "{autoUpgrade: null, max")
    assert load(off, tmp_path).rollout.serial == ()


def test_no_node_at_all_is_no_limit(tmp_path: Path) -> None:
    policy = load(HEAD + PACE % ("true", 1, 0), tmp_path)
    assert policy.rollout == RolloutPolicy(serial=("1",))
    assert any("no node would ever be upgraded" in note for note in policy.notes)


@pytest.mark.parametrize("size", ["'a%'", "'101%'", "'-1'", "''"])
def test_a_limit_that_is_none_is_an_error(size: str) -> None:
    with pytest.raises(PolicyError, match=r"cp.yaml:5: driver.upgradePolicy.maxUnavailable is"):
        read(PACE % ("true", 1, size))


# --- how workloads leave -----------------------------------------------------------------

SKIP = "nvidia.com/gpu-driver-upgrade-drain.skip!=true"
LEAVE = """\
  driver:
    upgradePolicy:
      autoUpgrade: true
      waitForCompletion: {podSelector: app=train, timeoutSeconds: 3600}
      podDeletion: {force: true, timeoutSeconds: 600, deleteEmptyDir: true}
      drain: {enable: true, force: false, podSelector: tier=web, timeoutSeconds: 0, deleteEmptyDir: true}
"""


def drain_of(text: str, tmp_path: Path) -> DrainPolicy | None:
    return load(text, tmp_path).drain


def test_every_field_of_the_upgrade_policy_is_kept(tmp_path: Path) -> None:
    policy = load(HEAD + LEAVE, tmp_path)
    assert policy.drain == DrainPolicy(
        wait_selector="app=train",
        wait_timeout_s=3600.0,
        gpu_pods=EvictionRules(force=True, delete_empty_dir=True, timeout_s=600.0),
        node=EvictionRules(delete_empty_dir=True, timeout_s=0.0, pod_selector=f"tier=web,{SKIP}"),
        node_after_gpu_pods=True,
    )
    (note,) = [one for one in policy.notes if "apply will" in one]
    assert "wait for pods with app=train (at most 3600 s) before any is evicted" in note
    assert again(policy, tmp_path).drain == policy.drain
    for shape in ("yaml", "python"):
        assert not [one for one in convert(policy, shape).lost if one.startswith("drain")]


def test_values_of_the_chart_are_read_by_their_own_name(tmp_path: Path) -> None:
    text = "driver: {upgradePolicy: {gpuPodDeletion: {force: true}}}\n"
    assert drain_of(text, tmp_path) == DrainPolicy(gpu_pods=EvictionRules(force=True))


def test_a_drain_that_is_not_enabled_leaves_the_node_to_the_defaults(tmp_path: Path) -> None:
    policy = load(HEAD + LEAVE.replace("enable: true", "enable: false"), tmp_path)
    assert policy.drain is not None
    assert policy.drain.node == EvictionRules()
    assert not policy.drain.node_after_gpu_pods
    assert any("drain.enable is not true" in note for note in policy.notes)


def test_without_auto_upgrade_nothing_of_it_is_used(tmp_path: Path) -> None:
    policy = load(HEAD + LEAVE.replace("autoUpgrade: true", "autoUpgrade: false"), tmp_path)
    assert policy.drain is None
    (note,) = [one for one in policy.notes if "autoUpgrade is not true" in one]
    assert "driver.upgradePolicy.podDeletion.force" in note


@pytest.mark.parametrize(
    "text",
    [
        "{podDeletion: {force: false, timeoutSeconds: 300, deleteEmptyDir: false}}",
        "{waitForCompletion: {timeoutSeconds: 60}}",
        "{drain: {enable: false}}",
        "{drain: {}}",
    ],
)
def test_what_changes_nothing_is_not_kept(text: str, tmp_path: Path) -> None:
    body = f"  driver: {{upgradePolicy: {text.replace('{', '{autoUpgrade: true, ', 1)}}}\n"
    assert drain_of(HEAD + body, tmp_path) is None


def test_a_selector_that_is_none_is_an_error_with_its_line() -> None:
    with pytest.raises(
        PolicyError, match=r"cp.yaml:8: .*waitForCompletion.podSelector: 'a=b=c' is not"
    ):
        read(LEAVE.replace("app=train", "a=b=c"))


def test_nvidia_drivers_that_differ_leave_it_to_the_command_line(tmp_path: Path) -> None:
    one = """\
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {name: %s}
spec:
  nodeSelector: {pool: %s}
  upgradePolicy: {podDeletion: {force: %s}}
---
"""
    same = load(one % ("a", "a", "true") + one % ("b", "b", "true"), tmp_path)
    assert same.drain == DrainPolicy(gpu_pods=EvictionRules(force=True))
    differ = load(one % ("a", "a", "true") + one % ("b", "b", "false"), tmp_path)
    assert differ.drain is None
    assert any("NVIDIADriver a: how workloads leave differs" in note for note in differ.notes)


def test_limits_are_kept_in_other_shapes(tmp_path: Path) -> None:
    policy = load(HEAD + PACE % ("true", 1, "25%"), tmp_path)
    for shape in ("yaml", "python"):
        converted = convert(policy, shape)
        assert not any("rollout" in line for line in converted.lost)
        assert "max_unavailable" in converted.text
