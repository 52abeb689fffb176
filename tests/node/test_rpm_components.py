"""DCGM, the fabric's services and the modules of GPUDirect on nodes with dnf and with zypper, from bare to removed.

Real: systemd, sshd, dnf with versionlock, zypper, rpm and its scriptlets, DKMS, depmod, signed repodata. Simulated:
the distribution (Rocky 9, SLES 15) on a Debian root, NVIDIA's packages, boards, NVML and what the kernel says to
modules. The driver is not part of this: it is the lab's, put there with dpkg. Looked at with rpm, dnf, zypper,
systemctl and files, not with the probes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from labnodes import LabFactory
from rpmcomponents import DRIVER, world
from rpmnodes import Repository, become, gpustate, versions
from shares import share

from gpustate import ops
from gpustate.ops import owned_packages
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "dcgm": ("simulated node", "rhel", "suse"),
    "dcgm-exporter": ("simulated node", "rhel", "suse"),
    "driver-repository": ("simulated node", "rhel", "suse"),
    "fabric-manager": ("simulated node", "rhel", "suse"),
    "gdrcopy": ("simulated node", "rhel", "suse"),
    "gds": ("simulated node", "rhel", "suse"),
    "imex": ("simulated node", "rhel", "suse"),
    "mps": ("simulated node", "rhel", "suse"),
    "nvlsm": ("simulated node", "rhel", "suse"),
    "ofed": ("simulated node", "rhel", "suse"),
    "peermem": ("simulated node", "rhel", "suse"),
    "persistenced": ("simulated node", "rhel", "suse"),
}
DRIVER_PACKAGES = (
    *("nvidia-kernel-open-dkms", "nvidia-kernel-support", "firmware-nvidia-gsp", "nvidia-smi"),
    *("libnvidia-ml1", "libcuda1", "libnvidia-ptxjitcompiler1", "nvidia-modprobe"),
    *("libnvidia-gpucomp", "libnvidia-nvvm4", "libnvidia-nvvm704"),
)
NIC = {
    "pci_address": "0000:05:00.0",
    "vendor": 0x15B3,
    "device_id": "1021",
    "subsystem_id": "0022",
    "pci_class": "020000",
}
BODY = """
policy = Policy(
    get("driver-repository")(origin="mirror", url="file:///srv/nvidia", key=KEY),
    *(get(name)(**parameters) for name, parameters in {states!r}.items()),
)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return world(tmp_path_factory.mktemp("rpm"))


@pytest.fixture(scope="module")
def rpm_lab(lab_factory: LabFactory, packages: Repository) -> Lab:
    return lab_factory(LabSpec.parse(nodes=2, image="debian12-rpm", gpus="8xB200,4xGB200"))


