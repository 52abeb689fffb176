"""The toolkit's packages: NVIDIA's programs and files, and the wrappers that are the lab's own."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import programs
from gpustate_lab.sim import repository, toolkit_packages
from gpustate_lab.sim.deb import Package, Program
from gpustate_lab.sim.native import PAYLOAD, Builder
from gpustate_lab.spec import TOOLKITS
from tests.unit.lab.sim.conftest import FakeRoot

VERSIONS = TOOLKITS[::-1]


@functools.cache
def data(version: str) -> dict[str, Path]:
    """The files of NVIDIA's module; the test is skipped where Go or its module proxy is not to be had."""
    try:
        found = programs.data_files(
            toolkit_packages.module_of(version), toolkit_packages.DATA, lambda line: None
        )
    except LabError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return {file.name: file for file in found}


def packages(version: str, builder: Builder, folder: Path) -> dict[str, Package]:
    names = programs.module(toolkit_packages.module_of(version)).programs
    binaries = {name: folder / name for name in names}
    found = toolkit_packages.packages(version, builder, binaries, data(version))
    return {package.name: package for package in found}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_program_of_the_pinned_module_is_in_a_package(
    builder: Builder, tmp_path: Path, version: str
) -> None:
    module = programs.module(toolkit_packages.module_of(version))
    assert module.version == version
    contents = {
        entry.content
        for package in packages(version, builder, tmp_path).values()
        for entry in package.files.values()
        if isinstance(entry, Program)
    }
    assert {tmp_path / name for name in module.programs} <= contents


def test_units_lie_where_each_version_puts_them(builder: Builder, tmp_path: Path) -> None:
    found = {
        version: sorted(
            path
            for path in packages(version, builder, tmp_path)["nvidia-container-toolkit-base"].files
            if "nvidia-cdi-refresh.service" in path
        )
        for version in VERSIONS
    }
    assert found == {
        "1.17.8": [],
        "1.18.2": ["etc/systemd/system/nvidia-cdi-refresh.service"],
        "1.20.1": [
            "usr/lib/systemd/system/nvidia-cdi-refresh.service",
            "usr/lib/systemd/system/nvidia-cdi-refresh.service.d/10-container-engines.conf",
        ],
    }


def test_the_tools_of_the_library_are_tied_to_the_version_from_1_18_on(
    builder: Builder, tmp_path: Path
) -> None:
    tied = [
        packages(version, builder, tmp_path)["nvidia-container-toolkit"].depends[1]
        for version in VERSIONS
    ]
    assert tied == [
        "libnvidia-container-tools (>= 1.17.8-1)",
        "libnvidia-container-tools (= 1.18.2-1)",
        "libnvidia-container-tools (= 1.20.1-1)",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_maintainer_script_is_a_script_that_a_shell_reads(
    builder: Builder, tmp_path: Path, version: str
) -> None:
    for package in packages(version, builder, tmp_path).values():
        for text in package.scripts.values():
            assert "@VERSION@" not in text
            subprocess.run(["sh", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("program", "arguments", "prepared"),
    [
        ("nvidia-cdi-hook", ["disable-device-node-modification"], True),
        ("nvidia-cdi-hook", ["update-ldcache", "--folder", "/usr/lib"], True),
        ("nvidia-cdi-hook", ["apply-cuda-memory-limits", "--gpu-id", "GPU-1"], False),
        ("nvidia-ctk", ["hook", "disable-device-node-modification"], True),
        ("nvidia-ctk", ["hook", "create-symlinks", "--link", "a b::c"], False),
        (
            "nvidia-ctk",
            ["cdi", "generate", "--disable-hook", "disable-device-node-modification"],
            False,
        ),
        ("nvidia-ctk", [], False),
    ],
)
def test_a_wrapper_prepares_two_hooks_and_passes_everything_on(
    builder: Builder, tmp_path: Path, program: str, arguments: list[str], prepared: bool
) -> None:
    entry = packages("1.20.1", builder, tmp_path)["nvidia-container-toolkit-base"].files[
        f"usr/bin/{program}"
    ]
    assert isinstance(entry, Program)
    text = re.sub(r"/usr/(bin|lib/gpustate-lab)/", f"{tmp_path}/", str(entry.content))
    wrapper = tmp_path / program
    wrapper.write_text(text)
    for name in (f"{program}.real", "showhardware.py"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", str(wrapper), *arguments], capture_output=True, text=True, check=True
    )
    real = str(tmp_path / f"{program}.real")
    before = [str(tmp_path / "showhardware.py")] if prepared else []
    assert done.stdout.splitlines() == [*before, real, *arguments]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are made as root")
def test_a_container_is_shown_the_hardware_before_the_hook_runs(
    node_root: FakeRoot, tmp_path: Path
) -> None:
    """With bind mounts of its own, and a program in place of NVIDIA's hook that looks at them."""
    bundle, hook = tmp_path / "bundle", tmp_path / "hook"
    (bundle / "rootfs").mkdir(parents=True)
    (bundle / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("seen\n")
    hook.write_text(f'#!/bin/sh\ncat; echo; echo "$@"; cat {bundle}/rootfs{shown}/file\n')
    hook.chmod(0o755)
    text = (PAYLOAD / "node" / "showhardware.py").read_text()
    text, count = re.subn(r"(?s)SHOWN = \{.*?\}", f'SHOWN = {{"{shown}": False}}', text)
    assert count == 1
    script = tmp_path / "showhardware.py"
    script.write_text(text)
    state = json.dumps({"bundle": str(bundle)})
    done = subprocess.run(
        ["unshare", "--mount", "python3", str(script), str(hook), "one", "two"],
        input=state,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [state, "one two", "seen"]


def test_other_versions_are_built_when_they_are_asked_for_and_then_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repository"
    provided: list[str] = []

    def provide(module: str, say: object) -> dict[str, Path]:
        provided.append(module)
        programs_of_module = {name: tmp_path / name for name in programs.module(module).programs}
        for path in programs_of_module.values():
            path.write_text("program")
        return programs_of_module

    monkeypatch.setattr(programs, "provide", provide)
    for version in VERSIONS:
        data(version)
    for versions, expected in (((), ["1.20.1"]), (["1.18.2"], ["1.18.2", "1.20.1"])):
        provided.clear()
        repository.build_toolkits(folder, versions, print)
        assert provided == [f"container-toolkit-{version}" for version in expected]
        repository.build_toolkits(folder, (), print)
        index = (folder / repository.TOOLKIT_PATH / "Packages").read_text()
        found = re.findall(
            r"^Package: nvidia-container-toolkit\nVersion: (.*)-1$", index, re.MULTILINE
        )
        assert found == expected
    with pytest.raises(LabError, match=r"no pinned module 'container-toolkit-1\.0'"):
        repository.build_toolkits(folder, ["1.0"], print)
