"""What moves packages on Ubuntu beside gpustate: unattended-upgrades and needrestart as Ubuntu configures them, phased
updates, an ended branch, and ubuntu-drivers.

Real: apt, dpkg, DKMS, unattended-upgrades, needrestart, systemd. Simulated: that the root is Ubuntu's, its archive
(docs/lab.md), kernels and GPUs. What ubuntu-drivers runs was recorded on such a node. The policy of ``ubuntunodes`` has
the states driver-repository (with the archive) and driver.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ubuntunodes import UbuntuNode

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.sim.ubuntu_archive import OTHER

pytestmark = pytest.mark.long

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "driver": ("simulated node", "ubuntu"),
    "driver-repository": ("simulated node", "ubuntu"),
    "kernel": ("simulated node", "ubuntu"),
}
#: What ``ubuntu-drivers install`` with these arguments ran on such a node with eight H100, and nothing else that
#: counts: ubuntu-drivers-common d3d7856 (2026-08-11) of github.com/canonical, 2026-11-27.
UBUNTU_DRIVERS = {
    "--gpgpu nvidia:580-server-open": (
        "apt-get install -o DPkg::options::=--force-confnew --no-install-recommends -y"
        " nvidia-headless-no-dkms-580-server-open linux-modules-nvidia-580-server-open-generic"
    ),
    "--gpgpu nvidia:580-server": (
        "apt-get install -o DPkg::options::=--force-confnew --no-install-recommends -y"
        " nvidia-headless-no-dkms-580-server linux-modules-nvidia-580-server-generic"
    ),
    "--gpgpu": (
        "apt-get install -o DPkg::options::=--force-confnew --no-install-recommends -y"
        " nvidia-headless-no-dkms-595-server-open linux-modules-nvidia-595-server-open-generic"
    ),
    "": (
        "apt-get install -o DPkg::options::=--force-confnew -y"
        " nvidia-driver-580-open linux-modules-nvidia-580-open-generic"
    ),
}


def follow_kernels(on: UbuntuNode) -> None:
    """Install what brings new kernels, at the release's first kernel."""
    names = ("linux-image-generic", "linux-headers-generic", "linux-generic")
    version = re.sub(r"-generic$", "", on.release.kernels[0])
    full = on.said(
        f"apt-get -q update >&2; apt-cache madison linux-generic | grep -o '{version}[^ ]*'"
    )
    wanted = " ".join(f"{name}={full.split()[0]}" for name in names)
    on.said(f"DEBIAN_FRONTEND=noninteractive apt-get -q -y install {wanted} {OTHER}=1")


def upgrade_unattended(on: UbuntuNode) -> str:
    """Run unattended-upgrades, and needrestart after it, as a timer would; the version of what may move."""
    on.said("apt-get -q update; unattended-upgrade --debug")
    return on.said(f"dpkg-query -W -f '${{Version}}' {OTHER} 2>/dev/null || :")


@pytest.fixture
def on(home: Lab, node: Node, image: str, tmp_path: Path) -> UbuntuNode:
    return UbuntuNode(home, node, tmp_path, image)


def on_image(image: str) -> pytest.MarkDecorator:
    """The ``image`` of a test."""
    param = pytest.param(image, marks=pytest.mark.ubuntu(True))
    return pytest.mark.parametrize("image", [param], scope="module")


@pytest.mark.proof
@on_image("ubuntu2404")
@pytest.mark.parametrize("how", ["signed", "dkms"])
def test_unattended_upgrades_move_others_and_no_kernel_comes_without_its_module(
    on: UbuntuNode, how: str
) -> None:
    old, new = on.release.kernels
    follow_kernels(on)
    # Signed modules come one kernel at a time, so kernels are held; DKMS builds for whatever comes.
    driver = f"version='580.173.02', precompiled={how == 'signed'}"
    kernel = f", KernelPinned(policy='{'hold' if how == 'signed' else 'follow'}')"
    on.run("apply", driver, kernel)
    on.is_whole("580.173.02")
    # As `pro attach` does.
    esm = on.said("sed -n 's,^URIs: ,,p' /etc/apt/sources.list.d/ubuntu.sources | head -n 1")
    esm = esm.replace("/ubuntu/", "/esm/", 1) if esm.count("/ubuntu/") == 1 else esm
    on.said(
        f"printf 'Types: deb\\nURIs: {esm}\\nSuites: {on.release.codename}-infra-security\\nComponents: main\\n"
        "Signed-By: /usr/share/keyrings/gpustate-lab.asc\\n' >/etc/apt/sources.list.d/ubuntu-esm-infra.sources"
    )
    pids = "systemctl show -p MainPID nvidia-persistenced containerd"
    before = on.said(pids)
    assert upgrade_unattended(on) == "1.1+esm1"
    assert "580.173.02-0ubuntu0.24.04.1+esm1" in on.said(
        "apt-cache madison nvidia-utils-580-server"
    )
    assert (new in on.modules()) == (how == "dkms")
    on.is_whole("580.173.02")
    assert on.said(pids) == before
    if how == "dkms":
        # The headers of the old kernel went with the package that had brought them; the next driver needs them.
        assert f"kernel headers: {old}: no -> yes" in on.run("drift", driver, kernel, code=2).out
        on.run("apply", driver, kernel)
    on.run("drift", driver, kernel)
    # Whatever else a person lets apt do.
    on.said("apt-get -q -y dist-upgrade; apt-get -q -y autoremove")
    on.is_whole("580.173.02")
    assert old in on.modules()


