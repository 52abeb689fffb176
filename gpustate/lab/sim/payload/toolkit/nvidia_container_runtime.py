#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-container-runtime: on ``create`` adds GPUs to the container, then runs runc.

Only the mode that 1.18 calls jit-cdi is done: NVIDIA_VISIBLE_DEVICES of the image or the container
names GPUs, and the edits of a specification made at that moment go into config.json.
"""

# The modules of the node lie beside this one there, not here.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from typing import Any

sys.path.insert(0, "/usr/lib/nvidia-container-toolkit")

import cdispec
import toolkitconfig


def low_level_runtime() -> str:
    written = toolkitconfig.get("nvidia-container-runtime.runtimes") or '["runc", "crun"]'
    for name in json.loads(written):
        found = shutil.which(str(name))
        if found:
            return found
    # As the real one words it.
    print(
        "failed to create NVIDIA Container Runtime: error constructing low-level runtime: error locating runtime: "
        f"no runtime binary found from candidate list: [{' '.join(json.loads(written))}]",
        file=sys.stderr,
    )
    sys.exit(1)


def bundle_of(arguments: list[str]) -> str | None:
    if "create" not in arguments and "run" not in arguments:
        return None
    for number, one in enumerate(arguments):
        if one in ("--bundle", "-b"):
            return arguments[number + 1]
        if one.startswith("--bundle="):
            return one.partition("=")[2]
    return os.getcwd()


def visible(config: dict[str, Any]) -> list[str]:
    wanted = ""
    for item in config.get("process", {}).get("env", []):
        name, _, value = item.partition("=")
        if name == "NVIDIA_VISIBLE_DEVICES":
            wanted = value
    return [] if wanted in ("", "void", "none") else wanted.split(",")


def device_entry(path: str) -> dict[str, Any]:
    status = os.stat(path)
    return {
        "path": path,
        "type": "c",
        "major": os.major(status.st_rdev),
        "minor": os.minor(status.st_rdev),
        "fileMode": stat.S_IMODE(status.st_mode),
        "uid": 0,
        "gid": 0,
    }


def apply_edits(config: dict[str, Any], edits: dict[str, Any]) -> None:
    linux = config.setdefault("linux", {})
    for node in edits.get("deviceNodes", []):
        entry = device_entry(node["path"])
        linux.setdefault("devices", []).append(entry)
        rule = {
            "allow": True,
            "type": "c",
            "major": entry["major"],
            "minor": entry["minor"],
            "access": "rwm",
        }
        linux.setdefault("resources", {}).setdefault("devices", []).append(rule)
    for mount in edits.get("mounts", []):
        config.setdefault("mounts", []).append(
            {
                "destination": mount["containerPath"],
                "source": mount["hostPath"],
                "type": "none",
                "options": mount["options"],
            }
        )
    for hook in edits.get("hooks", []):
        config.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(
            {"path": hook["path"], "args": hook["args"], "env": hook["env"]}
        )
    config.setdefault("process", {}).setdefault("env", []).extend(edits.get("env", []))


def inject(bundle: str) -> None:
    path = os.path.join(bundle, "config.json")
    with open(path, encoding="utf-8") as handle:
        config = json.load(handle)
    wanted = visible(config)
    if not wanted:
        return
    spec = cdispec.build()
    known = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    for name in wanted:
        if name not in known:
            raise cdispec.NvmlError(f"unresolvable CDI devices nvidia.com/gpu={name}")
        apply_edits(config, known[name])
    apply_edits(config, spec["containerEdits"])
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(config, handle)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--version"]:
        print("NVIDIA Container Runtime version @VERSION@\ncommit: simulated", flush=True)
    bundle = bundle_of(arguments)
    if bundle is not None:
        try:
            inject(bundle)
        except (cdispec.NvmlError, OSError) as error:
            print(
                f"nvidia-container-runtime: failed to apply modifications: {error}", file=sys.stderr
            )
            return 1
    runtime = low_level_runtime()
    os.execv(runtime, [os.path.basename(runtime), *arguments])


if __name__ == "__main__":
    sys.exit(main())
