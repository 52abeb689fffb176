#!/usr/bin/env python3
"""An inventory of the Vagrant nodes that run: prints Ansible's JSON from ``vagrant ssh-config``.

It works for every provider, since Vagrant says itself how a node is reached. Host keys are learned at
the first contact and kept beside the machines, until ``vagrant destroy``.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def parse(text: str) -> dict[str, dict[str, str]]:
    """Read ``ssh_config`` text: host to its options, by name in lower case."""
    hosts: dict[str, dict[str, str]] = {}
    options: dict[str, str] = {}
    for line in text.splitlines():
        words = shlex.split(line)
        if len(words) < 2:
            continue
        key, value = words[0].lower(), words[1]
        if key == "host":
            options = hosts.setdefault(value, {})
        else:
            options.setdefault(key, value)
    return hosts


def parameters(gpus: int) -> dict[str, Any]:
    """Parameters of states for a node with so many GPUs; what needs a GPU does not apply where none is expected."""
    return {"preflight": {"gpus": gpus}}


def inventory(hosts: dict[str, dict[str, str]], gpus: int) -> dict[str, Any]:
    """Ansible's JSON; the first node has the GPUs that were passed through, the others none."""
    variables: dict[str, Any] = {}
    for number, (name, options) in enumerate(hosts.items()):
        known_hosts = HERE / ".vagrant" / f"known_hosts-{name}"
        variables[name] = {
            "ansible_host": options["hostname"],
            "ansible_port": int(options.get("port", "22")),
            "ansible_user": options.get("user", "vagrant"),
            "ansible_ssh_private_key_file": options["identityfile"],
            "ansible_ssh_common_args": shlex.join(
                [
                    "-o",
                    f"UserKnownHostsFile={known_hosts}",
                    "-o",
                    "StrictHostKeyChecking=accept-new",
                ]
            ),
            "gpustate": parameters(gpus if number == 0 else 0),
        }
    group = {"hosts": list(hosts), "vars": {"ansible_become": True}}
    return {"_meta": {"hostvars": variables}, "gpu": group}


def main() -> int:
    """Ask Vagrant and print."""
    try:
        asked = subprocess.run(
            ["vagrant", "ssh-config"], cwd=HERE, capture_output=True, text=True, check=False
        )
    except OSError as error:
        print(f"vagrant cannot be started: {error.strerror}; install vagrant", file=sys.stderr)
        return 1
    hosts = parse(asked.stdout)
    if not hosts:
        said = " ".join(asked.stderr.split()) or "nothing"
        print(f"no Vagrant node runs; run vagrant up in {HERE} (it said: {said})", file=sys.stderr)
        return 1
    pci = [address for address in os.environ.get("GPUSTATE_PCI", "").split(",") if address.strip()]
    print(json.dumps(inventory(hosts, len(pci)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
