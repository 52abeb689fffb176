"""What of a lab is left on the controller, for tests that take one down."""

from __future__ import annotations

import os
from pathlib import Path

from gpustate_lab.api import Lab
from gpustate_lab.process import cgroup_hierarchies


def traces(lab: Lab) -> list[str]:
    """What the kernel and the file system show of a lab, read without its own code."""
    tag = lab.network.tag
    listed = [
        *os.listdir("/sys/class/net"),
        *(os.listdir("/run/netns") if os.path.isdir("/run/netns") else []),
        *(line for line in Path("/proc/mounts").read_text().splitlines()),
        *(str(path) for base in cgroup_hierarchies() for path in base.glob("gpustate-lab/*")),
    ]
    found = [text for text in listed if tag in text or str(lab.directory) in text]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(lab.directory) in words:
            found.append(words)
    return found + ([str(lab.directory)] if lab.directory.exists() else [])
