"""NVIDIA's own mig-parted on a lab node: it applies layouts, and says whether one is there.

It reads PCI devices and modules without NVML, so it runs where the node's simulated ones are mounted.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from gpustate_lab import programs
from gpustate_lab.node import Node

#: The configurations that the GPU Operator installs.
UPSTREAM = Path(__file__).parents[3] / "shared/upstream/mig-parted/config-default.yaml"
_FILE = "var/tmp/mig-config.yaml"
_RUN = f"""
mkdir -p /run/gpustate-test-proc
mount -t tmpfs tmpfs /run/gpustate-test-proc
cp /run/gpustate-lab/proc/modules /run/gpustate-test-proc/
# The simulated driver tells the node's processes from those of containers by it.
mkdir -p /run/gpustate-test-proc/self/ns
ln -s "$(readlink /proc/self/ns/pid)" /run/gpustate-test-proc/self/ns/pid
mount --bind /run/gpustate-lab/sys/bus/pci /sys/bus/pci
mount --bind /run/gpustate-test-proc /proc
exec /usr/local/bin/nvidia-mig-parted "$0" --config-file /{_FILE} --selected-config "$1"
"""


def run(node: Node, verb: str, text: str, name: str) -> subprocess.CompletedProcess[str]:
    """Run ``assert`` or ``apply`` with a configuration of a file's text."""
    program = node.root / "usr/local/bin/nvidia-mig-parted"
    if not program.exists():
        shutil.copy(programs.provide("mig-parted", print)[program.name], program)
    (node.root / _FILE).write_text(text)
    words = shlex.join(["unshare", "--mount", "sh", "-euc", _RUN, verb, name])
    return node.run(words, check=False, timeout_s=300)


def holds(node: Node, text: str, name: str) -> bool:
    """Whether every GPU of the node is as a configuration says, by mig-parted."""
    return run(node, "assert", text, name).returncode == 0
