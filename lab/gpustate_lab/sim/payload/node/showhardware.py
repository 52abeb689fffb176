#!/usr/lib/gpustate-lab/python -SB
"""Bind the simulated files of the nvidia module into a container, then run NVIDIA's hook.

A container runtime runs ``update-ldcache`` and ``disable-device-node-modification`` as createContainer hooks: with the
OCI state on standard input, in the container's mount namespace, before the root is switched. The latter
covers the container's own ``/proc/driver/nvidia/params``, which exists where the module is loaded. So the
node's ``/proc/driver`` is bound into the container first, with the files that the stub libraries read: the
hardware description and the processes that use a GPU.

Source:
    opencontainers/runtime-spec 1.2, config.md, POSIX-platform Hooks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

#: Bound paths, and whether they are writable.
SHOWN = {
    "/proc/driver": False,
    "/proc/devices": False,
    "/etc/gpustate-lab": False,
    "/run/gpustate-lab": True,
    "/var/lib/gpustate-lab": False,  # MIG modes that Ampere boards keep
}


def main() -> int:
    state = sys.stdin.read()
    bundle = str(json.loads(state)["bundle"])
    with open(os.path.join(bundle, "config.json"), encoding="utf-8") as handle:
        root = os.path.join(bundle, str(json.load(handle)["root"]["path"]))
    for path, writable in SHOWN.items():
        place = root + path
        if not os.path.exists(path) or os.path.ismount(place):  # bound by an earlier hook
            continue
        if not os.path.exists(place):
            os.makedirs(place)
        commands = [["mount", "--rbind", path, place]]
        if not writable:
            commands.append(["mount", "-o", "remount,bind,ro", place])
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"gpustate lab: {' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
                return 1
    return subprocess.run(sys.argv[1:], input=state, text=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
