"""Components beside the driver on nodes with dnf and zypper: names, what is refused, and steps of the node's family."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpustate import NodeFacts, State, ops
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.probes.kernel_modules import Kmod
from gpustate.probes.rdma import Rdma
from gpustate.states.gdrcopy import GdrCopyInstalled
from gpustate.states.mps import MpsRunning
from gpustate.states.peermem import GpuDirectRdmaEnabled
from gpustate.states.persistenced import PROGRAM_PATH, UNIT, PersistenceModeEnabled
from gpustate.testing import FakeNode

KERNEL = "5.14.0-503.el9.x86_64"
ANSWERS = {"KernelModuleQuery": Kmod(built={KERNEL: None}, running=KERNEL), "RdmaQuery": Rdma()}
MANAGERS = pytest.mark.parametrize("manager", ["dnf", "zypper"])


def facts(manager: str) -> NodeFacts:
    os_id = {"dnf": "rocky", "zypper": "sles"}.get(manager, "debian")
    return NodeFacts(os_id=os_id, package_manager=manager, kernel=KERNEL, systemd=True)


def node(manager: str, **more: Any) -> FakeNode:
    settings: dict[str, Any] = {"facts": facts(manager), "answers": ANSWERS, "shell": {"": (0, "")}}
    return FakeNode(**{**settings, **more})


def steps(state: State[Any], fake: FakeNode) -> str:
    """What is run on the node."""
    observed = state.probe(fake)
    assert state.refuse(observed) is None
    found = list(state.apply(observed, state.plan(observed)))
    assert not [one for one in found if isinstance(one, ops.AptInstall | ops.AptRemove)]
    return "\n".join(one.script() for one in found)


@MANAGERS
def test_gdrcopy_has_the_names_of_its_spec_file(manager: str) -> None:
    offers = {
        "gdrcopy-kmod": [("2.6-1.el9dkms", "x"), ("2.5-1dkms.el9", "x")],
        "gdrcopy": [("2.6-1.el9", "x"), ("2.5-1.el9", "x")],
        "gdrdrv-dkms": [("2.7-1", "somebody's")],
    }
    told = steps(GdrCopyInstalled(version="2.5"), node(manager, candidates=offers))
    sign = "-" if manager == "dnf" else "="
    assert f"WANT='gdrcopy-kmod{sign}2.5-1dkms.el9 gdrcopy{sign}2.5-1.el9'" in told
    assert "apt" not in told
    state = GdrCopyInstalled(version="2.7")
    why = state.plan(state.probe(node(manager))).refusal
    assert why is not None
    assert "no repository offers gdrcopy-kmod and gdrcopy of GDRCopy 2.7" in why
    assert "build-rpm-packages.sh" in why


def test_debians_metapackage_is_not_taken_for_rpms_library() -> None:
    fake = node("apt", packages={"gdrcopy": "2.6-1"})
    assert GdrCopyInstalled().probe(fake).packages == {}


@pytest.mark.parametrize(("manager", "mode"), [("dnf", "666"), ("zypper", "660")])
def test_the_device_is_left_to_the_group_video_where_suse_gives_it_to_it(
    manager: str, mode: str
) -> None:
    offers = {name: [("2.6-1", "x")] for name in ("gdrcopy-kmod", "gdrcopy")}
    fake = node(
        manager,
        candidates=offers,
        shell={"echo open": (0, "open"), "stat -c '%t %a' /dev/gdrdrv": (0, "660\n")},
    )
    state = GdrCopyInstalled()
    assert state.desired(state.probe(fake)).device == mode


@MANAGERS
def test_the_headers_that_are_missing_have_the_distributions_name(manager: str) -> None:
    observed = replace(
        GpuDirectRdmaEnabled().probe(node(manager)),
        driver="580.65.06 open",
        kernel=KERNEL,
        nics=("0000:05:00.0",),
        ofed="25.04",
        symbol="0x1",
        headers=False,
    )
    why = GpuDirectRdmaEnabled(method="peermem").refuse(observed)
    assert why is not None
    wanted = {"dnf": f"kernel-devel-{KERNEL}", "zypper": f"the kernel-default-devel of {KERNEL}"}
    assert f"install {wanted[manager]}" in why


@MANAGERS
def test_mps_without_its_program_names_the_package_of_the_driver(manager: str) -> None:
    gpus = (Gpu(0, "GPU-1", "0000:01:00.0", 0, "NVIDIA L40S"),)
    nvml = NvmlFacts(source="nvml", driver_loaded=True, driver_version="580.65.06", gpus=gpus)
    why = MpsRunning().refuse(MpsRunning().probe(node(manager, answers={"GpuFacts": nvml})))
    assert why is not None
    assert "no repository" not in why
    assert "RPM: nvidia-driver-cuda, SUSE: nvidia-compute-utils-G06" in why


def test_a_unit_below_usr_lib_alone_is_seen_as_on_sles_15() -> None:
    text = "[Service]\nExecStart=/usr/bin/nvidia-persistenced\n\n[Install]\nWantedBy=multi-user.target\n"
    path = f"/usr/lib/systemd/system/{UNIT}"
    nothing = {"GpuFacts": NvmlFacts(error=9)}
    fake = node(
        "zypper", files={path: text, PROGRAM_PATH: ""}, units={UNIT: "inactive"}, answers=nothing
    )
    observed = PersistenceModeEnabled().probe(fake)
    assert observed.unit_text == text
    assert PersistenceModeEnabled().refuse(observed) is None
