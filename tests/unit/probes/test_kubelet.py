"""What is read of a kubelet that runs: its runtime's socket and its cgroup driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpustate.probes import cri_status


@pytest.mark.parametrize(
    ("command", "endpoint", "driver"),
    [
        ("kubelet", "", ""),
        ("kubelet --container-runtime-endpoint=unix:///run/k3s/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", ""),
        ("kubelet --config @/config.yaml", "/var/run/crio/crio.sock", "systemd|@/config.yaml"),
        # A drop-in has the last word of the files, and the command line of all.
        ("kubelet --config=@/config.yaml --config-dir=@/d", "/var/run/crio/crio.sock", "cgroupfs|@/d/10.conf"),
        ("kubelet --config @/config.yaml --cgroup-driver cgroupfs --container-runtime-endpoint /x.sock", "/x.sock", "cgroupfs|kubelet --cgroup-driver"),
    ],
)  # fmt: skip
def test_the_files_and_the_command_line_of_a_kubelet_are_read(
    tmp_path: Path, command: str, endpoint: str, driver: str
) -> None:
    process = tmp_path / "proc/7"
    process.mkdir(parents=True)
    (process / "comm").write_text("kubelet\n")
    words = command.replace("@", str(tmp_path))
    (process / "cmdline").write_bytes(words.replace(" ", "\0").encode())
    (tmp_path / "config.yaml").write_text(
        'kind: KubeletConfiguration\ncgroupDriver: systemd\ncontainerRuntimeEndpoint: "unix:///var/run/crio/crio.sock"\n'
    )
    (tmp_path / "d").mkdir()
    (tmp_path / "d/10.conf").write_text("cgroupDriver: cgroupfs\n")
    script = cri_status.KUBELET.replace("/proc/", f"{tmp_path}/proc/")
    script = script.replace('" = 0 ]', f'" = {os.getuid()} ]')
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    rows = done.stdout.replace(str(tmp_path), "@").splitlines()
    assert "kubelet=1" in rows
    assert f"kubelet_endpoint={endpoint}" in rows
    assert [row for row in rows if row.startswith("kubelet_cgroup")] == [
        f"kubelet_cgroup={driver}" for _ in range(bool(driver))
    ]