@pytest.mark.proof
@on_image("ubuntu2404")
def test_a_kernel_that_came_without_its_signed_module_is_told_and_gets_it(on: UbuntuNode) -> None:
    _, new = on.release.kernels
    follow_kernels(on)
    driver = "version='580.173.02', precompiled=True"
    on.run("apply", driver)
    upgrade_unattended(on)
    assert on.modules()[new] == ""
    drifted = on.run("drift", driver, code=2)
    assert new in drifted.out
    assert "add the state kernel" in drifted.out
    on.run("apply", driver)
    on.is_whole("580.173.02")
    assert on.modules()[new] == "580.173.02"


@on_image("ubuntu2404")
def test_a_plan_of_a_fresh_node_names_the_driver_of_the_archive(on: UbuntuNode) -> None:
    folders = "ls -A /etc/apt/sources.list.d /etc/apt/preferences.d /var/lib/apt/lists /tmp | sort"
    on.said("rm -rf /var/lib/apt/lists/*")
    before = on.said(folders)
    planned = on.run("plan", "branch=580, precompiled=True").out
    assert "will install driver 580.178.04 with open kernel modules, prebuilt" in planned
    refused = on.run("plan", "branch=560", code=5).out
    assert " has no branch 560; it has branch" in refused
    assert on.said(folders) == before


@on_image("ubuntu2404")
def test_a_phased_update_waits_unless_it_is_asked_for(on: UbuntuNode) -> None:
    on.said("echo 'APT::Get::Never-Include-Phased-Updates \"true\";' >/etc/apt/apt.conf.d/99phased")
    on.said(f"apt-get -q update >&2; apt-get -q -y install {OTHER}=1.1")
    on.said("apt-get -q -y upgrade")
    assert on.said(f"dpkg-query -W -f '${{Version}}' {OTHER}") == "1.1"
    on.run("apply", "version='580.178.04', precompiled=True")
    on.is_whole("580.178.04")


@pytest.mark.proof
@on_image("ubuntu2404")
def test_a_branch_that_ended_keeps_its_driver_until_the_next_one_is_asked_for(
    on: UbuntuNode,
) -> None:
    last, empty = (f"590.48.01-0ubuntu0.{on.release.number}.{end}" for end in (4, 5))
    refused = on.run("plan", "branch=590, precompiled=True", code=5).out
    assert "branch 590 has ended in Ubuntu's archive" in refused
    assert "set branch: 595, or version: 590.48.01 for its last driver" in refused
    on.run("apply", "version='590.48.01', precompiled=True")
    assert empty in on.said("apt-cache policy nvidia-utils-590-server")
    assert set(on.versions().values()) == {last}
    assert set(on.modules().values()) == {"590.48.01"}
    assert "changed=0" in on.run("apply", "branch=590, precompiled=True").out
    upgrade_unattended(on)
    on.said("apt-get -q -y dist-upgrade")
    assert set(on.versions().values()) == {last}
    # Somebody lets apt have its way: the empty packages install the next branch, without its modules.
    on.said("rm /etc/apt/preferences.d/gpustate-*; apt-mark unhold $(apt-mark showhold)")
    on.said("DEBIAN_FRONTEND=noninteractive apt-get -q -y dist-upgrade")
    assert on.versions()["nvidia-utils-590-server"] == empty
    assert on.versions()["nvidia-utils-595-server"].startswith("595.84")
    on.run("apply", "branch=595, precompiled=True")
    on.is_whole("595.84")


