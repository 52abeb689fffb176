"""The solver on repodata as createrepo_c writes it and dnf fetches it, held against what dnf itself would do.

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

from gpustate.core.queries import Answer, Query
from gpustate.errors import RefusedError
from gpustate.resolver.rpm_indexes import OtherRpmsQuery, RpmDriverQuery, with_others
from gpustate.resolver.rpm_repositories import Repositories, RepositoriesQuery
from gpustate.solve.packages import Package, Universe, unresolved_names
from gpustate.solve.problem import Problem
from gpustate.solve.repodata import nevra
from gpustate.solve.request import DriverRequest
from gpustate.solve.solver import NoSolution, Solution, describe_conflict, solve

pytestmark = pytest.mark.node

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


def asked(inside: Inside, query: Query[Any]) -> Any:
    done = inside(query.script())
    return query.parse(Answer(done.returncode, done.stdout))


def offered(inside: Inside) -> tuple[Repositories, tuple[Package, ...]]:
    repositories = asked(inside, RepositoriesQuery()).checked()
    mine = asked(inside, RpmDriverQuery(repositories))
    others = asked(inside, OtherRpmsQuery(repositories, unresolved_names(mine)))
    return repositories, with_others(mine, others)


def solved(packages: tuple[Package, ...], wanted: DriverRequest) -> Solution | NoSolution:
    def modules(branch: int, kind: str) -> tuple[str | None, str]:
        return ("open" if kind == "auto" else kind), ""

    return solve(Problem(wanted, Universe(packages), "rocky", modules))


#: What dnf would install for some specs: names with versions; or why it would not.
DNF = """
import dnf, json, sys
base = dnf.Base()
base.conf.read()
base.conf.module_platform_id = "platform:el9"
base.conf.substitutions["releasever"] = "9"
base.read_all_repos()
base.fill_sack(load_system_repo=False)
if len(sys.argv) == 1:
    rows = base.sack.query().filterm(name__glob="*nvidia*")
else:
    base.install_specs(sys.argv[1:])
    base.resolve()
    rows = base.transaction.install_set
print(json.dumps([f"{p.name}-{p.epoch}:{p.version}-{p.release}.{p.arch}" for p in rows]))
"""


def dnf(inside: Inside, tmp_path: Path, *specs: str) -> set[str] | str:
    script = tmp_path / "ask_dnf.py"
    script.write_text(DNF)
    done = inside(f"/usr/bin/python3 {script} {' '.join(specs)}")
    if done.returncode:
        return done.stderr.decode()
    return set(json.loads(done.stdout.splitlines()[-1]))


def enable(inside: Inside, stream: str) -> None:
    done = inside(
        "printf '[nvidia-driver]\\nname=nvidia-driver\\nstream=%s\\nprofiles=\\nstate=enabled\\n' "
        f"{stream} >/etc/dnf/modules.d/nvidia-driver.module"
    )
    assert done.returncode == 0, done.stderr


def test_the_set_is_what_dnf_would_install(inside: Inside, tmp_path: Path) -> None:
    nothing = asked(inside, RepositoriesQuery())
    with pytest.raises(RefusedError, match="no cached repodata of base, cuda"):
        nothing.checked()
    assert inside("dnf -q makecache").returncode == 0
    repositories, packages = offered(inside)
    assert [row.name for row in repositories.rows] == ["base", "cuda"]
    assert repositories.rows[0].primary.href.endswith(".zst")
    assert all(len(p.sha256) == 64 for p in packages if p.repository.origin == "cuda")
    assert {p.name for p in packages if p.leaf} == {"dkms", "glibc"}
    for wanted, version in (
        (DriverRequest(branch=580), "580.105.08"),
        (DriverRequest(), "595.58.03"),
    ):
        found = solved(packages, wanted)
        assert isinstance(found, Solution), describe_conflict(found)
        assert found.candidate.version == version
        mine = {nevra(package) for package in found.packages}
        assert {p.repository.origin for p in found.packages} == {"cuda"}
        specs = [f"{name}-3:{version}" for name in ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")]
        theirs = dnf(inside, tmp_path, *specs)
        assert isinstance(theirs, set), theirs
        assert {row for row in theirs if "nvidia" in row} == mine


@pytest.mark.parametrize(
    ("stream", "settings"),
    [
        ("open-dkms", ""),
        ("580-open", ""),
        ("580-open", "priority=10"),
        ("open-dkms", "excludepkgs=nvidia-*-3:595*"),
        ("580-open", "module_hotfixes=1"),
    ],
)
def test_dnf_and_gpustate_see_the_same_packages(
    inside: Inside, tmp_path: Path, stream: str, settings: str
) -> None:
    inside(f"echo '{settings}' >>/etc/yum.repos.d/cuda.repo; dnf -q makecache")
    enable(inside, stream)
    _, packages = offered(inside)
    mine = {nevra(p) for p in packages if "nvidia" in p.name and not p.forbidden}
    assert mine == dnf(inside, tmp_path)


def test_a_conflict_is_told_where_dnf_finds_one(inside: Inside, tmp_path: Path) -> None:
    inside("echo excludepkgs=dkms >>/etc/yum.repos.d/base.repo; dnf -q makecache")
    _, packages = offered(inside)
    found = solved(packages, DriverRequest(branch=580))
    assert isinstance(found, NoSolution)
    assert "needs dkms >= 3.1.8" in describe_conflict(found)
    told = dnf(inside, tmp_path, "nvidia-driver-cuda-3:580.65.06", "kmod-nvidia-open-dkms")
    assert isinstance(told, str)
    assert "requires dkms >= 3.1.8" in told


def test_repodata_that_is_not_what_repomd_says_is_refused(inside: Inside) -> None:
    inside("dnf -q makecache; for f in /var/cache/dnf/cuda-*/repodata/*primary*; do : >$f; done")
    repositories = asked(inside, RepositoriesQuery()).checked()
    with pytest.raises(RefusedError, match="repodata of cuda does not match its repomd"):
        asked(inside, RpmDriverQuery(repositories))


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

    code, told = gpustate("solve")
    assert (code, "dnf has no cached repodata of base, cuda" in told) == (5, True), told
    inside("dnf -q makecache")
    code, told = gpustate("solve")
    assert code == 0, told
    (one,) = json.loads(lock.read_text())["sets"]
    assert (one["driver"], one["module_type"], one["nodes"]) == ("580.105.08", "open", ["rocky1"])
    assert one["for"]["distribution"] == "rocky9"
    assert {row["version"] for row in one["packages"]} == {"3:580.105.08-1.el9"}
    assert all(len(row["sha256"]) == 64 for row in one["packages"])
    assert gpustate("solve", "--check")[0] == 0
    assert gpustate("solve", "--update", "--check")[0] == 0
    _, told = gpustate("outdated")
    assert "595.58.03 open (cuda)  not allowed:" in told
    assert "the policy requests branch 580" in told
    before = lock.read_text()
    code, told = gpustate("solve", wanted="branch=570")
    assert (code, "no driver set for branch 570" in told) == (5, True), told
    assert lock.read_text() == before
