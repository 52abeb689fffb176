"""A kubelet that runs: whose process it is, its runtime's socket and its cgroup driver."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpustate.diagnosis import chain_probe
from gpustate.diagnosis.chain_data import Containerd, ContainerResult, Expected
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.nodeside import container_validation, cri_pod
from gpustate.probes import cri_status
from gpustate.validation import pods


def printed(script: str, root: Path, owner: int) -> list[str]:
    """Rows of a script whose processes are in ``root/proc``, where ``owner`` stands for root."""
    script = script.replace("/proc/[", f"{root}/proc/[").replace('" = 0 ]', f'" = {owner} ]')
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.replace(str(root), "@").splitlines()


@pytest.mark.parametrize(
    ("name", "owner", "is_kubelet"),
    [
        ("kubelet", os.getuid(), True),
        ("kubelet", os.getuid() + 1, False),
        ("k3s-server", os.getuid(), True),
        ("k3s-agent", os.getuid(), True),
        ("kubelite", os.getuid(), True),  # MicroK8s
        # It starts a kubelet, which may not be there yet.
        ("rke2", os.getuid(), False),
        ("slurmd", os.getuid(), False),
    ],
)
def test_validations_of_containers_and_of_pods_take_roots_process_alone_for_a_kubelet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, owner: int, is_kubelet: bool
) -> None:
    process = tmp_path / "proc/7"
    process.mkdir(parents=True)
    (process / "comm").write_text(f"{name}\n")
    (process / "cmdline").write_bytes(f"{name}\0".encode())
    text = "\n".join(printed(pods._MACHINE, tmp_path, owner))
    assert pods.read_machine(text).kubelet == is_kubelet
    seen: list[bool] = []

    def in_pod(pod: cri_pod.Pod, *rest: object) -> ContainerResult:
        seen.append(pod.kubelet)
        return ContainerResult("containerd")

    monkeypatch.setattr(container_validation, "in_pod", in_pod)
    monkeypatch.setattr(container_validation.Test, "parts", (b"", b""))
    rows = "\n".join(printed(cri_status.KUBELET, tmp_path, owner))
    observed = chain_probe.parse(rows, NvmlFacts())
    container_validation.in_pods(
        "containerd",
        cri_status.CriStatus("/run/x.sock", "ok"),
        {"nvidia": "/usr/bin/nvidia-container-runtime"},
        "runc",
        observed,
        Expected(),
        container_validation.Test((), 10.0, b"", ("true",)),
    )
    assert seen == [is_kubelet]


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
    rows = printed(cri_status.KUBELET, tmp_path, os.getuid())
    assert "kubelet=1" in rows
    assert f"kubelet_endpoint={endpoint}" in rows
    assert [row for row in rows if row.startswith("kubelet_cgroup")] == [
        f"kubelet_cgroup={driver}" for _ in range(bool(driver))
    ]


@pytest.mark.parametrize(
    ("active", "words"), [(True, "its socket is gone"), (False, "does not run")]
)
def test_a_containerd_without_socket_is_no_stopped_one(active: bool, words: str) -> None:
    runtime = Containerd("/usr/bin/containerd", active, 0, "", ())
    observed = replace(chain_probe.parse("", NvmlFacts()), containerd=runtime)
    test = container_validation.Test((), 10.0, b"", ("true",))
    (result,) = container_validation.in_pods(
        "containerd", None, {}, "runc", observed, Expected(), test
    )
    assert result.kind == "cri-dead"
    assert words in result.error
