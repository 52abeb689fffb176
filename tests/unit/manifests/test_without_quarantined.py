"""The device plugin's container without the device nodes of quarantined GPUs, run by dash and busybox."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpustate import shell
from gpustate.formats.quarantine import Entry, as_text

SHELLS = [one for one in (["dash"], ["busybox", "sh"]) if shutil.which(one[0])]
GPUS = {
    "0000:01:00.0": ("GPU-aa", 0),
    "0000:02:00.0": ("GPU-bb", 3),
    "0000:03:00.0": ("GPU-???", 5),
}
PAST, FUTURE = 1, 1 << 33


def entry(
    uuid: str, pci: str, until: int = FUTURE, reason: str = 'RMA "4711",\n "until": 1'
) -> Entry:
    return Entry(uuid, pci, reason, until, 0, "somebody")


@pytest.fixture
def container(tmp_path: Path) -> Path:
    for address, (uuid, minor) in GPUS.items():
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    (tmp_path / "dev").mkdir()
    for _, minor in GPUS.values():
        (tmp_path / f"dev/nvidia{minor}").touch()
    (tmp_path / "var/lib/gpustate").mkdir(parents=True)
    return tmp_path


def left(container: Path, sh: list[str], *entries: Entry) -> set[int]:
    """Minors of the device nodes that the program that follows finds."""
    if entries:
        (container / "var/lib/gpustate/quarantine.json").write_text(as_text(entries))
    text = shell.load("without_quarantined", "gpustate.manifests", HOST=str(container))
    text = text.replace("/dev/nvidia", f"{container}/dev/nvidia")
    done = subprocess.run(
        [*sh, "-c", text, "sh", "ls", str(container / "dev")],
        env={"PROC": str(container / "proc"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    lines = [one for one in done.stdout.split() if one.startswith("nvidia")]
    return {int(one.removeprefix("nvidia")) for one in lines}


@pytest.mark.parametrize("sh", SHELLS, ids=lambda sh: sh[0])
@pytest.mark.parametrize(
    ("entries", "minors"),
    [
        ((), {0, 3, 5}),
        ((entry("GPU-bb", "0000:02:00.0"),), {0, 5}),
        ((entry("GPU-bb", ""),), {0, 5}),
        ((entry("", "0000:03:00.0"),), {0, 3}),
        ((entry("GPU-bb", "0000:02:00.0", PAST),), {0, 3, 5}),
        ((entry("GPU-zz", "0000:09:00.0"),), {0, 3, 5}),
        ((entry("GPU-aa", "0000:01:00.0", PAST), entry("GPU-bb", "0000:02:00.0")), {0, 5}),
        ((entry("GPU-aa", "0000:01:00.0"), entry("", "0000:03:00.0")), {3}),
    ],
)
def test_device_nodes_of_active_entries_are_left_out(
    container: Path, sh: list[str], entries: tuple[Entry, ...], minors: set[int]
) -> None:
    assert left(container, sh, *entries) == minors


def test_kubernetes_expands_nothing_in_the_script() -> None:
    text = shell.load("without_quarantined", "gpustate.manifests", HOST="/host")
    assert "$$" not in text
    assert [part for part in text.split("$(")[1:] if part.split(")")[0].isidentifier()] == []
