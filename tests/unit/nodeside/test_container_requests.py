"""Containers request GPUs as their runtime's users do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate.nodeside import container_inside, container_validation


def test_podman_runs_without_selinux_labels_as_nvidias_guide_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, log = tmp_path / "podman", tmp_path / "log"
    program.write_text(f'#!/bin/sh\necho "$@" >>{log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    test = container_validation.Test((), 10.0, b"", ("true",))
    options = ["--device", container_validation.ALL]
    container_validation.loaded("podman", "podman", options, test)
    (run,) = (line for line in log.read_text().splitlines() if line.startswith("run "))
    assert "--security-opt=label=disable" in run


def test_nodes_of_mig_capabilities_are_opened_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "nvidia0", tmp_path / "nvidia-caps/nvidia-cap1"]
    paths[1].parent.mkdir()
    for path in paths:
        path.symlink_to("/dev/null")
    monkeypatch.setattr(
        container_inside.glob,
        "glob",
        lambda pattern: [str(path) for path in paths if pattern.startswith("/dev/nvidia*")],
    )
    modes: dict[str, int] = {}
    real = os.open

    def opened(path: str, flags: int) -> int:
        modes[path] = flags & os.O_ACCMODE
        return real(path, flags)

    monkeypatch.setattr(container_inside.os, "open", opened)
    assert set(container_inside.devices().values()) == {0}
    assert modes == {str(paths[0]): os.O_RDWR, str(paths[1]): os.O_RDONLY}


def test_a_handler_of_the_operator_reads_its_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "config.toml"
    node.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = true\n")
    monkeypatch.setattr(container_validation, "TOOLKIT_CONFIG", str(node))
    own = tmp_path / "toolkit/.config/nvidia-container-runtime/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
    )
    assert container_validation.request("/usr/bin/nvidia-container-runtime") == "envvar"
    assert (
        container_validation.request(str(tmp_path / "toolkit/nvidia-container-runtime")) == "mounts"
    )
