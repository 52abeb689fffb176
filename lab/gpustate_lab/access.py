"""The inventory and known_hosts files of a lab. Pure.

The inventory is Ansible YAML. It sets the folders of the simulated ``/proc`` and ``/sys`` files, since a
container sees the controller's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PROC_ROOT = "/run/gpustate-lab/proc"
SYS_ROOT = "/run/gpustate-lab/sys"
#: File with the public key of the lab's packages, in the lab's folder on the controller.
KEY_NAME = "gpustate-lab.asc"


def known_hosts(keys: Mapping[str, str]) -> str:
    """Return a known_hosts file; ``keys`` maps each address to its public host key."""
    return "".join(
        f"{address} {' '.join(key.split()[:2])}\n" for address, key in sorted(keys.items())
    )


def group_of(image: str) -> str:
    """Return the inventory group of an image; Ansible warns about dashes in group names."""
    return image.replace("-", "_")


def overrides(repository_url: str, distribution: str, key: Path) -> dict[str, dict[str, Any]]:
    """Return state parameters that replace NVIDIA's repositories with the lab's."""
    driver = f"{repository_url}/mirror/{distribution}/"
    toolkit = f"{repository_url}/libnvidia-container/stable/deb/amd64/"
    return {
        "driver-repository": {"origin": "mirror", "url": driver, "key": str(key)},
        "toolkit-repository": {"origin": "mirror", "url": toolkit, "key": str(key)},
    }


def inventory(
    *,
    lab: str,
    directory: Path,
    repository_url: str,
    nodes: Sequence[tuple[str, str, str, str]],
    variables: Mapping[str, str] | None = None,
) -> str:
    """Return the inventory; ``nodes`` are name, address, image and distribution.

    Args:
        variables: additional variables of all nodes.
    """
    ssh_args = f"-o UserKnownHostsFile={directory / 'known_hosts'} -o StrictHostKeyChecking=yes"
    groups: dict[str, Any] = {
        "gpu": {
            "hosts": {name: {"ansible_host": address} for name, address, _, _ in nodes},
            "vars": {
                "ansible_user": "root",
                "ansible_ssh_private_key_file": str(directory / "id_ed25519"),
                "ansible_ssh_common_args": ssh_args,
                "gpustate_proc_root": PROC_ROOT,
                "gpustate_sys_root": SYS_ROOT,
                "gpustate_lab_repository": repository_url,
                "gpustate_lab_repository_key": str(directory / KEY_NAME),
                **(variables or {}),
            },
        }
    }
    for name, _, image, distribution in nodes:
        group = groups.setdefault(group_of(image), {"hosts": {}})
        group["hosts"][name] = {}
        group["vars"] = {"gpustate": overrides(repository_url, distribution, directory / KEY_NAME)}
    head = f"# Written by gpustate lab up: lab {lab}. The GPUs of these nodes are simulated.\n"
    return head + yaml.safe_dump({"all": {"children": groups}}, sort_keys=False, width=1000)
