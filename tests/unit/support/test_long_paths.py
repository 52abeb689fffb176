"""Test support whose programs make sockets works in folders whose path is too long for one."""

from __future__ import annotations

import gc
import shutil
import subprocess
from pathlib import Path

import pytest
import rpmnodes
from rpmworld import needs
from vm import Vm


@pytest.fixture
def long_path(tmp_path: Path) -> Path:
    """A folder in which no unix socket can be made by its path."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    return folder


def test_repositories_are_signed_in_a_long_path_and_leave_no_keyring(long_path: Path) -> None:
    needs("rpmbuild", "createrepo_c", "gpg", "gpgv")
    made = rpmnodes.repository(long_path / "world")
    made.fill([rpmnodes.BASE], long_path / "scratch")
    home, data = made.home, made.folder / "repodata/repomd.xml"
    ring = long_path / "ring.gpg"
    ring.write_bytes(subprocess.run(["gpg", "--dearmor"], input=made.key.encode(), capture_output=True, check=True).stdout)  # fmt: skip
    checked = ["gpgv", "--keyring", str(ring), f"{data}.asc", str(data)]
    assert subprocess.run(checked, capture_output=True).returncode == 0
    del made
    gc.collect()
    assert not home.exists()


def test_a_virtual_machine_is_controlled_in_a_long_path(long_path: Path) -> None:
    for program in ("qemu-system-x86_64", "qemu-img", "setpriv"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    machine = Vm(long_path, Path("/dev/null"), "")
    disk = ["qemu-img", "create", "-q", "-f", "qcow2", str(machine.disk), "1M"]
    subprocess.run(disk, check=True)
    machine.power_on(ready=False)
    try:
        assert machine.qmp("query-status")["status"] == "running"
    finally:
        machine.cut_power()
