"""A driver set is solved and locked on a node with dnf, from repodata as createrepo_c writes it.

Simulated: the packages, which have the names and relations of NVIDIA's and nothing in them. Real: rpmbuild,
createrepo_c, dnf with its cache and its module streams, on this machine, in namespaces of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import GPUSTATE
from rpmworld import Rpm, build, documents, index, needs

pytestmark = [pytest.mark.long, pytest.mark.node]

VERSIONS = ("580.65.06", "580.105.08", "595.58.03")


def driver(version: str) -> list[Rpm]:
    v = f"3:{version}"
    rows = {
        "nvidia-driver-cuda": (
            f"nvidia-driver-cuda-libs = {v}",
            f"nvidia-kmod-common = {v}",
            f"nvidia-persistenced = {v}",
        ),
        "nvidia-driver-cuda-libs": ("libc.so.6()(64bit)", "(nvidia-kmod-common or nothing)"),
        "nvidia-kmod-common": (f"nvidia-kmod = {v}", "/bin/sh"),
        "nvidia-persistenced": (),
        "nvidia-fabricmanager": (),
    }
    found = [Rpm(name, f"{v}-1.el9", needed) for name, needed in rows.items()]
    found += [
        Rpm(
            f"kmod-nvidia-{kind}-dkms",
            f"{v}-1.el9",
            ("dkms >= 3.1.8", f"nvidia-kmod-common = {v}"),
            (f"nvidia-kmod = {v}",),
            conflicts=(f"kmod-nvidia-{other}-dkms",),
        )
        for kind, other in (("open", "latest"), ("latest", "open"))
    ]
    return found


BASE = [
    Rpm("dkms", "3.2.1-1.el9", arch="noarch"),
    Rpm("glibc", "2.34-1.el9", provides=("libc.so.6()(64bit)", "/bin/sh")),
    Rpm("nvidia-driver-cuda", "3:580.65.06-9.house"),
]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``cuda`` with gzip and module streams, ``base`` with zstd."""
    needs("rpmbuild", "createrepo_c", "modifyrepo_c", "dnf", "zstd", "unshare")
    folder = tmp_path_factory.mktemp("rpm")
    packages = [one for version in VERSIONS for one in driver(version)]
    build(packages, folder / "cuda", folder / "build")
    build(BASE, folder / "base", folder / "build2")

    def stream(name: str, *versions: str) -> dict[str, Any]:
        rows = [f"{one.name}-{one.version}.{one.arch}" for v in versions for one in driver(v)]
        data = {
            "name": "nvidia-driver",
            "stream": name,
            "version": 20260821,
            "context": "00000000",
            "arch": "x86_64",
            "summary": "x",
            "description": "x",
            "license": {"module": ["none"]},
            "artifacts": {"rpms": rows},
        }
        return {"document": "modulemd", "version": 2, "data": data}

    default = {
        "document": "modulemd-defaults",
        "version": 1,
        "data": {"module": "nvidia-driver", "stream": "open-dkms"},
    }
    streams = [stream("580-open", *VERSIONS[:2]), stream("open-dkms", *VERSIONS), default]
    index(folder / "cuda", modules=documents(streams))
    index(folder / "base", zstd=True)
    return folder


Inside = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def inside(repositories: Path, tmp_path: Path) -> Inside:
    """Runs a script where /etc, dnf's cache and its module streams are the test's."""
    for name in ("cache", "log"):
        (tmp_path / name).mkdir()
    subprocess.run(["cp", "-a", "/etc", tmp_path / "etc"], check=True)
    repos = tmp_path / "etc/yum.repos.d"
    repos.mkdir(exist_ok=True)
    for name in ("cuda", "base"):
        (repos / f"{name}.repo").write_text(
            f"[{name}]\nname={name}\nbaseurl=file://{repositories}/{name}\ngpgcheck=0\n"
        )
    binds = "".join(
        f"mount --bind {tmp_path}/{name} {target}; "
        for name, target in (("etc", "/etc"), ("cache", "/var/cache/dnf"), ("log", "/var/log"))
    )

    def run(script: str) -> subprocess.CompletedProcess[bytes]:
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", binds + script]
        return subprocess.run(
            words, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"}
        )

    return run


POLICY = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled

policy = Policy(DriverInstalled({}))
"""


def test_a_node_with_dnf_is_solved_locked_and_stays(inside: Inside, tmp_path: Path) -> None:
    """The node is this machine: with another os-release, GPUs made of files, and no apt-get to be found."""
    (tmp_path / "etc/os-release").unlink()
    (tmp_path / "etc/os-release").write_text('ID=rocky\nVERSION_ID="9.6"\nID_LIKE="rhel fedora"\n')
    gpu = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    gpu.mkdir(parents=True)
    for name, value in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        (gpu / name).write_text(f"{value}\n")
    policy, lock = tmp_path / "policy.py", tmp_path / "gpustate.lock"
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(
        "all: {hosts: {rocky1: {ansible_connection: local, "
        f"gpustate_sys_root: {tmp_path}/sys, gpustate_state_folder: {tmp_path}/state}}}}}}\n"
    )
    (tmp_path / "state").mkdir()

    def gpustate(*words: str, wanted: str = "branch=580") -> tuple[int, str]:
        policy.write_text(POLICY.replace("{}", wanted))
        done = inside(
            f"mount --bind /dev/null $(command -v apt-get); {GPUSTATE} {' '.join(words)} "
            f"{policy} -i {hosts}"
        )
        assert b"Traceback" not in done.stderr
        return done.returncode, (done.stdout + done.stderr).decode()

    code, told = gpustate("driver", "solve")
    assert code == 0, told
    (one,) = json.loads(lock.read_text())["sets"]
    assert (one["driver"], one["module_type"], one["nodes"]) == ("580.105.08", "open", ["rocky1"])
    assert one["for"]["distribution"] == "rocky9"
    assert {"nvidia-driver-cuda", "kmod-nvidia-open-dkms"} <= one["packages"].keys()
    assert {*one["packages"].values()} == {"3:580.105.08-1.el9"}
    assert gpustate("driver", "solve", "--check")[0] == 0
    assert gpustate("driver", "solve", "--update", "--check")[0] == 0
    _, told = gpustate("driver", "outdated")
    assert "595.58.03 open  not allowed:" in told
    assert "the policy requests branch 580" in told
    before = lock.read_text()
    code, told = gpustate("driver", "solve", wanted="branch=570")
    assert (code, " has no branch 570; it has branch" in told) == (5, True), told
    assert lock.read_text() == before
