#!/usr/bin/env python3
"""A dynamic inventory: prints Ansible's JSON, made from a list that a real one would ask for.

gpustate facts -i inventories/dynamic.py --limit 'zone_a:!spare'
"""

import json
import sys

MACHINES = [
    # name, address, zone, GPU, spare
    ("g-100", "192.0.2.100", "a", "H100", False),
    ("g-101", "192.0.2.101", "a", "H100", True),
    ("g-200", "192.0.2.200", "b", "L40S", False),
]


def inventory() -> dict:
    groups: dict = {
        "gpu": {"children": [], "vars": {"ansible_user": "cloud", "ansible_become": True}}
    }
    hostvars = {}
    for name, address, zone, gpu, spare in MACHINES:
        for group in [f"zone_{zone}", gpu.lower()]:
            groups.setdefault(group, {"hosts": []})["hosts"].append(name)
            if group not in groups["gpu"]["children"]:
                groups["gpu"]["children"].append(group)
        if spare:
            groups.setdefault("spare", {"hosts": []})["hosts"].append(name)
        hostvars[name] = {"ansible_host": address, "gpu_model": gpu}
    # With _meta nobody has to ask once more for every node.
    return {**groups, "_meta": {"hostvars": hostvars}}


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(json.dumps(inventory(), indent=2))
    else:
        sys.exit("usage: dynamic.py --list")
