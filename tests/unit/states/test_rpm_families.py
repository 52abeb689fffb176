"""States on nodes with dnf and zypper: names of repositories by distribution, and steps of the node's family."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rpmnodes import repository
from rpmworld import needs

from gpustate import NodeFacts, ops
from gpustate.formats import alternatives, openpgp, rpmrepos
from gpustate.states.container_toolkit import PACKAGES, ContainerToolkitInstalled
from gpustate.states.cuda_toolkit import QUERY
from gpustate.states.repository import DriverRepository, ToolkitRepository, rpm
from gpustate.states.repository.where import Repository
from gpustate.testing import FakeNode, converge

CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
SYSTEMS = [
    ("rhel", "8.10", "dnf", "rhel8"),
    ("rhel", "9.6", "dnf", "rhel9"),
    ("rhel", "10.0", "dnf", "rhel10"),
    ("rocky", "8.10", "dnf", "rhel8"),
    ("rocky", "9.6", "dnf", "rhel9"),
    ("rocky", "10.1", "dnf", "rhel10"),
    ("almalinux", "8.10", "dnf", "rhel8"),
    ("almalinux", "9.6", "dnf", "rhel9"),
    ("almalinux", "10.0", "dnf", "rhel10"),
    ("ol", "9.6", "dnf", "rhel9"),
    ("amzn", "2023", "dnf", "amzn2023"),
    ("sles", "15.7", "zypper", "sles15"),
    ("sles", "16.0", "zypper", "suse16"),
    ("opensuse-leap", "15.6", "zypper", "opensuse15"),
    ("opensuse-leap", "16.0", "zypper", "suse16"),
    ("opensuse-tumbleweed", "20250401", "zypper", "suse16"),
]


def facts(os_id: str, version: str, manager: str, **more: Any) -> NodeFacts:
    given: dict[str, Any] = {"machine": "x86_64", "systemd": True} | more
    return NodeFacts(os_id=os_id, os_version=version, package_manager=manager, **given)


@pytest.mark.parametrize(("os_id", "version", "manager", "code"), SYSTEMS)
def test_each_distribution_has_its_address_of_the_cuda_repository(
    os_id: str, version: str, manager: str, code: str
) -> None:
    there = rpm.cuda_repository(facts(os_id, version, manager))
    assert there.uri == f"{CUDA}/{code}/x86_64"
    key = {"rhel10": "CDF6BA43", "suse16": "3A8B5622"}.get(code, "D42D0685")
    assert there.key_url == f"{CUDA}/{code}/x86_64/{key}.pub"
    assert (there.fingerprint or "").endswith(key)
    assert len(there.fingerprint or "") == 40 or len(there.sha256) == 64
    arm = rpm.cuda_repository(facts(os_id, version, manager, machine="aarch64"))
    assert arm.uri == f"{CUDA}/{code}/sbsa"


def test_a_key_known_by_its_file_is_checked_by_that(tmp_path: Path) -> None:
    """A real gpg and sha256sum read the file; NVIDIA strips the armor's version line before it sums it, too."""
    needs("gpg", "curl")
    made = repository(tmp_path / "world")
    lines = made.key.splitlines(keepends=True)
    file = tmp_path / "key.pub"
    file.write_text("".join([lines[0], "Version: GnuPG v2\n", *lines[1:]]))
    (whole,) = openpgp.fingerprints(made.key)
    digest = hashlib.sha256(made.key.encode()).hexdigest()
    pinned = Repository(key_url=file.as_uri(), fingerprint=whole[-8:], sha256=digest)
    other = digest.replace(digest[0], "0" if digest[0] != "0" else "1")
    for there, end in (
        (pinned, "put"),
        (replace(pinned, fingerprint=whole, sha256=""), "put"),
        (replace(pinned, sha256=other), "SHA-256"),
        (replace(pinned, fingerprint="CDF6BA43"), "fingerprint"),
    ):
        step = rpm.fetch_key("x", there)
        shell = f'R={tmp_path}; fail() {{ echo "$@"; exit 1; }}; put() {{ cat >/dev/null; echo put; }}\n'
        done = subprocess.run(
            ["sh", "-ec", shell + step.script()], capture_output=True, text=True, check=False
        )
        assert end in done.stdout, done


