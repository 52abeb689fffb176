from __future__ import annotations

from pathlib import Path

import pytest

from gpustate_lab import host

MOUNTINFO = """\
24 1 0:22 / /proc rw - proc proc rw
90 24 0:50 / /labs/a\\040b/nodes/gpu1/root rw - overlay gpustate-lab rw,lowerdir=/c/top/root:/c/base/root,upperdir=/u,workdir=/w
91 90 0:51 / /labs/a\\040b/nodes/gpu1/root/run rw shared:7 - tmpfs tmpfs rw
92 24 0:52 / /labs/a\\040bc rw - tmpfs tmpfs rw
"""


@pytest.fixture(autouse=True)
def mountinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: MOUNTINFO)


def test_mounts_below_a_folder_come_innermost_first_and_a_longer_name_is_no_match() -> None:
    root = Path("/labs/a b/nodes/gpu1/root")
    assert host.mount_points(Path("/labs/a b")) == [root / "run", root]


def test_layers_of_mounted_overlays_are_known() -> None:
    assert host.mounted_layers() == {Path("/c/top/root"), Path("/c/base/root")}