class Trial:
    """One node that has become one of a distribution and has a driver."""

    def __init__(
        self, lab: Lab, packages: Repository, folder: Path, distribution: str, name: str
    ) -> None:
        self.lab, self.packages, self.folder = lab, packages, folder
        self.node: Node = lab.node(name)
        become(self.node, distribution, packages)
        self.dnf = distribution == "rocky"
        self._driver()

    def _driver(self) -> None:
        """As a person does it; an initramfs has nothing to do with what is tested here."""
        base = self.said("cat /etc/apt/sources.list.d/gpustate-lab-lab.list").split("] ")[1]
        base = base.split("/lab/")[0]
        self.said(
            "printf '#!/bin/sh\n' >/usr/sbin/update-initramfs; "
            f"echo 'deb [trusted=yes] {base}/mirror/debian12/ /' >/etc/apt/sources.list.d/mirror.list; "
            "apt-get -q update -o Dir::Etc::sourcelist=/etc/apt/sources.list.d/mirror.list "
            "-o Dir::Etc::sourceparts=-"
        )
        self.dpkg(*DRIVER_PACKAGES)

    def dpkg(self, *names: str) -> None:
        """Install packages of the lab's driver, which are none of rpm's."""
        words = " ".join(f"{name}={DRIVER}-1" for name in names)
        apt = "DEBIAN_FRONTEND=noninteractive apt-get -y -q install --no-install-recommends"
        self.said(f"{apt} {words}")

    def said(self, command: str, *, check: bool = True) -> str:
        return self.node.run(command, check=check, timeout_s=600).stdout.strip()

    def run(self, verb: str, status: int = 0, /, **states: dict[str, Any]) -> dict[str, Any]:
        """What became of each state but the repository's, by name."""
        (node,) = self.told(verb, status, **states)["nodes"]
        named = {name.replace("_", "-") for name in states}
        return {row["state"]: row["outcome"] for row in node["states"] if row["state"] in named}

    def told(self, verb: str, status: int = 0, /, **states: dict[str, Any]) -> dict[str, Any]:
        """The document that a verb prints."""
        named = {name.replace("_", "-"): parameters for name, parameters in states.items()}
        body = BODY.format(states=named)
        return gpustate(verb, self.lab, self.node, self.folder, self.packages, body, status=status)

    def there(self) -> set[str]:
        """Names and versions of NVIDIA's packages that rpm knows."""
        mine = versions(self.node).items()
        return {f"{name}={version}" for name, version in mine if name != "bash"}

    def held(self) -> set[str]:
        """Names that the package manager itself says are locked."""
        if self.dnf:
            said = self.said("dnf -q versionlock list")
            return {row.rsplit("-", 2)[0] for row in said.split()}
        said = self.said("zypper -n locks")
        return {row.split("|")[1].strip() for row in said.splitlines() if "| package" in row}

    def upgrade(self) -> None:
        """What an administrator, or a timer, does."""
        self.said("dnf -y upgrade" if self.dnf else "zypper -n update", check=False)

    def loaded(self) -> set[str]:
        rows = self.said("cat /run/gpustate-lab/proc/modules").splitlines()
        return {row.split()[0] for row in rows}


GROUPS = [
    (distribution, group)
    for distribution in ("rocky", "sles")
    for group in ("board", "tray", "dcgm", "ofed", "modules", "services", "guard")
]
TAKEN = share("components on rpm nodes", GROUPS, most=1)


def of_group(group: str) -> pytest.MarkDecorator:
    taken = [one for one, mine in TAKEN if mine == group]
    skip = pytest.mark.skip(reason="not in this commit's share")
    rows: list[Any] = taken or [pytest.param("rocky", marks=skip)]
    return pytest.mark.parametrize("trial", rows, indirect=True)


@pytest.fixture
def trial(
    request: pytest.FixtureRequest, rpm_lab: Lab, packages: Repository, tmp_path: Path
) -> Trial:
    # CUDA runs on the tray alone; the board wants Fabric Manager first.
    tray = ("tray", "services")
    name = "gpu2" if any(one in request.node.originalname for one in tray) else "gpu1"
    return Trial(rpm_lab, packages, tmp_path, request.param, name)


CHANGED, SAME = {"changed"}, {"unchanged"}


@of_group("board")
def test_a_board_gets_its_fabric_keeps_it_and_gives_it_back(trial: Trial) -> None:
    trial.said("nvidia-modprobe; modprobe nvidia", check=False)
    states: dict[str, Any] = {"nvlsm": {}, "fabric_manager": {"timeout_s": 60}}
    wanted = {f"nvidia-fabricmanager={DRIVER}-1", "nvlsm=2025.10.11-1"}
    assert set(trial.run("apply", **states).values()) == CHANGED
    assert trial.there() == wanted
    assert trial.held() == {"nvidia-fabricmanager", "nvlsm"}
    assert set(trial.said(FABRIC).splitlines()) == {"Completed, Success"}
    started = trial.said("systemctl show -P ActiveEnterTimestampMonotonic nvidia-fabricmanager")
    assert set(trial.run("apply", **states).values()) == SAME
    trial.upgrade()
    assert trial.there() == wanted
    now = trial.said("systemctl show -P ActiveEnterTimestampMonotonic nvidia-fabricmanager")
    assert now == started

    trial.said("systemctl stop nvidia-fabricmanager; rpm -e --nodeps nvlsm nvidia-fabricmanager")
    assert trial.run("drift", 2, **states)["nvlsm"] == "would change"
    assert set(trial.run("apply", **states).values()) == CHANGED
    assert trial.there() == wanted
    assert set(trial.said(FABRIC).splitlines()) == {"Completed, Success"}

    assert set(trial.run("remove", **states).values()) == CHANGED
    assert trial.there() == set()
    assert trial.held() == set()
    assert trial.said("ls /etc/modules-load.d/gpustate-nvlsm.conf", check=False) == ""