@pytest.mark.parametrize(
    ("os_id", "version", "machine"),
    [("rhel", "7.9", "x86_64"), ("amzn", "2", "x86_64"), ("rocky", "9.6", "ppc64le"), ("", "", "")],
)
def test_a_distribution_without_one_is_refused(os_id: str, version: str, machine: str) -> None:
    there = rpm.cuda_repository(facts(os_id, version, "dnf", machine=machine))
    assert there.problem is not None
    assert "origin: mirror" in there.problem


@pytest.mark.parametrize(
    ("manager", "folder"), [("dnf", "yum.repos.d"), ("zypper", "zypp/repos.d")]
)
def test_the_vendors_repository_is_written_fetched_and_taken_away(
    manager: str, folder: str
) -> None:
    os_id = "rocky" if manager == "dnf" else "sles"
    node = FakeNode(
        facts=facts(os_id, "9.6" if manager == "dnf" else "15.7", manager), shell={"": (0, "")}
    )
    state = ToolkitRepository()
    observed = state.probe(node)
    assert state.refuse(observed) is None
    steps = list(state.apply(observed, state.plan(observed)))
    (written,) = [s for s in steps if isinstance(s, ops.PutText) and s.path.endswith(".repo")]
    assert written.path == f"/etc/{folder}/gpustate-toolkit-repository.repo"
    # NVIDIA signs the metadata of that repository, and not its packages.
    assert "repo_gpgcheck=1\n" in written.text
    assert ("gpgcheck=0\n" if manager == "dnf" else "pkg_gpgcheck=0\n") in written.text
    assert f"gpgkey=file://{rpm.key_path('toolkit-repository')}\n" in written.text
    assert any(isinstance(step, ops.RpmUpdate) for step in steps)
    assert not [step for step in steps if isinstance(step, ops.AptUpdate)]


@pytest.mark.parametrize(
    ("manager", "os_id", "folder", "lists"),
    [
        ("dnf", "rocky", "yum.repos.d", "/var/cache/dnf/updates-0f3a"),
        ("zypper", "sles", "zypp/repos.d", "/var/cache/zypp/raw/updates"),
    ],
)
def test_repositories_without_package_lists_are_read_too(
    manager: str, os_id: str, folder: str, lists: str
) -> None:
    """Headers of kernels are in those of the distribution, of which a fresh node has read none."""
    text = "".join(
        f"[{name}]\nbaseurl=https://mirror.example/{name}\n" for name in ("base", "updates")
    )
    node = FakeNode(
        facts=facts(os_id, "9.6" if manager == "dnf" else "15.7", manager),
        files={f"/etc/{folder}/site.repo": text},
        shell={rpm.LISTS: (0, f"{lists}/repodata/repomd.xml\n"), "": (0, "")},
    )
    state = DriverRepository()
    observed = state.probe(node)
    (step,) = [
        step
        for step in state.apply(observed, state.plan(observed))
        if isinstance(step, ops.RpmUpdate)
    ]
    assert step.others == ("base",)
    assert ("makecache ||" if manager == "dnf" else "refresh base ||") in step.script()


@pytest.mark.parametrize("manager", ["dnf", "zypper"])
def test_a_repo_file_with_another_mode_is_written_again(manager: str) -> None:
    os_id, version = ("rocky", "9.6") if manager == "dnf" else ("sles", "15.7")
    node = FakeNode(facts=facts(os_id, version, manager), shell={"": (0, "")})
    state, path = ToolkitRepository(), rpm.sources_path(manager, "toolkit-repository")
    node.files[path] = state.desired(state.probe(node)).sources_text or ""
    assert "sources_text" not in state.plan(state.probe(node)).fields
    node.modes[path] = 0o600
    observed = state.probe(node)
    plan = state.plan(observed)
    assert "sources_text" in plan.fields
    (step,) = [
        s for s in state.apply(observed, plan) if isinstance(s, ops.PutText) and s.path == path
    ]
    assert (step.mode, step.text) == (0o644, node.files[path])


def test_another_source_of_nvidia_packages_is_refused_with_its_file() -> None:
    path = "/etc/yum.repos.d/cuda-rhel9.repo"
    text = f"[cuda]\nname=cuda\nbaseurl={CUDA}/rhel8/x86_64\nenabled=1\n"
    node = FakeNode(facts=facts("rocky", "9.6", "dnf"), files={path: text}, shell={"": (0, "")})
    why = DriverRepository().refuse(DriverRepository().probe(node))
    assert why is not None
    assert f"{path}:1: {CUDA}/rhel8" in why
    node.files[path] = text.replace("enabled=1", "enabled=0")
    assert DriverRepository().refuse(DriverRepository().probe(node)) is None


