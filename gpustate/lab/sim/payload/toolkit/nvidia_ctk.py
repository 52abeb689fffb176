#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-ctk: cdi generate, cdi list, config, system create-*."""

# The modules of the node lie beside this one there, not here.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, "/usr/lib/nvidia-container-toolkit")

import cdispec
import toolkitconfig

VERSION = "@VERSION@"


class CommandError(Exception):
    """A wrong command line, or a failure; the text is what nvidia-ctk logs."""


def log(level: str, text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if "--quiet" not in sys.argv and "-q" not in sys.argv:
        print(f'time="{stamp}" level={level} msg={json.dumps(text)}', file=sys.stderr)


def options(arguments: list[str], known: dict[str, bool]) -> dict[str, list[str]]:
    """Read ``--name=value``, ``--name value`` and switches (``known``: takes a value)."""
    found: dict[str, list[str]] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        name = name.lstrip("-") if name.startswith("-") else ""
        if name not in known:
            raise CommandError(f"flag provided but not defined: -{name}")
        if known[name] and not equals:
            if not rest:
                raise CommandError(f"flag needs an argument: --{name}")
            value = rest.pop(0)
        found.setdefault(name, []).append(value or ("" if known[name] else "true"))
    return found


def first(found: dict[str, list[str]], name: str, default: str) -> str:
    return found.get(name, [default])[-1]


def cdi_generate(arguments: list[str]) -> int:
    known = dict.fromkeys(("output", "format", "mode", "vendor", "class", "device-name-strategy", "driver-root", "dev-root", "library-search-path", "nvidia-cdi-hook-path", "ldconfig-path", "disable-hook", "enable-hook", "feature-flag", "feature-flags"), True)  # fmt: skip
    known["no-all-device"] = False
    found = options(arguments, known)
    output = first(found, "output", os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", ""))
    wanted = first(found, "format", "json" if output.endswith(".json") else "yaml")
    if wanted not in ("json", "yaml"):
        raise CommandError(f"invalid output format: {wanted}")
    if first(found, "mode", "auto") not in ("auto", "nvml"):
        raise CommandError(
            f"the lab simulates only modes auto and nvml, not {first(found, 'mode', '')}"
        )
    strategies = tuple(
        item for one in found.get("device-name-strategy", ["index,uuid"]) for item in one.split(",")
    )
    try:
        spec = cdispec.build(
            vendor=first(found, "vendor", "nvidia.com"),
            kind=first(found, "class", "gpu"),
            strategies=strategies,
            with_all="no-all-device" not in found,
        )
    except cdispec.NvmlError as error:
        raise CommandError(
            f"failed to generate CDI spec: failed to create edits common for entities: {error}"
        ) from error
    text = json.dumps(spec) + "\n" if wanted == "json" else "---\n" + cdispec.to_yaml(spec)
    if not output:
        sys.stdout.write(text)
        return 0
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
    fresh = f"{output}.{os.getpid()}"
    with open(fresh, "w", encoding="utf-8") as handle:
        handle.write(text)
    os.chmod(fresh, 0o644)
    os.replace(fresh, output)
    log("info", f"Generated CDI spec with version {spec['cdiVersion']}")
    return 0


def cdi_list(arguments: list[str]) -> int:
    found = options(arguments, {"spec-dir": True})
    directories = found.get("spec-dir") or list(cdispec.SPEC_DIRECTORIES)
    names: set[str] = set()
    for directory in directories:
        for path in sorted(glob.glob(f"{directory}/*.yaml") + glob.glob(f"{directory}/*.json")):
            names.update(cdispec.device_names(path))
    log("info", f"Found {len(names)} CDI devices")
    for name in sorted(names):
        print(name)
    return 0


def config(arguments: list[str]) -> int:
    if arguments[:1] == ["default"]:
        sys.stdout.write(toolkitconfig.DEFAULT)
        return 0
    known = {"set": True, "config-file": True, "config": True, "output": True, "in-place": False}
    found = options(arguments, known)
    path = first(found, "config-file", first(found, "config", toolkitconfig.PATH))
    text = toolkitconfig.current(path)
    for one in found.get("set", []):
        key, equals, value = one.partition("=")
        try:
            text = toolkitconfig.edited(text, key, value if equals else "true")
        except ValueError as error:
            raise CommandError(str(error)) from error
    output = path if "in-place" in found else first(found, "output", "")
    if not output:
        sys.stdout.write(text)
        return 0
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output, "w", encoding="utf-8") as handle:
        handle.write(text)
    return 0


def create_dev_char(arguments: list[str]) -> int:
    found = options(arguments, {"create-all": False, "load-kernel-modules": False, "create-device-nodes": False, "driver-root": True, "dev-char-path": True, "watch": False, "dry-run": False})  # fmt: skip
    if "load-kernel-modules" in found or "create-device-nodes" in found:
        create_nodes(["--control-devices"])
    directory = first(found, "dev-char-path", "/dev/char")
    os.makedirs(directory, exist_ok=True)
    numbers = possible() if "create-all" in found else {}
    for path in sorted(glob.glob("/dev/nvidia*") + glob.glob("/dev/nvidia-caps/*")):
        if not os.path.isdir(path):
            device = os.stat(path).st_rdev
            numbers[path] = f"{os.major(device)}:{os.minor(device)}"
    for path, number in sorted(numbers.items()):
        link = f"{directory}/{number}"
        if os.path.lexists(link):
            if os.readlink(link) == path:
                continue
            os.unlink(link)
        log("info", f"Creating link {link} => {path}")
        if "dry-run" not in found:
            os.symlink(path, link)
    return 0


def possible() -> dict[str, str]:
    """Device nodes that the loaded driver has, made or not, and their numbers."""
    numbers = {"/dev/nvidiactl": "195:255", "/dev/nvidia-modeset": "195:254"}
    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        with open(path, encoding="utf-8") as handle:
            minor = re.search(r"^Device Minor:\s*(\d+)", handle.read(), re.M)
        if minor:
            numbers[f"/dev/nvidia{minor[1]}"] = f"195:{minor[1]}"
    with open("/run/gpustate-lab/proc/devices", encoding="utf-8") as handle:
        major = re.search(r"^\s*(\d+) nvidia-uvm$", handle.read(), re.M)
    if major:
        numbers |= {"/dev/nvidia-uvm": f"{major[1]}:0", "/dev/nvidia-uvm-tools": f"{major[1]}:1"}
    return numbers


def create_nodes(arguments: list[str]) -> int:
    options(arguments, {"control-devices": False, "load-kernel-modules": False, "driver-root": True, "dev-root": True, "dry-run": False})  # fmt: skip
    done = subprocess.run(["/usr/bin/nvidia-modprobe", "-u", "-c=0", "-m"], check=False)
    if done.returncode:
        raise CommandError("failed to load NVIDIA kernel modules")
    return 0


COMMANDS = {
    ("cdi", "generate"): cdi_generate,
    ("cdi", "list"): cdi_list,
    ("config",): config,
    ("system", "create-dev-char-symlinks"): create_dev_char,
    ("system", "create-device-nodes"): create_nodes,
}


def main() -> int:
    arguments = [one for one in sys.argv[1:] if one not in ("--quiet", "-q", "--debug", "-d")]
    if arguments[:1] in (["--version"], ["-v"]):
        print(f"NVIDIA Container Toolkit CLI version {VERSION}\ncommit: simulated")
        return 0
    for words, command in COMMANDS.items():
        if tuple(arguments[: len(words)]) == words:
            try:
                return command(arguments[len(words) :])
            except CommandError as error:
                log("error", str(error))
                return 1
    log("error", f"the lab's nvidia-ctk has no command {' '.join(arguments[:2])!r}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