@on_image("ubuntu2404")
@pytest.mark.parametrize(
    "words", ["--gpgpu nvidia:580-server-open", "--gpgpu nvidia:580-server", ""]
)
def test_a_driver_of_ubuntu_drivers_is_made_whole(on: UbuntuNode, words: str) -> None:
    follow_kernels(on)
    on.said(f"DEBIAN_FRONTEND=noninteractive {UBUNTU_DRIVERS[words]}")
    before = on.versions()
    assert before
    on.run("apply", "branch=580, precompiled=True")
    on.is_whole("580.178.04")
    after = on.versions()
    assert "nvidia-utils-580-server" in after
    if words == "--gpgpu nvidia:580-server-open":
        assert before.items() <= after.items()
    assert "changed=0" in on.run("apply", "branch=580, precompiled=True").out


@on_image("ubuntu2404")
def test_ubuntu_drivers_does_not_take_a_driver_away(on: UbuntuNode) -> None:
    follow_kernels(on)
    driver, kernel = "branch=580, precompiled=True", ", KernelPinned(policy='hold')"
    on.run("apply", driver, kernel)
    before = on.versions()
    for line in UBUNTU_DRIVERS.values():
        on.said(f"DEBIAN_FRONTEND=noninteractive {line} || :")
        assert on.versions() == before, line
    on.is_whole("580.178.04")
    # It has installed signed modules of another kernel beside, of the same driver.
    on.run("apply", driver, kernel)
    assert on.versions() == before
    on.run("drift", driver, kernel)


@pytest.mark.proof
@on_image("ubuntu2404")
def test_an_upgrade_without_holds_leaves_every_kernel_its_signed_module(on: UbuntuNode) -> None:
    old, new = on.release.kernels
    follow_kernels(on)
    driver, kernel = "version='580.173.02', precompiled=True", ", KernelPinned(policy='follow')"
    on.run("apply", driver, kernel)
    on.is_whole("580.173.02")

    def upgrade() -> None:
        on.said(
            "apt-mark unhold $(apt-mark showhold) >&2; DEBIAN_FRONTEND=noninteractive apt-get -q -y dist-upgrade"
        )

    upgrade()
    modules = on.modules()
    assert modules.pop(new) == ""
    assert old in modules
    assert set(modules.values()) == {"580.173.02"}
    # The new kernel gets its own package, and what follows kernels is kept back, not taken away.
    on.run("apply", driver, kernel)
    on.is_whole("580.173.02")
    meta = "linux-modules-nvidia-580-server-open-generic"
    build = on.said(
        f"apt-cache show {meta} | awk '/^Version: /{{v=$2}} /^Depends: .*>= 580.173.02/{{print v; exit}}'"
    )
    on.said(f"DEBIAN_FRONTEND=noninteractive apt-get -q -y install {meta}={build}")
    upgrade()
    assert on.said(f"dpkg-query -W -f '${{Version}}' {meta}") == build
    assert set(on.modules().values()) == {"580.173.02"}
    on.run("apply", driver, kernel)
    on.is_whole("580.173.02")
    assert "changed=0" in on.run("apply", driver, kernel).out
    # gpustate itself moves all of it.
    driver = "version='580.178.04', precompiled=True"
    on.run("apply", driver, kernel)
    on.is_whole("580.178.04")
    # A kernel that goes takes its modules along, and that is no drift.
    on.said(
        f"apt-mark unhold $(dpkg-query -W -f '${{Package}}\\n' '*{old}*') >&2;"
        f" DEBIAN_FRONTEND=noninteractive apt-get -q -y purge 'linux-.*-{old}$'"
    )
    assert old not in on.modules()
    on.run("drift", driver, kernel)
    on.run("remove", driver, kernel)
    assert on.said("ls /etc/apt/preferences.d") == ""


@pytest.mark.proof
@on_image("ubuntu2404")
@pytest.mark.parametrize("components", ["main", "main restricted"])
def test_components_that_are_missing_come_from_all_suites(on: UbuntuNode, components: str) -> None:
    on.said(
        f"sed -i 's/^Components:.*/Components: {components}/' /etc/apt/sources.list.d/ubuntu.sources; apt-get -q update"
    )
    more = ", get('fabric-manager')()"
    on.run("apply", "branch=580, precompiled=True", more)
    on.is_whole("580.178.04")
    assert "nvidia-fabricmanager-580" in on.versions()
    added = on.said("cat /etc/apt/sources.list.d/gpustate-driver-repository.sources")
    suites = {
        w for line in added.splitlines() if line.startswith("Suites:") for w in line.split()[1:]
    }
    assert suites == {f"{on.release.codename}{tail}" for tail in ("", "-updates", "-security")}
    assert "changed=0" in on.run("apply", "branch=580, precompiled=True", more).out
    on.run("remove", "branch=580, precompiled=True", more)
    assert on.said("apt-cache policy linux-generic | grep -c http") != "0"
