"""What states that wait will install: by the repositories as they will be, and the driver's choice."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpustate import Plan
from gpustate.core.queries import Answer, Candidates
from gpustate.core.state import State
from gpustate.errors import ProbeError
from gpustate.formats.dcgm import packages
from gpustate.plan import make
from gpustate.probes.repository_preview import previewed
from gpustate.states.container_toolkit import PACKAGES, ContainerToolkitInstalled
from gpustate.states.cuda_toolkit import CudaToolkitsInstalled
from gpustate.states.dcgm import DcgmRunning
from gpustate.states.dcgm_exporter import DcgmExporterRunning
from gpustate.states.fabric_manager import UNIT, FabricManagerRunning
from gpustate.states.gdrcopy import GdrCopyInstalled
from gpustate.states.gds import GpuDirectStorageEnabled
from gpustate.states.imex import ImexRunning
from gpustate.states.nvlsm import SubnetManagerInstalled
from gpustate.testing import FakeNode

from . import (
    test_container_toolkit,
    test_cuda_toolkit,
    test_dcgm,
    test_dcgm_exporter,
    test_fabric_manager,
    test_gpudirect,
    test_imex,
    test_nvlsm,
)

CASES: dict[str, tuple[State[Any], FakeNode, str, object]] = {
    "container-toolkit": (
        ContainerToolkitInstalled(),
        test_container_toolkit.Node(),
        "toolkit",
        dict.fromkeys(PACKAGES, "1.18.1-1"),
    ),
    "dcgm": (
        DcgmRunning(),
        test_dcgm.node(""),
        "dcgm",
        dict.fromkeys(sorted(packages.names(13, closed=True)), "1:4.6.0-1"),
    ),
    "fabric-manager": (
        FabricManagerRunning(),
        test_fabric_manager.node(files={}),
        "fabric_manager",
        "580.65.06-1",
    ),
    "imex": (ImexRunning(), test_imex.rack(files={}), "imex", "580.65.06-1"),
    "nvlsm": (SubnetManagerInstalled(), test_nvlsm.node(), "nvlsm", "2025.10.14-1"),
    "gds": (
        GpuDirectStorageEnabled(),
        test_gpudirect.gds_node(""),
        "nvidia_fs",
        {"nvidia-fs-dkms": "2.26.6-1"},
    ),
    "gdrcopy": (
        GdrCopyInstalled(),
        test_gpudirect.gdr_node(""),
        "gdrcopy",
        {"gdrdrv-dkms": "2.6-1", "libgdrapi": "2.6-1"},
    ),
    "dcgm-exporter": (
        DcgmExporterRunning(),
        test_dcgm_exporter.World().node,
        "dcgm_exporter",
        "4.8.3-1",
    ),
}
#: States that follow the driver's exact version.
AT_DRIVER = ("fabric-manager", "imex")


@pytest.mark.parametrize("name", list(CASES))
def test_what_a_state_will_install_is_known_with_the_drivers_version(name: str) -> None:
    state, node, fact, expected = CASES[name]
    observed = state.probe(node)
    plan = make.predict(state, observed, "580.65.06")
    change = plan.changes[-1]
    assert change.after == expected
    assert change.label
    versions = expected.values() if isinstance(expected, dict) else (expected,)
    assert plan.facts[fact] in versions
    assert plan.refusal is None
    assert not plan.disruption, "the worst case has it"
    assert "loaded" not in change.why, "no driver is"
    of_branch = make.predict(state, observed, "580.*")
    assert bool(of_branch) is (name not in AT_DRIVER)


def test_toolkits_of_cuda_are_known_before_their_repository_is_there() -> None:
    state = CudaToolkitsInstalled(versions=("12.9",))
    plan = make.predict(state, state.probe(test_cuda_toolkit.Cuda()), "")
    assert [(one.field, one.after) for one in plan.changes] == [
        ("packages", {"cuda-toolkit-12-9": "12.9.1-1"})
    ]


#: The same states, and what the reason has on a node whose repositories have none of it, and other versions of it.
LACKING: dict[str, tuple[type[State[Any]], dict[str, Any], Callable[..., FakeNode], str]] = {
    "container-toolkit": (
        ContainerToolkitInstalled,
        {"version": "9.9"},
        lambda **more: (
            test_container_toolkit.Node(offered=()) if more else test_container_toolkit.Node()
        ),
        "no repository offers the four packages at ",
    ),
    "dcgm": (DcgmRunning, {"version": "9.9"}, test_dcgm.node, f"offers {packages.CORE}"),
    "dcgm-exporter": (
        DcgmExporterRunning,
        {"version": "9.9"},
        lambda **more: test_dcgm_exporter.World(**more).node,
        f"no repository offers {packages.EXPORTERS[0]}",
    ),
    "nvlsm": (
        SubnetManagerInstalled,
        {"version": "9.9"},
        test_nvlsm.node,
        "need the subnet manager, and no repository offers nvlsm",
    ),
    "gds": (
        GpuDirectStorageEnabled,
        {"version": "9.9"},
        test_gpudirect.gds_node,
        "no repository offers nvidia-fs-dkms",
    ),
    "gdrcopy": (
        GdrCopyInstalled,
        {"version": "9.9"},
        test_gpudirect.gdr_node,
        "no repository offers gdrdrv-dkms and libgdrapi of GDRCopy",
    ),
    "cuda-toolkit": (
        CudaToolkitsInstalled,
        {"versions": ("12.9",), "releases": {"12.9": "9.9"}},
        lambda **more: (
            FakeNode(**more, shell={"update-alternatives --query": (1, "")})
            if more
            else test_cuda_toolkit.Cuda()
        ),
        "no repository offers cuda-toolkit-12-9",
    ),
}


@pytest.mark.parametrize("name", list(LACKING))
@pytest.mark.parametrize("missing", [True, False])
def test_a_package_that_no_repository_has_is_a_refusal_before_the_states_ahead_have_run(
    name: str, missing: bool
) -> None:
    """Either the packages are missing, or none has the version of the policy."""
    kind, parameters, node, words = LACKING[name]
    if missing:
        parameters = {key: value for key, value in parameters.items() if key == "versions"}
    state = kind(**parameters)
    observed = state.probe(node(candidates={}) if missing else node())
    assert words in (make.predict(state, observed, "580.65.06").refusal or "")
    assert ("9.9" in (state.plan(observed).refusal or "")) is not missing
    absent = kind(ensure="absent")
    assert absent.plan(absent.probe(node(candidates={}))).refusal is None


@pytest.mark.parametrize("state", [FabricManagerRunning(), ImexRunning(nodes=test_imex.NODES)])
def test_what_no_repository_offers_for_the_driver_is_a_refusal(state: State[Any]) -> None:
    rack = state.name == "imex"
    node = test_imex.rack(candidates={}) if rack else test_fabric_manager.node(candidates={})
    observed = state.probe(node)
    plan = make.predict(state, observed, "595.91.07")
    assert (plan.changes, plan.facts) == ((), {})
    name = "nvidia-imex" if rack else "nvidia-fabricmanager"
    assert f"no repository offers {name} 595.91.07, the driver's version" in (plan.refusal or "")
    for driver in ("595.*", "595", "latest-lts", ""):
        assert make.predict(state, observed, driver) == Plan(), "its version is not certain"


@pytest.mark.parametrize("masked", [True, False])
def test_a_masked_unit_is_a_refusal_before_its_package_is_there(masked: bool) -> None:
    """A mask stays, also where a repository may yet be added."""
    state = FabricManagerRunning()
    observed = state.probe(test_fabric_manager.node(files={}))
    units = frozenset((UNIT,)) if masked else frozenset[str]()
    plan = make.predict(state, observed, "580.65.06", masked=units, repositories_known=False)
    assert plan.refusal == (
        f"{UNIT} is masked; systemctl unmask {UNIT}, or leave the state out" if masked else None
    )


def test_candidates_are_read_in_the_folders_of_the_preview(tmp_path: Path) -> None:
    """Real sh; apt-get and apt-cache are stand-ins."""
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")
    (tmp_path / "apt-cache").write_text(
        '#!/bin/sh\n[ -e "${APT_CONFIG%/conf}/apt/here" ] || exit 1\n'
        "echo ' nvlsm | 1.0-1 | http://x stable/main amd64 Packages'\n"
    )
    for name in ("apt-get", "apt-cache"):
        (tmp_path / name).chmod(0o755)
    query = previewed(Candidates(("nvlsm",)), 'mkdir -p "$T/apt"; : >"$T/apt/here"')
    done = subprocess.run(
        ["sh", "-c", f"pm=apt\n{query.script()}"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "G": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    ((name, offers),) = query.parse(Answer(0, done.stdout)).items()
    assert (name, offers[0].version) == ("nvlsm", "1.0-1")
    with pytest.raises(ProbeError, match="the bundle is not on the node yet"):
        query.parse(Answer(0, b"=preview failed the bundle is not on the node yet\n"))
