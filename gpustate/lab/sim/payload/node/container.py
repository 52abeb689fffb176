#!/usr/lib/gpustate-lab/python -ISB
"""Simulated: give a container with GPUs the simulated hardware, as it has the kernel's on a real node.

    container.py RUNTIME ARGUMENTS...

Stands in the place of runc and crun and starts them. The lab's libraries find the GPUs in files of the node, where
real ones ask the kernel; a container that has a device node of NVIDIA's gets these files too. The hook
``disable-device-node-modification`` is left out: it opens the container's own /proc/driver/nvidia/params, which no
simulated driver has.

Sources:
    OCI runtime specification, config.md: mounts, linux.devices, hooks; runc(8): --bundle.
"""

import json
import os
import sys

#: Where they lie in the container, and on the node. The node's processes are there because some hold GPUs.
HARDWARE = (
    ("/etc/gpustate-lab", "/etc/gpustate-lab"),
    ("/run/gpustate-lab", "/run/gpustate-lab"),
    ("/var/lib/gpustate-lab", "/var/lib/gpustate-lab"),
    ("/run/gpustate-lab/node-proc", "/proc"),
)
UNAVAILABLE_HOOK = "disable-device-node-modification"


def bundle(arguments):
    """The folder of the bundle that a command line names; the working directory where it names none."""
    for at, argument in enumerate(arguments):
        if argument in ("--bundle", "-b", "-bundle") and at + 1 < len(arguments):
            return arguments[at + 1]
        for name in ("--bundle=", "-b="):
            if argument.startswith(name):
                return argument[len(name) :]
    return "."


def adapt(config):
    """Add the hardware to a container that has a GPU; false where it has none, and nothing is changed."""
    nodes = config.get("linux", {}).get("devices") or []
    if not any(node.get("path", "").startswith("/dev/nvidia") for node in nodes):
        return False
    have = {mount.get("destination") for mount in config.get("mounts") or []}
    config.setdefault("mounts", []).extend(
        {"destination": path, "source": source, "type": "bind", "options": ["rbind", "rw"]}
        for path, source in HARDWARE
        if path not in have and os.path.isdir(source)
    )
    for stage, hooks in (config.get("hooks") or {}).items():
        config["hooks"][stage] = [
            hook for hook in hooks or [] if UNAVAILABLE_HOOK not in (hook.get("args") or [])
        ]
    return True


def main():
    runtime, arguments = sys.argv[1], sys.argv[2:]
    if "create" in arguments or "run" in arguments:
        path = os.path.join(bundle(arguments), "config.json")
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            if adapt(config):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(config, file)
        except (OSError, ValueError):
            pass  # the runtime itself says what is wrong with its bundle
    os.execv(runtime, [runtime, *arguments])


main()
