"""Packages that states declare for bundles: which ones, at which versions, and what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import registry
from gpustate.core.facts import NodeFacts
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.policy import build
from gpustate.formats.pci_gpus import PciGpu, meant_for
from gpustate.package_sets.bundle_roots import required_packages

APT = NodeFacts(os_id="debian", os_version="12", machine="x86_64", package_manager="apt")
DNF = NodeFacts(os_id="rocky", os_version="9", machine="x86_64", package_manager="dnf")
OFFERED: dict[str, tuple[str, ...]] = {
    "datacenter-gpu-manager-4-core": ("1:4.6.0-1", "1:4.5.0-1"),
    "datacenter-gpu-manager-4-cuda13": ("1:4.5.0-1",),
    "datacenter-gpu-manager-exporter": ("4.6.0-1",),
    "gdrcopy": ("2.6",),
    "gdrcopy-kmod": ("2.6",),
    "gdrdrv-dkms": ("2.6",),
    "libgdrapi": ("2.6",),
    "nvidia-cuda-mps": ("595.10-1", "580.65.06-1"),
    "nvidia-fabricmanager": ("595.10-1", "580.65.06-1"),
    "nvidia-fs-dkms": ("2.26.6",),
    "nvidia-imex-580": ("580.65.06-1",),
    "nvlsm": ("2025.10",),
    "doca-ofed": ("3.1.0-1",),
    "openssl": ("3.0",),
    "mokutil": ("0.6",),
    "cuda-toolkit-12-9": ("12.9.1-1",),
}


def required(
    name: str, parameters: dict[str, Any], facts: NodeFacts = APT, driver: str = "580.65.06"
) -> StatePackages:
    chosen: dict[str, object] = {"driver": driver} if driver else {}
    offer = Offer(facts, lambda package: OFFERED.get(package, ()), (), chosen)
    return build(registry.get(name), parameters).required_packages(offer, None)


@pytest.mark.parametrize(
    ("name", "parameters", "packages"),
    [
        ("fabric-manager", {}, {"nvidia-fabricmanager": "580.65.06-1"}),
        ("imex", {}, {"nvidia-imex-580": "580.65.06-1"}),
        ("mps", {}, {"nvidia-cuda-mps": "580.65.06-1"}),
        (
            "dcgm",
            {"proprietary": False},
            {
                "datacenter-gpu-manager-4-core": "1:4.5.0-1",
                "datacenter-gpu-manager-4-cuda13": "1:4.5.0-1",
            },
        ),
        ("dcgm-exporter", {}, {"datacenter-gpu-manager-exporter": ""}),
        ("nvlsm", {}, {"nvlsm": ""}),
        ("gdrcopy", {}, {"gdrdrv-dkms": "", "libgdrapi": ""}),
        ("gds", {"tools": "gds-tools-12-9"}, {"nvidia-fs-dkms": ""}),
        ("ofed", {}, {}),
        ("ofed", {"package": "doca-ofed"}, {"doca-ofed": "3.1.0-1"}),
        ("ofed", {"package": "mlnx-ofed-all"}, {}),
        ("secure-boot", {}, {"openssl": "", "mokutil": ""}),
        ("cuda-toolkit", {"versions": ["12.9"]}, {"cuda-toolkit-12-9": ""}),
        ("nouveau", {}, {}),
    ],
)
def test_a_state_declares_its_packages(
    name: str, parameters: dict[str, Any], packages: dict[str, str]
) -> None:
    found = required(name, parameters)
    assert (dict(found.packages), found.missing) == (packages, "")


def test_names_follow_the_package_manager() -> None:
    assert dict(required("gdrcopy", {}, DNF).packages) == {"gdrcopy-kmod": "", "gdrcopy": ""}


@pytest.mark.parametrize("name", ["fabric-manager", "imex", "mps", "dcgm"])
def test_what_must_have_the_driver_s_version_waits_for_it(name: str) -> None:
    assert required(name, {}, driver="") == StatePackages()


@pytest.mark.parametrize(
    ("name", "parameters", "missing"),
    [
        ("cuda-toolkit", {"versions": ["13.0"]}, "cuda-toolkit-13-0"),
        ("container-toolkit", {}, "nvidia-container-toolkit"),
        ("dcgm", {"version": "4.4.0", "proprietary": False}, "datacenter-gpu-manager-4-core 4.4.0"),
        ("ofed", {"package": "doca-ofed", "version": "9.9"}, "doca-ofed 9.9"),
    ],
)
def test_a_package_that_is_not_offered_is_named(
    name: str, parameters: dict[str, Any], missing: str
) -> None:
    assert required(name, parameters).missing == missing


@pytest.mark.parametrize("switches", [True, False])
def test_a_bundle_for_nvswitches_has_ubuntus_packages_for_servers(switches: bool) -> None:
    servers = ("nvidia-dkms-580-server-open", "libnvidia-compute-580-server")
    desktops = (
        "nvidia-dkms-580-open",
        "nvidia-headless-no-dkms-580-open",
        "nvidia-utils-580",
        "libnvidia-compute-580",
    )
    offered: dict[str, tuple[str, ...]] = {
        "nvidia-utils-580-server": ("580.173.02-0ubuntu0.24.04.1",)
    }
    offered |= dict.fromkeys(servers, ("580.173.02-0ubuntu0.24.04.1",))
    offered |= dict.fromkeys(desktops, ("580.178.04-0ubuntu0.24.04.1",))
    pci = (PciGpu("0000:01:00.0", "2330", "030200", None),)
    pci += (PciGpu("0000:05:00.0", "22a3", "068000", None),) if switches else ()
    facts = NodeFacts(os_id="ubuntu", os_version="24.04", package_manager="apt", pci=pci)
    offer = Offer(facts, lambda package: offered.get(package, ()), (), {})
    found = build(registry.get("driver"), {"branch": 580}).required_packages(offer, None)
    assert (servers[0] in dict(found.packages)) == switches
    assert (desktops[0] in dict(found.packages)) != switches


def test_states_get_the_driver_that_was_chosen_whatever_their_order_in_the_policy() -> None:
    offered = {
        **OFFERED,
        **dict.fromkeys(
            ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1"), ("580.65.06-1",)
        ),
    }
    facts = NodeFacts(
        os_id="debian", os_version="12", package_manager="apt", pci=meant_for("8xH100")
    )
    states = [
        build(registry.get(name), parameters)
        for name, parameters in (
            ("imex", {}),
            ("fabric-manager", {}),
            ("driver", {"branch": 580}),
            ("mps", {"ensure": "absent"}),
        )
    ]
    wants = required_packages(states, facts, lambda name: offered.get(name, ()), ["6.1.0-18-amd64"])
    assert wants.problem == ""
    assert wants.by_state["imex"] == (("nvidia-imex-580", "580.65.06-1"),)
    assert wants.by_state["fabric-manager"] == (("nvidia-fabricmanager", "580.65.06-1"),)
    assert dict(wants.by_state["driver"])["nvidia-driver-cuda"] == "580.65.06-1"
    assert "mps" not in wants.by_state
    assert wants.missing_headers == {"6.1.0-18-amd64": "linux-headers-6.1.0-18-amd64"}
