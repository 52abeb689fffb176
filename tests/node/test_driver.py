"""The driver on Debian 12 and 13 and on nodes that answer as Ubuntu, from NVIDIA's repository: real apt, dpkg, dkms and
holds; modules and GPUs are simulated.

Looked at with the tools of the distribution (dpkg, apt-mark, apt, dkms, modinfo, systemctl), not
with the probe.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from commands import GPUSTATE, Ran, gpustate
from labnodes import LabFactory, also_on_ubuntu, family, first_ubuntu_only, vendor_revision

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"driver": ("simulated node", "debian12", "debian13", "ubuntu")}

POLICY = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceModeEnabled
from gpustate.states.repository import DriverRepository, ToolkitRepository

policy = Policy(
    NouveauBlacklisted(), DriverRepository(), DriverInstalled({}), PersistenceModeEnabled(), ToolkitRepository()
)
"""
SET = ("libcuda1", "libnvidia-ml1", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-smi")
OPEN, PROPRIETARY = "open", "proprietary"
DKMS = {OPEN: "nvidia-kernel-open-dkms", PROPRIETARY: "nvidia-kernel-dkms"}


def names(image: str, branch: int) -> tuple[set[str], dict[str, str]]:
    """What NVIDIA's packages are called: the set, and what builds modules of a type."""
    if family(image) != "ubuntu":
        return set(SET), {**DKMS}
    b = f"-{branch}" if branch < 590 else ""
    parts = {f"{name}{b}" for name in ("libnvidia-compute", "nvidia-utils", "nvidia-compute-utils")}
    return {*parts, "nvidia-persistenced"}, {
        OPEN: f"nvidia-dkms{b}-open",
        PROPRIETARY: f"nvidia-dkms{b}",
    }


class Driver:
    """One node of a lab, and a policy for its driver."""

    def __init__(self, lab: Lab, node: Node, folder: Path, image: str) -> None:
        self.lab, self.node, self.folder, self.image = lab, node, folder, image
        self.policy, self.inventory = POLICY, lab.inventory

    def full(self, version: str) -> str:
        """Version of the packages of a driver."""
        later = version >= "590" and family(self.image) == "ubuntu"
        return version + ("-1ubuntu1" if later else vendor_revision(self.image))

    def library(self, version: str) -> str:
        """The package with the library for CUDA."""
        (found,) = (
            {"libcuda1"}
            if self.image.startswith("debian")
            else {
                name
                for name in names(self.image, int(version[:3]))[0]
                if "libnvidia-compute" in name
            }
        )
        return found

    def words(self, verb: str, parameters: str) -> list[str]:
        path = self.folder / "policy.py"
        path.write_text(self.policy.replace("{}", parameters))
        return [verb, str(path), "-i", str(self.inventory), "-l", self.node.name, "-o", "json"]

    def apply(self, parameters: str, code: int = 0) -> Ran:
        return gpustate(*self.words("apply", parameters), "--yes", code=code)

    def remove(self, parameters: str) -> Ran:
        return gpustate(*self.words("remove", parameters), "--yes", code=0)

    def state(self, ran: Ran, name: str = "driver") -> dict[str, object]:
        states = ran.node(self.node.name)["states"]
        return next(row for row in states if row["state"] == name)

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=120).stdout.strip()

    def versions(self) -> dict[str, str]:
        """Version of every installed package of the driver, as dpkg has it."""
        listing = self.said(
            "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' "
            "'*nvidia*' 'libcuda*' 'cuda-drivers*' 2>/dev/null || :"
        )
        rows = [line.split() for line in listing.splitlines()]
        return {
            row[1]: row[2] for row in rows if row[0] == "installed" and "container" not in row[1]
        }

    def modules(self) -> dict[str, str]:
        """Version of the nvidia module on disk for each kernel in /boot, as modinfo has it."""
        listing = self.said(
            "for i in /boot/vmlinuz-*; do k=${i#/boot/vmlinuz-}; "
            'echo "$k $(modinfo -k $k -F version nvidia 2>/dev/null)"; done'
        )
        return {line.partition(" ")[0]: line.partition(" ")[2] for line in listing.splitlines()}

    def is_whole(self, version: str, kind: str = OPEN) -> None:
        """One matched set, held, built for every kernel, loaded, and used."""
        versions = self.versions()
        wanted, dkms = names(self.image, int(version[:3]))
        own = {name: full for name, full in versions.items() if "fabricmanager" not in name}
        assert set(own.values()) == {self.full(version)}, versions
        assert {*wanted, dkms.pop(kind)} <= set(versions)
        assert not {*dkms.values()} & set(versions)
        assert set(versions) <= set(self.said("apt-mark showhold").split())
        assert set(self.modules().values()) == {version}
        assert self.said("cat /run/gpustate-lab/sys/module/nvidia/version") == version
        library = self.said("readlink /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
        assert library == f"libnvidia-ml.so.{version}"
        query = "nvidia-smi --query-gpu=driver_version,persistence_mode --format=csv,noheader"
        assert set(self.said(query).splitlines()) == {f"{version}, Enabled"}
        assert self.said("dpkg --audit") == ""


def on_image(image: str) -> pytest.MarkDecorator:
    """The only ``image`` of a test."""
    return pytest.mark.parametrize("image", [image], scope="module")


@pytest.fixture
def on(home: Lab, node: Node, image: str, tmp_path: Path) -> Driver:
    return Driver(home, node, tmp_path, image)


@pytest.fixture
def on13(lab: Lab, node13: Node, tmp_path: Path) -> Driver:
    return Driver(lab, node13, tmp_path, "debian13")


@on_image("debian12")
def test_a_driver_is_installed_upgraded_downgraded_switched_and_taken_away(on: Driver) -> None:
    before = on.said("dpkg-query -W -f '${Package}\\n'; find /etc -type f | sort")
    # A plan names the driver although the repository is not there yet, and leaves nothing behind.
    lists = "ls -A /etc/apt/sources.list.d /var/lib/apt/lists /tmp | sort"
    files = on.said(lists)
    (row,) = gpustate(*on.words("plan", "branch=580"), code=0).document["nodes"]
    driver = next(state for state in row["states"] if state["state"] == "driver")
    assert driver["outcome"] == "known after"
    assert driver["notes"] == [
        "will install driver 580.178.04 with open kernel modules, built on the node with DKMS"
    ]
    assert on.said(lists) == files
    on.apply("version='580.65.06'")
    on.is_whole("580.65.06")
    again = on.apply("version='580.65.06'")
    assert again.document["summary"].split()[2] == "changed=0"

    daemon = on.said("systemctl show -p MainPID nvidia-persistenced")
    on.apply("branch=595")
    on.is_whole("595.91.07")
    assert on.said("systemctl show -p MainPID nvidia-persistenced") != daemon
    on.apply("branch=570, module_type='proprietary'")
    on.is_whole("570.211.01", PROPRIETARY)
    assert on.said("modinfo -F license nvidia") == "NVIDIA"

    on.remove("branch=570")
    assert on.versions() == {}
    assert on.said("apt-mark showhold") == ""
    assert on.said("cat /run/gpustate-lab/proc/modules | grep nvidia || :") == ""
    after = on.said("dpkg-query -W -f '${Package}\\n'; find /etc -type f | sort")
    # Kernel headers and what builds modules stay: other modules are built with them.
    new = set(after.splitlines()) - set(before.splitlines())
    assert {line for line in new if "nvidia" in line or "gpustate" in line} == set()


I386 = "dpkg --add-architecture i386; apt-get -q update; apt-get install -y -q --allow-change-held-packages"


@also_on_ubuntu("debian12")
def test_a_copy_for_i386_moves_with_the_set(on: Driver) -> None:
    """As Steam, Wine and old CUDA programs bring it: of the same version, held with the set, and never a change for ever."""
    on.apply("version='580.65.06'")
    on.said(f"{I386} {on.library('580.65.06')}:i386={on.full('580.65.06')}")
    for wanted in ("580.65.06", "595.91.07", "580.65.06"):
        on.apply(f"version='{wanted}'")
        on.is_whole(wanted)
        copy = f"{on.library(wanted)}:i386"
        assert on.said(f"dpkg-query -W -f '${{Version}}' {copy}") == on.full(wanted)
        assert copy in on.said("apt-mark showhold").split()
        again = on.apply(f"version='{wanted}'")
        assert again.document["summary"].split()[2] == "changed=0"
    on.remove("branch=580")
    assert (
        on.said(
            "dpkg-query -W -f '${db:Status-Abbrev} ${Package}:${Architecture}\\n' | grep '^i.*:i386' || :"
        )
        == ""
    )


@pytest.mark.parametrize("guide", [False, True], ids=["fresh", "as NVIDIA's guide has it"])
@first_ubuntu_only()
def test_nvidias_repository_without_packages_of_tools(on: Driver, guide: bool) -> None:
    """From 580.95.05 on, some sources say: then what there is makes the set, and the guide's two packages are one."""
    text = on.inventory.read_text()
    on.inventory = on.folder / "inventory.yml"
    on.inventory.write_text(text.replace(f"mirror/{on.image}", f"cuda/repos/{on.image}/x86_64"))
    if guide:
        on.apply("load=False, branch=595")
        on.said(
            "apt-get install -y -q --allow-change-held-packages libnvidia-compute nvidia-dkms-open"
        )
    for branch, suffix in ((595, ""), (580, "-580")):
        on.apply(f"branch={branch}")
        versions = on.versions()
        assert f"libnvidia-compute{suffix}" in versions
        assert f"nvidia-dkms{suffix}-open" in versions
        assert not [name for name in versions if "-utils" in name]
        assert on.said(
            "nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u"
        ).startswith(str(branch))
        again = on.apply(f"branch={branch}")
        assert again.document["summary"].split()[2] == "changed=0"


@also_on_ubuntu("debian13")
def test_nothing_else_moves_the_set(on: Driver) -> None:
    on.apply("version='580.65.06'")
    library = on.library("580.65.06")
    wanted = "595.91.07" if library == "libcuda1" else "580.178.04"
    offered = on.said(f"apt-cache madison {library} | cut -d'|' -f2").split()
    newer = next(one for one in offered if one.startswith(f"{wanted}-"))
    on.said("apt-get -qq -y dist-upgrade; apt-get -qq -y autoremove")
    on.is_whole("580.65.06")
    refused = on.node.run(f"apt-get -y install {library}={newer}", check=False)
    assert refused.returncode != 0
    on.is_whole("580.65.06")


@pytest.mark.long
def test_unattended_upgrades_and_needrestart_move_others_and_leave_the_set_alone(
    lab_factory: LabFactory, tmp_path: Path
) -> None:
    """The real two of Debian, told to take whatever any repository offers and to restart by themselves."""
    lab = lab_factory(LabSpec(nodes=1, images=("debian13-runtimes",), gpus=("2xH100",)))
    on = Driver(lab, lab.nodes[0], tmp_path, "debian13")
    on.apply("version='580.65.06'")
    other = "dpkg-query -W -f '${Version}' nvidia-container-toolkit-base"
    on.said("apt-get -q -y install nvidia-container-toolkit-base=1.17.8-1")
    on.said(
        "printf '%s\\n' 'Unattended-Upgrade::Origins-Pattern { \"origin=*\"; };' "
        "'Unattended-Upgrade::MinimalSteps \"false\";' >/etc/apt/apt.conf.d/99everything"
    )
    pids = "systemctl show -p MainPID nvidia-persistenced containerd docker"
    before = on.said(pids)
    said = on.said("NEEDRESTART_MODE=a unattended-upgrade -v 2>&1; needrestart -r a -b 2>&1")
    assert "nvidia-container-toolkit-base" in said
    assert on.said(other) == "1.20.1-1"
    on.is_whole("580.65.06")
    assert on.said(pids) == before


@pytest.mark.proof
@on_image("debian13")
def test_power_loss_inside_dpkg_converges(on: Driver) -> None:
    on.apply("version='580.65.06'")
    words = [GPUSTATE, *on.words("apply", "version='580.178.04'"), "--yes"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 60
        # Half of the set is unpacked at this point.
        torn = "dpkg-query -W -f '${db:Status-Status} ' '*nvidia*' libcuda1 | grep -q 'unpacked\\|half-'"
        while on.node.run(torn, check=False).returncode != 0:
            assert time.monotonic() < deadline, "dpkg never began"
            assert run.poll() is None, "the apply ended too early"
        on.node.kill()
        run.wait(timeout=120)
    on.node.boot()
    assert on.said("dpkg --audit") != ""
    on.apply("version='580.178.04'")
    on.is_whole("580.178.04")


@pytest.mark.proof
@pytest.mark.parametrize("half", ["", "module"], ids=["nothing built", "one module copied"])
def test_a_build_that_was_killed_half_way_is_made_again(on13: Driver, half: str) -> None:
    on13.apply("version='580.65.06'")
    # What DKMS leaves when it is killed after its folder is made and before the module is whole.
    on13.said(
        "cd /var/lib/dkms/nvidia && rm kernel-5.10.0-28-lab-* && cd 580.65.06/5.10.0-28-lab/x86_64 && "
        f"rm -r {'module/nvidia.ko*' if half else 'module'} && "
        "rm -r /lib/modules/5.10.0-28-lab/updates/dkms && depmod 5.10.0-28-lab"
    )
    assert on13.modules()["5.10.0-28-lab"] == ""
    on13.apply("version='580.65.06'")
    on13.is_whole("580.65.06")


@pytest.mark.long
@on_image("debian12")
def test_a_failed_build_names_the_error_and_another_version_can_replace_it(on: Driver) -> None:
    on.apply("version='580.65.06'")
    on.node.fault("dkms-build", on=True)
    failed = on.apply("version='595.91.07'", code=1)
    assert "error: too few arguments to function 'nv_pin_user_pages'" in failed.out
    assert on.said("dpkg --audit") != ""
    on.node.fault("dkms-build", on=False)
    on.apply("version='580.178.04'")
    on.is_whole("580.178.04")


#: A DKMS that builds no module of one version.
CHOOSY = """#!/bin/sh
case "$*" in build*595.91*|install*595.91*) echo "error: this compiler is too old" >&2; exit 10 ;; esac
exec /usr/sbin/dkms.real "$@"
"""


@pytest.mark.proof
def test_what_a_failed_upgrade_has_stopped_runs_again_or_is_named(
    lab_factory: LabFactory, tmp_path: Path
) -> None:
    lab = lab_factory(LabSpec.parse(nodes=1, image="debian12", gpus="8xH100"))
    on = Driver(lab, lab.nodes[0], tmp_path, "debian12")
    fabric = "version='580.65.06'), get('fabric-manager')("
    path = "from gpustate.registry import get\n"
    on.policy = path + POLICY
    on.apply(fabric)
    units = ("nvidia-fabricmanager", "nvidia-persistenced")
    active = f"systemctl is-active {' '.join(units)}"
    assert on.said(active).split() == ["active", "active"]
    on.said("mv /usr/sbin/dkms /usr/sbin/dkms.real")
    dkms = on.node.root / "usr/sbin/dkms"
    dkms.write_text(CHOOSY)
    dkms.chmod(0o755)
    back = on.apply(fabric.replace("580.65.06", "595.91.07"), code=7)
    assert "this compiler is too old" in back.out
    assert set(on.versions().values()) == {"580.65.06-1"}
    assert on.said(active).split() == ["active", "active"]
    # One that cannot start is named.
    on.said("mkdir -p /etc/systemd/system/nvidia-fabricmanager.service.d")
    drop_in = on.node.root / "etc/systemd/system/nvidia-fabricmanager.service.d/x.conf"
    drop_in.write_text("[Service]\nExecStartPre=/bin/false\n")
    on.said("systemctl daemon-reload")
    named = on.apply(fabric.replace("580.65.06", "595.91.07"), code=7)
    assert "ran before and is stopped now: nvidia-fabricmanager.service" in named.out


@pytest.mark.long
@on_image("debian12")
def test_a_kernel_that_arrives_without_a_module_is_built_before_it_boots(on: Driver) -> None:
    on.apply("version='580.65.06'")
    kernel = os.uname().release
    on.said(f"dkms remove nvidia/580.65.06 -k {kernel}")
    assert on.modules().get(kernel) != "580.65.06"
    ran = on.apply("version='580.65.06'")
    assert on.state(ran)["outcome"] == "changed"
    on.is_whole("580.65.06")


@pytest.mark.long
@on_image("debian13")
def test_a_process_on_a_gpu_is_named_and_nothing_is_touched(on: Driver) -> None:
    on.apply("version='580.65.06'")
    hold = "import os, time; os.open('/dev/nvidia0', os.O_PATH); time.sleep(600)"
    on.said(f'systemd-run -q --unit=training python3 -c "{hold}"')
    pid = on.said("systemctl show -p MainPID --value training")
    for _ in range(50):
        if on.said(f"ls -l /proc/{pid}/fd | grep -c /dev/nvidia0 || :") == "1":
            break
        time.sleep(0.1)
    refused = on.apply("version='595.91.07'", code=5)
    assert f"pid {pid} (python3, user root, unit training.service)" in refused.out
    on.is_whole("580.65.06")


#: What NVIDIA's .run installer leaves, with the exit code of the real one: 0 whatever became of it.
UNINSTALLER = """#!/bin/sh
[ ! -e /var/lib/nvidia/stuck ] || { echo "Uninstallation failed."; exit 0; }
rm -rf /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.14 /var/lib/nvidia
rm "$0"
"""


@pytest.mark.long
@on_image("debian13")
def test_the_driver_of_a_run_file_is_refused_or_taken_away_with_its_own_program(on: Driver) -> None:
    (on.node.root / "usr/bin/nvidia-uninstall").write_text(UNINSTALLER)
    on.said(
        "chmod 755 /usr/bin/nvidia-uninstall; mkdir -p /var/lib/nvidia; touch /var/lib/nvidia/stuck; "
        "cd /usr/lib/x86_64-linux-gnu; echo >libnvidia-ml.so.550.54.14; ln -s libnvidia-ml.so.550.54.14 libnvidia-ml.so.1"
    )
    assert "set leftovers: uninstall" in on.apply("version='580.65.06'", code=5).out
    asked = "version='580.65.06', leftovers='uninstall'"
    failed = on.apply(asked, code=1)
    assert "did not remove the driver" in failed.out
    assert on.versions() == {}
    on.said("rm /var/lib/nvidia/stuck")
    on.apply(asked)
    on.is_whole("580.65.06")
    assert on.apply(asked).document["summary"].split()[2] == "changed=0"


@also_on_ubuntu("debian12")
def test_parameters_reach_the_loaded_module(on: Driver) -> None:
    live = "grep RmProfilingAdminOnly /run/gpustate-lab/proc/driver/nvidia/params"
    on.apply("version='580.65.06'")
    assert on.said(live).endswith("1")
    on.apply("version='580.65.06', parameters={'NVreg_RestrictProfilingToAdminUsers': 0}")
    assert on.said(live).endswith("0")
