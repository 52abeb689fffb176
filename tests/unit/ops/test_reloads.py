"""Containers that a daemon-reload would take GPUs from, by what systemd lets them open."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from gpustate.ops.reloads import GPU_SCOPES

SCOPE = "cri-containerd-ab.scope"


@pytest.mark.parametrize(
    ("allowed", "exposed"),
    [
        (("/dev/null rwm",), True),
        (("/dev/nvidiactl rwm",), True),
        (("/dev/nvidiactl rwm", "/dev/nvidia0 rwm"), False),
        (("/dev/char/0:0 rwm",), False),  # the number of a file
        (("/dev/char/0:01 rwm",), True),
        (("char-nvidia* rwm",), False),
        (("char-* rw",), False),
        ((), True),
    ],
)
def test_a_container_is_exposed_by_each_device_that_systemd_does_not_know(
    allowed: tuple[str, ...], exposed: bool, tmp_path: Path
) -> None:
    for name, text in (
        (f"run/systemd/transient/{SCOPE}", ""),
        ("run/systemd/system/x", ""),
        ("sys/fs/cgroup/devices/pod/cgroup.procs", "4242\n4243\n"),
        ("proc/4242/root/dev/nvidiactl", ""),
        ("proc/4242/root/dev/nvidia0", ""),
        ("answer", "".join(f"DeviceAllow={one}\n" for one in allowed)),
        ("bin/systemctl", f"#!/bin/sh\necho ControlGroup=/pod DevicePolicy=strict | tr ' ' '\\n'\ncat {tmp_path}/answer\n"),
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "bin/systemctl").chmod(0o755)
    script = re.sub(r"(?<=[ \"])/(run|sys|proc)/", rf"{tmp_path}/\1/", GPU_SCOPES)
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    # As in a step: a hierarchy that is absent ends nothing.
    done = subprocess.run(
        ["sh", "-c", f"{script}set -e\ngpu_scopes | cat\n"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout == (f"{SCOPE}\n" if exposed else "")
