from __future__ import annotations

from pathlib import Path

import yaml

from gpustate_lab import access

TEXT = access.inventory(
    lab="try",
    directory=Path("/labs/try"),
    repository_url="http://10.217.0.1:8080",
    nodes=[
        ("gpu1", "10.217.0.11", "debian12", "debian12"),
        ("gpu2", "10.217.0.12", "debian13-containerd2", "debian13"),
    ],
)


def test_the_inventory_says_first_that_the_gpus_are_simulated() -> None:
    assert "simulated" in TEXT.splitlines()[0]


def test_every_node_is_in_the_group_gpu_and_in_its_image_group() -> None:
    groups = yaml.safe_load(TEXT)["all"]["children"]
    assert groups["gpu"]["hosts"] == {
        "gpu1": {"ansible_host": "10.217.0.11"},
        "gpu2": {"ansible_host": "10.217.0.12"},
    }
    assert list(groups["debian12"]["hosts"]) == ["gpu1"]
    assert list(groups["debian13_containerd2"]["hosts"]) == ["gpu2"]


def test_host_keys_are_checked_against_the_lab_own_file() -> None:
    variables = yaml.safe_load(TEXT)["all"]["children"]["gpu"]["vars"]
    assert variables["ansible_ssh_common_args"] == (
        "-o UserKnownHostsFile=/labs/try/known_hosts -o StrictHostKeyChecking=yes"
    )
    assert variables["ansible_ssh_private_key_file"] == "/labs/try/id_ed25519"


def test_packages_come_from_the_mirror_of_the_distribution_below_the_image() -> None:
    groups = yaml.safe_load(TEXT)["all"]["children"]
    driver = groups["debian13_containerd2"]["vars"]["gpustate"]["driver-repository"]
    assert driver["url"] == "http://10.217.0.1:8080/mirror/debian13/"
    assert driver["key"] == "/labs/try/gpustate-lab.asc"


def test_known_hosts_leave_the_comment_of_a_key_out() -> None:
    text = access.known_hosts(
        {"10.0.0.2": "ssh-ed25519 BBB gpu2\n", "10.0.0.1": "ssh-ed25519 AAA x"}
    )
    assert text == "10.0.0.1 ssh-ed25519 AAA\n10.0.0.2 ssh-ed25519 BBB\n"


def test_variables_of_a_cluster_are_set_for_every_node() -> None:
    text = access.inventory(
        lab="try",
        directory=Path("/labs/try"),
        repository_url="http://10.217.0.1:8080",
        nodes=[("gpu1", "10.217.0.11", "debian12", "debian12")],
        variables={"gpustate_slurm_host": "10.217.0.10"},
    )
    groups = yaml.safe_load(text)["all"]["children"]
    assert groups["gpu"]["vars"]["gpustate_slurm_host"] == "10.217.0.10"
    assert list(groups["gpu"]["hosts"]) == ["gpu1"]