FABRIC = "nvidia-smi --query-gpu=fabric.state,fabric.status --format=csv,noheader"


@of_group("tray")
def test_a_tray_of_a_rack_gets_imex_keeps_it_and_gives_it_back(trial: Trial) -> None:
    trial.said("modprobe nvidia", check=False)
    states: dict[str, Any] = {"imex": {"nodes": ["10.99.0.9", trial.node.address], "timeout_s": 30}}
    assert trial.run("apply", **states) == {"imex": "changed"}
    assert trial.there() == {f"nvidia-imex={DRIVER}-1"}
    assert trial.held() == {"nvidia-imex"}
    assert trial.said("nvidia-imex-ctl -q; systemctl is-enabled nvidia-imex") == "READY\nenabled"
    assert trial.run("apply", **states) == {"imex": "unchanged"}

    trial.said(
        "echo 10.99.0.1 >/etc/nvidia-imex/nodes_config.cfg; systemctl disable --now nvidia-imex"
    )
    assert trial.run("drift", 2, **states) == {"imex": "would change"}
    assert trial.run("apply", **states) == {"imex": "changed"}
    assert trial.said("nvidia-imex-ctl -q; systemctl is-enabled nvidia-imex") == "READY\nenabled"

    assert trial.run("remove", **states) == {"imex": "changed"}
    assert (trial.there(), trial.held()) == (set(), set())
    assert trial.said("ls -A /etc/nvidia-imex", check=False) == ""


METRICS = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:9400/metrics\").read().decode())'"


@of_group("dcgm")
def test_dcgm_and_its_exporter_come_replace_the_old_one_and_go(trial: Trial) -> None:
    trial.said("modprobe nvidia", check=False)
    old = next(trial.packages.folder.glob("datacenter-gpu-manager-3*.rpm")).name
    trial.said(f"rpm -i --nosignature /srv/nvidia/{old}; systemctl start nvidia-dcgm")
    states: dict[str, Any] = {"dcgm": {"version": "4.5.3"}, "dcgm_exporter": {"version": "4.8.2"}}
    names = {
        f"datacenter-gpu-manager-4-{part}"
        for part in ("core", "cuda13", "proprietary", "proprietary-cuda13")
    }
    wanted = {f"{name}=4.5.3-1" for name in names} | {"datacenter-gpu-manager-exporter=4.8.2-1"}
    assert set(trial.run("apply", **states).values()) == CHANGED
    assert trial.there() == wanted
    assert trial.held() == names | {"datacenter-gpu-manager-exporter"}
    assert trial.said("systemctl is-enabled nvidia-dcgm nvidia-dcgm-exporter") == "enabled\nenabled"
    scraped = trial.said(METRICS)
    assert len(re.findall(r"^DCGM_FI_DEV_GPU_TEMP\{", scraped, re.MULTILINE)) == 8
    assert set(trial.run("apply", **states).values()) == SAME
    trial.upgrade()
    assert trial.there() == wanted

    trial.said(
        "systemctl stop nvidia-dcgm-exporter; "
        "rpm -e --nodeps datacenter-gpu-manager-4-cuda13 datacenter-gpu-manager-exporter"
    )
    assert trial.run("drift", 2, **states) == {
        "dcgm": "would change",
        "dcgm-exporter": "known after",
    }
    newer: dict[str, Any] = {"dcgm": {"version": "4.6.0"}, "dcgm_exporter": {"version": "4.8.3"}}
    assert set(trial.run("apply", **newer).values()) == CHANGED
    assert trial.there() == {
        one.replace("4.5.3", "4.6.0").replace("4.8.2", "4.8.3") for one in wanted
    }
    assert "DCGM_FI_DEV_GPU_TEMP{" in trial.said(METRICS)

    assert set(trial.run("remove", **newer).values()) == CHANGED
    assert (trial.there(), trial.held()) == (set(), set())
    left = "ls -d /etc/dcgm-exporter /etc/systemd/system/nvidia-dcgm*"
    assert trial.said(left, check=False) == ""


