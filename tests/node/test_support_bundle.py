"""A support bundle of real nodes: logs of units, kernel log, configuration, and no planted secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from commands import gpustate

from gpustate_lab.api import Lab

pytestmark = pytest.mark.long

#: Secrets that nobody has registered: in a runtime's file, in a unit's journal, in the environment of a unit.
PLANT = """
mkdir -p /etc/docker /etc/systemd/system
printf '%s' '{"auths": {"r.example": {"auth": "hunter2-a"}}}' >/etc/docker/daemon.json
printf '%s\\n' '[Service]' 'Type=oneshot' 'RemainAfterExit=yes' 'Environment=NGC_API_KEY=hunter2-b' \
  'ExecStart=/bin/echo login with token=hunter2-c failed' >/etc/systemd/system/nvidia-fabricmanager.service
systemctl daemon-reload && systemctl start nvidia-fabricmanager.service
"""
UNPLANT = """
systemctl stop nvidia-fabricmanager.service
rm -rf /etc/docker /etc/systemd/system/nvidia-fabricmanager.service; systemctl daemon-reload
"""


def test_a_bundle_of_real_nodes_is_whole_and_has_no_planted_secret(
    fresh_lab: Lab, tmp_path: Path
) -> None:
    planted = fresh_lab.node("gpu2")
    assert planted.run(PLANT).returncode == 0
    before = planted.run("find /etc /var/lib/gpustate -newer /etc/docker/daemon.json | sort").stdout
    file = tmp_path / "bundle.tar.gz"
    gpustate("node", "support-bundle", file, "-i", fresh_lab.inventory, code=0)
    with tarfile.open(file) as tar:
        texts = {one.name: tar.extractfile(one).read().decode() for one in tar}  # type: ignore[union-attr]
    files = {name.removeprefix("gpustate-support/"): text for name, text in texts.items()}
    assert [name for name, text in files.items() if "hunter2" in text] == []
    unit = files["nodes/gpu2/units/nvidia-fabricmanager.service.txt"]
    assert "login with token=(secret) failed" in unit
    assert '"auths": {(secret)}' in files["nodes/gpu2/files/etc/docker/daemon.json"]
    for node in ("gpu1", "gpu2"):
        assert json.loads(files[f"nodes/{node}/facts.json"])["os_id"] == "debian"
        assert json.loads(files[f"nodes/{node}/explain.json"])["checks"]
        assert "linux-image" in files[f"nodes/{node}/packages.txt"]
        assert "PRETTY_NAME" in files[f"nodes/{node}/system.txt"]
    index = json.loads(files["index.json"])
    assert {row["name"] for row in index["nodes"]} == {"gpu1", "gpu2"}
    assert not [row for row in index["missing"] if "too long" in row["reason"]]
    after = planted.run("find /etc -newer /etc/docker/daemon.json | sort").stdout
    assert set(after.split()) <= set(before.split())
    planted.run(UNPLANT)
