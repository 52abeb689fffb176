"""The driver on Debian 12 and 13 with real apt, dpkg, dkms and holds; modules and GPUs are simulated.

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
from labnodes import LabFactory

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: docs/states.md is made from it.
PROVES = {
    "driver": ("simulated node", "debian12", "debian13"),
}

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
OPEN, PROPRIETARY = "nvidia-kernel-open-dkms", "nvidia-kernel-dkms"


class Driver:
    """One node of a lab, and a policy for its driver."""

    def __init__(self, lab: Lab, node: Node, folder: Path) -> None:
        self.lab, self.node, self.folder = lab, node, folder
        self.policy = POLICY

    def words(self, verb: str, parameters: str) -> list[str]:
        path = self.folder / "policy.py"
        path.write_text(self.policy.replace("{}", parameters))
        return [verb, str(path), "-i", str(self.lab.inventory), "-l", self.node.name, "-o", "json"]

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

    def is_whole(self, version: str, dkms: str = OPEN) -> None:
        """One matched set, held, built for every kernel, loaded, and used."""
        versions = self.versions()
        assert set(versions.values()) == {f"{version}-1"}, versions
        assert {*SET, dkms} <= set(versions)
        assert not {OPEN, PROPRIETARY} - {dkms} & set(versions)
        assert set(versions) <= set(self.said("apt-mark showhold").split())
        assert set(self.modules().values()) == {version}
        assert self.said("cat /run/gpustate-lab/sys/module/nvidia/version") == version
        library = self.said("readlink /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
        assert library == f"libnvidia-ml.so.{version}"
        query = "nvidia-smi --query-gpu=driver_version,persistence_mode --format=csv,noheader"
        assert set(self.said(query).splitlines()) == {f"{version}, Enabled"}
        assert self.said("dpkg --audit") == ""


@pytest.fixture
def on12(lab: Lab, node12: Node, tmp_path: Path) -> Driver:
    return Driver(lab, node12, tmp_path)


@pytest.fixture
def on13(lab: Lab, node13: Node, tmp_path: Path) -> Driver:
    return Driver(lab, node13, tmp_path)


def test_a_driver_is_installed_upgraded_downgraded_switched_and_taken_away(on12: Driver) -> None:
    before = on12.said("dpkg-query -W -f '${Package}\\n'; find /etc -type f | sort")
    # A plan names the driver although the repository is not there yet, and leaves nothing behind.
    lists = "ls -A /etc/apt/sources.list.d /var/lib/apt/lists /tmp | sort"
    files = on12.said(lists)
    (row,) = gpustate(*on12.words("plan", "branch=580"), code=0).document["nodes"]
    driver = next(state for state in row["states"] if state["state"] == "driver")
    assert driver["outcome"] == "known after"
    assert driver["notes"] == [
        "will install driver 580.178.04 with open kernel modules, built here"
    ]
    assert on12.said(lists) == files
    on12.apply("version='580.65.06'")
    on12.is_whole("580.65.06")
    again = on12.apply("version='580.65.06'")
    assert again.document["summary"].split()[2] == "changed=0"

    daemon = on12.said("systemctl show -p MainPID nvidia-persistenced")
    on12.apply("branch=595")
    on12.is_whole("595.91.07")
    assert on12.said("systemctl show -p MainPID nvidia-persistenced") != daemon
    on12.apply("branch=570, module_type='proprietary'")
    on12.is_whole("570.211.01", PROPRIETARY)
    assert on12.said("modinfo -F license nvidia") == "NVIDIA"

    on12.remove("branch=570")
    assert on12.versions() == {}
    assert on12.said("apt-mark showhold") == ""
    assert on12.said("cat /run/gpustate-lab/proc/modules | grep nvidia || :") == ""
    after = on12.said("dpkg-query -W -f '${Package}\\n'; find /etc -type f | sort")
    # Kernel headers and what builds modules stay: other modules are built with them.
    new = set(after.splitlines()) - set(before.splitlines())
    assert {line for line in new if "nvidia" in line or "gpustate" in line} == set()


def test_nothing_else_moves_the_set(on13: Driver) -> None:
    on13.apply("version='580.65.06'")
    assert "595.91.07-1" in on13.said("apt-cache madison libcuda1")
    on13.said("apt-get -qq -y dist-upgrade; apt-get -qq -y autoremove")
    on13.is_whole("580.65.06")
    refused = on13.node.run("apt-get -y install libcuda1=595.91.07-1", check=False)
    assert refused.returncode != 0
    on13.is_whole("580.65.06")


def test_unattended_upgrades_and_needrestart_move_others_and_leave_the_set_alone(
    lab_factory: LabFactory, tmp_path: Path
) -> None:
    """The real two of Debian, told to take whatever any repository offers and to restart by themselves."""
    lab = lab_factory(LabSpec(nodes=1, images=("debian13-runtimes",), gpus=("2xH100",)))
    on = Driver(lab, lab.nodes[0], tmp_path)
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
def test_power_loss_inside_dpkg_converges(on13: Driver) -> None:
    on13.apply("version='580.65.06'")
    words = [GPUSTATE, *on13.words("apply", "version='580.178.04'"), "--yes"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 60
        # Half of the set is unpacked at this point.
        torn = "dpkg-query -W -f '${db:Status-Status} ' '*nvidia*' libcuda1 | grep -q 'unpacked\\|half-'"
        while on13.node.run(torn, check=False).returncode != 0:
            assert time.monotonic() < deadline, "dpkg never began"
            assert run.poll() is None, "the apply ended too early"
        on13.node.kill()
        run.wait(timeout=120)
    on13.node.boot()
    assert on13.said("dpkg --audit") != ""
    on13.apply("version='580.178.04'")
    on13.is_whole("580.178.04")


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


def test_a_failed_build_names_the_error_and_another_version_can_replace_it(on12: Driver) -> None:
    on12.apply("version='580.65.06'")
    on12.node.fault("dkms-build", on=True)
    failed = on12.apply("version='595.91.07'", code=1)
    assert "error: too few arguments to function 'nv_pin_user_pages'" in failed.out
    assert on12.said("dpkg --audit") != ""
    on12.node.fault("dkms-build", on=False)
    on12.apply("version='580.178.04'")
    on12.is_whole("580.178.04")


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
    on = Driver(lab, lab.nodes[0], tmp_path)
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


def test_a_kernel_that_arrives_without_a_module_is_built_before_it_boots(on12: Driver) -> None:
    on12.apply("version='580.65.06'")
    kernel = os.uname().release
    on12.said(f"dkms remove nvidia/580.65.06 -k {kernel}")
    assert on12.modules().get(kernel) != "580.65.06"
    ran = on12.apply("version='580.65.06'")
    assert on12.state(ran)["outcome"] == "changed"
    on12.is_whole("580.65.06")


def test_a_process_on_a_gpu_is_named_and_nothing_is_touched(on13: Driver) -> None:
    on13.apply("version='580.65.06'")
    hold = "import os, time; os.open('/dev/nvidia0', os.O_PATH); time.sleep(600)"
    on13.said(f'systemd-run -q --unit=training python3 -c "{hold}"')
    pid = on13.said("systemctl show -p MainPID --value training")
    for _ in range(50):
        if on13.said(f"ls -l /proc/{pid}/fd | grep -c /dev/nvidia0 || :") == "1":
            break
        time.sleep(0.1)
    refused = on13.apply("version='595.91.07'", code=5)
    assert f"pid {pid} (python3, user root, unit training.service)" in refused.out
    on13.is_whole("580.65.06")


#: What NVIDIA's .run installer leaves, with the exit code of the real one: 0 whatever became of it.
UNINSTALLER = """#!/bin/sh
[ ! -e /var/lib/nvidia/stuck ] || { echo "Uninstallation failed."; exit 0; }
rm -rf /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.14 /var/lib/nvidia
rm "$0"
"""


def test_the_driver_of_a_run_file_is_refused_or_taken_away_with_its_own_program(
    on13: Driver,
) -> None:
    (on13.node.root / "usr/bin/nvidia-uninstall").write_text(UNINSTALLER)
    on13.said(
        "chmod 755 /usr/bin/nvidia-uninstall; mkdir -p /var/lib/nvidia; touch /var/lib/nvidia/stuck; "
        "cd /usr/lib/x86_64-linux-gnu; echo >libnvidia-ml.so.550.54.14; ln -s libnvidia-ml.so.550.54.14 libnvidia-ml.so.1"
    )
    assert "set leftovers = 'uninstall'" in on13.apply("version='580.65.06'", code=5).out
    asked = "version='580.65.06', leftovers='uninstall'"
    failed = on13.apply(asked, code=1)
    assert "left itself behind" in failed.out
    assert on13.versions() == {}
    on13.said("rm /var/lib/nvidia/stuck")
    on13.apply(asked)
    on13.is_whole("580.65.06")
    assert on13.apply(asked).document["summary"].split()[2] == "changed=0"


def test_parameters_reach_the_loaded_module(on12: Driver) -> None:
    live = "grep RmProfilingAdminOnly /run/gpustate-lab/proc/driver/nvidia/params"
    on12.apply("version='580.65.06'")
    assert on12.said(live).endswith("1")
    on12.apply("version='580.65.06', parameters={'NVreg_RestrictProfilingToAdminUsers': 0}")
    assert on12.said(live).endswith("0")