@of_group("dcgm")
def test_packages_of_two_states_come_in_one_transaction(trial: Trial) -> None:
    trial.said("nvidia-modprobe; modprobe nvidia", check=False)
    states: dict[str, Any] = {"nvlsm": {}, "fabric_manager": {"timeout_s": 60}, "dcgm": {}}
    assert set(trial.run("apply", **states).values()) == CHANGED
    came = trial.said("cut -d = -f 1 /var/lib/gpustate/runs/*/came").split()
    assert "datacenter-gpu-manager-4-core" in came, "the step of Fabric Manager has brought it"
    assert trial.held() == {name.partition("=")[0] for name in trial.there()}


@of_group("ofed")
def test_an_ofed_and_the_peermem_built_against_it_come_and_go(trial: Trial) -> None:
    path = trial.node.root / "etc/gpustate-lab/hardware.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "nics": [NIC]}))
    ofed: dict[str, Any] = {"ofed": {"package": "doca-ofed", "version": "25.04.0.6.0"}}
    peermem: dict[str, Any] = {"peermem": {"method": "peermem"}}
    trial.run("apply")  # the repository only: OFED has one of its own, which a site brings
    assert trial.run("apply", **ofed) == {"ofed": "changed"}
    came = {"doca-ofed", "mlnx-ofa_kernel-dkms", "ofed-scripts", "dkms"}
    assert {one.partition("=")[0] for one in trial.there()} == came
    assert trial.held() == {"doca-ofed"}
    assert "no driver is loaded" in str(trial.told("apply", 5, **peermem))
    trial.said("modprobe mlx5_core; modprobe nvidia")
    assert trial.run("apply", **ofed) == {"ofed": "unchanged"}
    assert trial.run("apply", **peermem) == {"peermem": "changed"}
    assert "nvidia_peermem" in trial.loaded()
    symbols = "modprobe --dump-modversions $(modinfo -n nvidia-peermem)"
    assert "0x0badf00d\tib_register_peer_memory_client" in trial.said(symbols)
    assert trial.run("apply", **peermem) == {"peermem": "unchanged"}

    trial.said("rmmod nvidia_peermem; rpm -e --nodeps ofed-scripts doca-ofed")
    assert trial.run("drift", 2, **ofed, **peermem)["ofed"] == "would change"
    assert set(trial.run("apply", **ofed, **peermem).values()) == CHANGED
    assert {one.partition("=")[0] for one in trial.there()} == came
    assert "nvidia_peermem" in trial.loaded()

    assert trial.run("remove", **peermem) == {"peermem": "changed"}
    assert "nvidia_peermem" not in trial.loaded()
    assert trial.run("remove", **ofed) == {"ofed": "changed"}
    assert (trial.there(), trial.held()) == (set(), set())
    assert trial.said("ls /var/lib/gpustate/brought", check=False) == ""


