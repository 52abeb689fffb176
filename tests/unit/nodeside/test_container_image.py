"""The image that the validator's containers run: made of this machine's own Python, nothing of NVIDIA's in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpustate.nodeside import container_image, container_inside


def files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_the_image_runs_alone_and_has_nothing_of_nvidias(tmp_path: Path) -> None:
    archive, command = container_image.make("gpustate.invalid/test:1")
    root = tmp_path / "root"
    container_image.unpack(archive, str(root))
    assert not [name for name in files(root) if "nvidia" in name or "libcuda" in name]
    (root / "proc/self").mkdir()
    (root / "dev/null").touch()
    (root / "proc/self/mountinfo").write_text(
        "1 1 0:1 / / rw - ext4 x rw\n2 1 0:1 / /usr/lib/a\\040b.so rw - ext4 x rw\n"
    )
    done = subprocess.run(
        ["chroot", root, *command, "20", "GPU-x"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.strip().splitlines()[-1].removeprefix(container_inside.MARK))
    assert report["devices"] == {}
    assert report["files"] == ["/usr/lib/a b.so"]
    assert "libnvidia-ml.so.1" in report["nvml"]["error"]
    assert [(one["uuid"], one["ok"]) for one in report["cuda"]] == [("GPU-x", False)]
    assert "libcuda.so.1 cannot be loaded" in report["cuda"][0]["text"]


def test_two_images_have_the_same_files_and_no_common_id() -> None:
    """A runtime that removes an image by its id removes every image of that id, whoever needs it."""
    (config, layer), (other, again) = (
        container_image.parts(container_image.make("x:1")[0]) for _ in range(2)
    )
    assert layer == again
    assert config != other


def test_an_interpreter_that_does_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(container_image.ImageError, match="/bin/false exited with 1"):
        container_image.make("x:1")


def test_processes_in_the_container_compile_no_module_of_the_library(tmp_path: Path) -> None:
    archive, _ = container_image.make("x:1")
    container_image.unpack(archive, str(tmp_path))
    assert [name for name in files(tmp_path) if name.endswith("/ctypes/__init__.pyc")]
    compiled = {name.removesuffix("c") for name in files(tmp_path) if name.endswith(".pyc")}
    assert not compiled & set(files(tmp_path)), "the source would be compiled in its place"