@pytest.mark.parametrize(
    ("os_id", "version", "path", "text"),
    [
        (
            "sles",
            "15.7",
            "/etc/zypp/repos.d/nvidia.repo",
            "[nvidia]\nbaseurl=https://download.nvidia.com/suse/sle15sp7\n",
        ),
        (
            "amzn",
            "2023",
            "/etc/yum.repos.d/amazonlinux-nvidia.repo",
            "[amazonlinux-nvidia]\nmirrorlist=https://repos.example/nvidia/mirrors/latest/x86_64/mirror.list\n",
        ),
    ],
)
def test_other_repositories_of_the_driver_are_refused_for_the_driver_alone(
    os_id: str, version: str, path: str, text: str
) -> None:
    manager = "zypper" if os_id == "sles" else "dnf"
    node = FakeNode(facts=facts(os_id, version, manager), files={path: text}, shell={"": (0, "")})
    state = DriverRepository()
    assert f"NVIDIA packages also come from {path}:1" in str(state.refuse(state.probe(node)))
    assert ToolkitRepository().refuse(ToolkitRepository().probe(node)) is None


@pytest.mark.parametrize("manager", ["dnf", "zypper"])
def test_the_toolkit_comes_in_one_transaction_of_the_nodes_own_manager(manager: str) -> None:
    offers = {name: [("1.18.0-1", "x"), ("1.17.8-1", "x")] for name in PACKAGES}
    node = FakeNode(
        facts=facts("rocky", "9.6", manager),
        candidates=offers,
        runs={"record": lambda _: None},
        shell={"docker-runc": (0, "")},
    )
    *_, last = converge(ContainerToolkitInstalled(version="1.17.8"), node)
    assert not last
    assert set(node.installed.values()) == {"1.17.8-1"}
    assert node.held == set(PACKAGES)
    assert not [step for step in node.done if type(step).__name__.startswith("Apt")]
    (step,) = [step for step in node.done if isinstance(step, ops.RpmInstall)]
    sign = "-" if manager == "dnf" else "="
    assert f"nvidia-container-toolkit{sign}1.17.8-1" in step.script()


@pytest.mark.parametrize(
    ("text", "uris"),
    [
        ("[a]\nbaseurl=http://x/\n", ["http://x"]),
        ("[a]\nbaseurl = http://x/ http://y\n[b]\nmirrorlist=http://m\n", ["http://x", "http://m"]),
        ("[a]\nbaseurl=http://x\n enabled=0\n", ["http://x"]),  # goes on with the line before
        ("[a]\nbaseurl=http://x\nenabled = No\n", []),
        ("[main]\nbaseurl=http://x\n", []),
        ("; [a]\n#baseurl=http://x\n", []),
        ("\x00\xff[", []),
        ("", []),
    ],
)
def test_repositories_of_a_file_are_read_as_dnf_reads_them(text: str, uris: list[str]) -> None:
    assert [one.uri for one in rpmrepos.parse_repos({"/etc/yum.repos.d/x.repo": text})] == uris


def test_the_alternatives_of_rhel_are_read_from_their_file(tmp_path: Path) -> None:
    (tmp_path / "cuda").write_text(
        "manual\n/usr/local/cuda\n\n/usr/local/cuda-12.9\n129\n/usr/local/cuda-13.0\n130\n"
    )
    (tmp_path / "link").symlink_to("/usr/local/cuda-12.9")
    text = QUERY.replace("/var/lib/alternatives/$GROUP", str(tmp_path / "cuda"))
    text = text.replace("/etc/alternatives/$GROUP", str(tmp_path / "link"))
    # RHEL's update-alternatives does not know --query.
    (tmp_path / "update-alternatives").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "update-alternatives").chmod(0o755)
    script = f"PATH={tmp_path}:$PATH\n{text}cuda_query"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert alternatives.parse_query(said) == alternatives.Group(
        "/usr/local/cuda",
        value="/usr/local/cuda-12.9",
        choices=("/usr/local/cuda-12.9", "/usr/local/cuda-13.0"),
    )
