"""What states that wait will install: by the repositories as they will be, and the driver's choice."""

from __future__ import annotations

import subprocess
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
from gpustate.states.dcgm import DcgmRunning
from gpustate.states.fabric_manager import FabricManagerRunning
from gpustate.states.imex import ImexRunning
from gpustate.testing import FakeNode

from . import test_container_toolkit, test_dcgm, test_fabric_manager, test_imex

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
}


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
    assert not plan.disruption, "the worst case has it"
    of_branch = make.predict(state, observed, "580.*")
    assert bool(of_branch) is (name in ("container-toolkit", "dcgm"))


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