@of_group("modules")
def test_gdrcopy_and_gds_are_built_loaded_mended_and_taken_away(trial: Trial) -> None:
    trial.said("modprobe nvidia")
    states: dict[str, Any] = {"gdrcopy": {"version": "2.5"}, "gds": {"version": "2.26.6"}}
    assert set(trial.run("apply", **states).values()) == CHANGED
    assert {"gdrdrv", "nvidia_fs"} <= trial.loaded()
    came = {"gdrcopy-kmod=2.5-1.el9dkms", "gdrcopy=2.5-1.el9", "nvidia-fs-dkms=2.26.6-1"}
    assert trial.there() == came | {"dkms=3.2.1-1.el9"}
    assert trial.said("cat /proc/driver/nvidia-fs/version") == "version: 2.26"
    assert trial.said("stat -c '%F %a' /dev/gdrdrv") == "character special file 666"
    assert set(trial.run("apply", **states).values()) == SAME

    trial.said("rmmod gdrdrv nvidia_fs; rm -f $(modinfo -n nvidia-fs); depmod")
    assert set(trial.run("drift", 2, **states).values()) == {"would change"}
    assert set(trial.run("apply", **states).values()) == CHANGED
    assert {"gdrdrv", "nvidia_fs"} <= trial.loaded()

    # Somebody else needs one of them by now: it stays, and is named.
    site = next(trial.packages.folder.glob("site-storage-*.rpm")).name
    trial.said(f"rpm -i --nosignature /srv/nvidia/{site}")
    told = trial.told("remove", 1, gds={})
    assert "nvidia-fs-dkms cannot be removed, site-storage" in str(told)
    assert trial.there() > came
    trial.said("rpm -e site-storage")

    assert set(trial.run("remove", **states).values()) == CHANGED
    assert (trial.there(), trial.held()) == (set(), set())
    assert not {"gdrdrv", "nvidia_fs"} & trial.loaded()
    assert trial.said("ls /var/lib/gpustate/brought", check=False) == ""


@of_group("services")
def test_services_of_the_drivers_own_packages_run_and_bring_none(trial: Trial) -> None:
    trial.said("modprobe nvidia")
    before = trial.there()
    told = trial.told("apply", 5, mps={"clients": 4}, persistenced={})
    assert "RPM: nvidia-driver-cuda" in str(told)
    assert "nvidia-persistenced is not installed" in str(told)
    trial.dpkg("nvidia-cuda-mps", "nvidia-persistenced")
    states: dict[str, Any] = {"mps": {"clients": 4}, "persistenced": {}}
    trial.said("systemctl disable --now nvidia-persistenced")
    assert set(trial.run("apply", **states).values()) == CHANGED
    units = "systemctl is-active gpustate-mps nvidia-persistenced"
    assert trial.said(units).split() == ["active", "active"]
    query = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control"
    assert trial.said(query) == "25.0"
    modes = "nvidia-smi --query-gpu=compute_mode,persistence_mode --format=csv,noheader"
    assert set(trial.said(modes).splitlines()) == {"Exclusive_Process, Enabled"}
    assert set(trial.run("apply", **states).values()) == SAME
    trial.said("systemctl stop gpustate-mps nvidia-persistenced")
    assert set(trial.run("drift", 2, **states).values()) == {"would change"}
    assert set(trial.run("apply", **states).values()) == CHANGED
    assert set(trial.said(modes).splitlines()) == {"Exclusive_Process, Enabled"}
    assert set(trial.run("remove", **states).values()) == CHANGED
    assert trial.said(units, check=False).split() == ["inactive", "inactive"]
    assert trial.said("ls /etc/systemd/system/gpustate-mps.service", check=False) == ""
    assert trial.there() == before


@of_group("guard")
def test_a_package_that_would_move_the_driver_is_stopped_before_it_starts(trial: Trial) -> None:
    trial.run("apply")
    manager = "dnf" if trial.dnf else "zypper"
    script = owned_packages.bring("trial", (("cuda-13-0", ""),), manager=manager).script()
    prelude = "G=/var/lib/gpustate R=$(mktemp -d) LOCK=x PROC=/proc SYS=/sys\n"
    done = trial.node.run(f"{prelude}{ops.LIBRARY}\nset -e\n{script}", check=False)
    assert done.returncode != 0
    assert "would install or move the driver (nvidia-driver-cuda " in done.stdout + done.stderr
    assert trial.there() == set()
