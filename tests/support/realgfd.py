"""NVIDIA's own GPU feature discovery (GFD) on a lab node, to compare with gpustate's labels."""

from __future__ import annotations

import shutil

from gpustate_lab import programs
from gpustate_lab.node import Node


def labels(node: Node, *options: str) -> dict[str, str]:
    """Labels that GFD gives a node, its timestamp apart.

    Args:
        options: more of GFD's options, such as ``--mig-strategy=mixed``.
    """
    program = programs.provide("device-plugin", print)["gpu-feature-discovery"]
    shutil.copy(program, node.root / "usr/local/bin")
    fixed = "--oneshot --no-timestamp --driver-root-ctr-path=/ --output-file=/tmp/gfd"
    node.run(f"gpu-feature-discovery {fixed} {' '.join(options)} 2>/tmp/gfd.log")
    lines = node.run("cat /tmp/gfd").stdout.splitlines()
    node.run("rm -r /tmp/gfd /usr/local/bin/gpu-feature-discovery")
    return dict(line.split("=", 1) for line in lines)
