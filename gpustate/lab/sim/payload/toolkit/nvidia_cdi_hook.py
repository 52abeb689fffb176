#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-cdi-hook: makes library links in a container and updates its linker cache.

A container runtime runs it with the OCI state on standard input, in the container's namespaces but
before the root is switched, so paths are below the container's root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys


def container_root() -> str:
    state = json.load(sys.stdin)
    with open(os.path.join(state["bundle"], "config.json"), encoding="utf-8") as handle:
        root = str(json.load(handle)["root"]["path"])
    return os.path.join(str(state["bundle"]), root)


def values(name: str) -> list[str]:
    arguments = sys.argv[2:]
    return [arguments[i + 1] for i, one in enumerate(arguments[:-1]) if one == name]


def create_symlinks() -> int:
    root = container_root()
    for link in values("--link"):
        target, _, path = link.partition("::")
        place = root + path
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.lexists(place):
            os.symlink(target, place)
    return 0


def update_ldcache() -> int:
    root = container_root()
    folders = values("--folder")
    if not os.path.isdir(root + "/etc"):
        return 0
    os.makedirs(root + "/etc/ld.so.conf.d", exist_ok=True)
    with open(root + "/etc/ld.so.conf.d/00-nvcr-lab.conf", "w", encoding="utf-8") as handle:
        handle.write("".join(f"{folder}\n" for folder in folders))
    # An image without a linker (busybox, distroless) has nothing that reads a cache.
    done = subprocess.run(["/sbin/ldconfig", "-r", root, *folders], check=False)
    return done.returncode


def main() -> int:
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in ("--version", "-v"):
        print("NVIDIA CDI Hook version @VERSION@\ncommit: simulated")
        return 0
    if command == "create-symlinks":
        return create_symlinks()
    if command == "update-ldcache":
        return update_ldcache()
    # The others change how CUDA libraries of an image are found; there are none to change here.
    return (
        0 if command in ("enable-cuda-compat", "disable-device-node-modification", "chmod") else 1
    )


if __name__ == "__main__":
    sys.exit(main())
