#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-imex: runs on a node of a rack that is in its list, in the version of the module.

It does not contact peers. Like the real one, it reads its files only at start, and logs this.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, "/usr/lib/gpustate-lab")

import modules
from daemon import detach
from labnode import hardware, hold

PID_FILE = Path("/run/nvidia-imex/nvidia-imex.pid")


def settings(path: str) -> dict[str, str]:
    lines = (line.strip() for line in Path(path).read_text().splitlines())
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {key: value for key, equals, value in pairs if equals}


def own_addresses() -> set[str]:
    shown = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=False)
    return {line.split()[3].partition("/")[0] for line in shown.stdout.splitlines()}


def main() -> int:
    if "--version" in sys.argv or "-v" in sys.argv:
        print("IMEX version is: @VERSION@")
        return 0
    config = settings(sys.argv[sys.argv.index("-c") + 1] if "-c" in sys.argv else "/etc/nvidia-imex/config.cfg")  # fmt: skip
    loaded = modules.loaded().get("nvidia")
    problem = None
    nodes: list[str] = []
    listed = Path(config.get("IMEX_NODE_CONFIG_FILE", "/etc/nvidia-imex/nodes_config.cfg"))
    if loaded is None or not hardware().get("rack"):
        problem = "no multi-node NVLink fabric on this node"
    elif loaded["version"] != "@VERSION@":
        problem = f"IMEX version @VERSION@ does not match the driver's {loaded['version']}"
    elif not listed.exists():
        problem = f"{listed} cannot be opened"
    else:
        nodes = listed.read_text().split()
        if not own_addresses() & set(nodes):
            problem = f"no address of this node is in {listed}"
    log = config.get("LOG_FILE_NAME", "/var/log/nvidia-imex.log")
    with Path(log).open("a") as file:
        file.write(f"[ERROR] {problem}\n" if problem else f"[INFO] nodes: {' '.join(nodes)}\n")
    if problem:
        print(f"nvidia-imex: {problem}", file=sys.stderr)
        return 1
    return detach(PID_FILE, lambda: hold("imex", ["@VERSION@"]), lambda: None)


if __name__ == "__main__":
    sys.exit(main())
