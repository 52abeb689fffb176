"""A new state is one file and its tests: in a copy of the tree one is added, and nothing else is edited by hand.

The generators write what is derived from states, and tests of all states together pass with the new one among them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
COPIED = ("gpustate", "states", "tests", "docs", "lab", "bench", "inventories", "vagrant", ".ci")
#: What writes everything that is derived from states.
GENERATORS = (["-m", "gpustate.policies.schemas"], ["tests/support/supporttable.py"])

STATE = '''"""Keep a rack's number on its nodes, for people who stand in front of it.

Sources:
    motd(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from gpustate import Node, Plan, State, Step, diff, ops
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.parameter_errors import pattern

PATH = "/etc/gpustate-rack"
PACKAGE = "rack-tools"


@dataclass(frozen=True, slots=True)
class Observed:
    """The one file of this state, and its package."""

    text: str | None
    package: str | None = None


class RackNamed(State[Observed]):
    """Every node has the number of its rack in a file.

    Args:
        rack: as the label on it says.

    Disruption:
        ``NONE``.
    """

    name: ClassVar[str] = "rack-name"
    after: ClassVar[tuple[str, ...]] = ("preflight",)
    needs_gpu: ClassVar[bool] = True
    left_to_apply: ClassVar[bool] = True
    supported_runtime: ClassVar[str] = "rackd"

    rack: Annotated[str, pattern(r"^rack[0-9]+$", "a rack such as rack7")] = "rack1"

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.optional(PACKAGE)

    def probe(self, node: Node) -> Observed:
        there = node.packages(PACKAGE).get(PACKAGE)
        version = there.version if there is not None and there.installed else None
        return Observed(node.own_text(PATH), version)

    def desired(self, observed: Observed) -> Observed:
        return Observed(None if self.absent else f"{self.rack}\\n", observed.package or "1.0")

    def plan(self, observed: Observed) -> Plan:
        return diff(observed, self.desired(observed), paths={"text": PATH})

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted = self.desired(observed)
        if "package" in plan.fields:
            yield ops.install("apt", ((PACKAGE, wanted.package or ""),))
        if "text" in plan.fields:
            yield ops.RemoveOwn(PATH) if wanted.text is None else ops.PutText(PATH, wanted.text)
'''

UNIT_TEST = '''"""The rack's number, in memory."""

from gpustate.states.rack import PATH, RackNamed
from gpustate.testing import FakeNode, check_contract, converge

STEPLESS = {"rack-name": "nobody has numbered these racks"}
PARTLESS = {"rack-name": (("seen damaged", "fixed"), "nobody damages it")}


def test_the_number_is_written_once():
    node = FakeNode(packages={"rack-tools": "1.0"})
    first, second = converge(RackNamed(rack="rack7"), node)
    assert node.files[PATH] == "rack7\\n"
    assert first.fields == {"text"}
    assert not second


def test_it_keeps_the_contract_of_every_state():
    check_contract(RackNamed(), FakeNode())
'''

NODE_TEST = '''"""The rack's number on a node."""

import pytest

pytestmark = pytest.mark.node
PROVES = {"rack-name": ("real node", "debian12")}


def test_the_number_is_on_the_node(node12): assert node12.applied("rack-name")
'''

#: A vendor's daemon: for deb and rpm, with a unit, a drop-in, and the version of the driver.
DAEMON = '''"""A vendor's agent watches the GPUs of a node, in the version of the driver.

Sources:
    acme-agent(8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gpustate import Disruption, Node
from gpustate.bases.service import DriverService, DriverServiceState

UNIT = "acme-agent.service"
DROP_IN_PATH = f"/etc/systemd/system/{UNIT}.d/gpustate.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(DriverService):
    """The agent, its package, and how it is called."""

    drop_in: str | None = None


class AcmeAgentRunning(DriverServiceState[Observed]):
    """The agent runs now and at boot, in the version of the driver.

    Args:
        interval_s: how often it reads the GPUs, in seconds.
        hold: hold its package, so that it moves with the driver only.

    Disruption:
        ``RESTART`` where an agent that runs gets another version or interval, otherwise ``NONE``.
    """

    name: ClassVar[str] = "acme-agent"
    worst: ClassVar[Disruption] = Disruption.RESTART
    unit: ClassVar[str] = UNIT
    stem: ClassVar[str] = "acme-agent"
    files: ClassVar[Mapping[str, str]] = {"drop_in": DROP_IN_PATH}

    interval_s: Annotated[int, Field(ge=1, le=3600)] = 10

    def probe(self, node: Node) -> Observed:
        return Observed(**self.read(node))

    def settings(self, observed: Observed) -> Mapping[str, Any]:
        setting = f"[Service]\\nEnvironment=ACME_INTERVAL={self.interval_s}\\n"
        return {"drop_in": f"# Written by gpustate; changes are overwritten.\\n{setting}"}
'''

DAEMON_TEST = '''"""The vendor's agent, in memory."""

import pytest

from gpustate import Disruption, NodeFacts, ops
from gpustate.states.acme import DROP_IN_PATH, UNIT, AcmeAgentRunning
from gpustate.testing import FakeNode, check_contract, converge

PROC = "/proc/driver/nvidia/version"
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x)\\n"
FAMILIES = pytest.mark.parametrize(("manager", "name"), [("apt", "acme-agent-580"), ("dnf", "acme-agent")])


def node(manager="apt", name="acme-agent-580", **more):
    offered = {name: [("580.65.06-1", "acme"), ("580.42.01-1", "acme")]}
    facts = NodeFacts(package_manager=manager, systemd=True)
    return FakeNode(facts=facts, files={PROC: DRIVER.format("580.65.06")}, candidates=offered, **more)


@FAMILIES
def test_it_follows_the_driver_and_leaves_nothing_behind(manager, name):
    fake = node(manager, name)
    files = dict(fake.files)
    first, second = converge(AcmeAgentRunning(interval_s=5), fake)
    assert fake.installed == {name: "580.65.06-1"}
    assert fake.held == {name}
    assert "ACME_INTERVAL=5" in fake.files[DROP_IN_PATH]
    assert (fake.unit_states[UNIT], UNIT in fake.enabled) == ("active", True)
    assert first.disruption is Disruption.NONE and not second

    fake.files[PROC] = DRIVER.format("580.42.01")
    plan, after = converge(AcmeAgentRunning(interval_s=5), fake)
    assert (plan.fields, plan.disruption) == ({"version"}, Disruption.RESTART)
    assert fake.installed == {name: "580.42.01-1"} and not after

    plan, after = converge(AcmeAgentRunning(), fake)
    assert (plan.fields, plan.disruption) == ({"drop_in"}, Disruption.RESTART)

    *_, last = converge(AcmeAgentRunning(ensure="absent"), fake)
    fake.files[PROC] = DRIVER.format("580.65.06")
    assert (fake.installed, fake.files, fake.held) == ({}, files, set())
    assert UNIT not in fake.enabled and fake.unit_states.get(UNIT) != "active" and not last


def test_a_version_that_nobody_offers_is_refused_by_the_plan():
    fake = node()
    fake.files[PROC] = DRIVER.format("595.10.01")
    state = AcmeAgentRunning()
    assert "no repository offers acme-agent 595.10.01, the driver's version" in state.plan(state.probe(fake)).refusal


def test_it_keeps_the_contract_of_every_state():
    check_contract(AcmeAgentRunning(), node())
    check_contract(AcmeAgentRunning(), FakeNode())


STEPLESS = {"acme-agent": "no repository has it"}
PARTLESS = {"acme-agent": (("seen damaged", "fixed"), "nobody damages it")}
'''
DAEMON_NODE_TEST = NODE_TEST.replace("rack-name", "acme-agent")

#: Rules of observations that no type tells, where a state has some.
OBSERVED = '''"""What the rack's state can observe."""

from dataclasses import replace


def possible(state, seen):
    """Numbers are short."""
    return replace(seen, text=seen.text[:9] if seen.text else None) if state.name == "rack-name" else seen
'''

#: Tests that go through all states.
TESTS = (
    "tests/contract/test_states.py",
    "tests/unit/states/test_rack.py",
    "tests/unit/states/test_acme.py",
    "tests/unit/test_state_table.py",
    "tests/unit/test_state_names.py",
    "tests/unit/test_support.py",
    "tests/unit/core/test_parameter_errors.py",
    "tests/unit/plan/test_without_gpus.py",
    "tests/unit/support/test_cycles.py",
    "tests/unit/registry/test_registry.py::test_the_bundled_states_have_one_owner_each_and_a_module_that_get_finds",
    "tests/unit/cli/test_bake.py::test_states_that_only_an_apply_settles_are_named",
    "tests/unit/policies/test_yaml_policies.py",
    "tests/unit/test_site.py::test_every_state_has_a_page_with_all_of_its_parameters",
    "tests/unit/test_site.py::test_a_new_state_needs_no_page_by_hand",
    "tests/property/test_plan_fidelity.py",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with a new state in it, and what generators make of that."""
    folder = tmp_path_factory.mktemp("tree")
    unwanted = shutil.ignore_patterns("__pycache__", ".hypothesis", ".pytest_cache", "node_modules")
    for name in COPIED:
        if (TOP / name).is_dir():
            shutil.copytree(TOP / name, folder / name, symlinks=True, ignore=unwanted)
    for file in TOP.iterdir():
        if file.is_file():
            shutil.copy(file, folder / file.name)
    for name, text in {
        "states/rack.py": STATE,
        "tests/unit/states/test_rack.py": UNIT_TEST,
        "tests/node/test_rack.py": NODE_TEST,
        "tests/support/observed/rack.py": OBSERVED,
        "states/acme.py": DAEMON,
        "tests/unit/states/test_acme.py": DAEMON_TEST,
        "tests/node/test_acme.py": DAEMON_NODE_TEST,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    for words in GENERATORS:
        done = run(folder, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in the copy, which is what it imports."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'lab'}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_new_state_is_in_the_pages_that_are_generated(tree: Path) -> None:
    table = run(tree, "tests/support/statetable.py").stdout
    row = re.search(r"^\| \[`rack-name`\].*$", table, re.M)
    assert row is not None
    assert "Every node has the number of its rack in a file." in row[0]
    assert "| real node |" in row[0]
    assert "`node/test_rack.py`" in row[0]
    assert "| runtime | rackd | tested on the real thing |" in (tree / "README.md").read_text(
        "utf-8"
    )
    schema = (tree / "gpustate/policies/schema/policy.json").read_text("utf-8")
    assert '"title": "rack-name"' in schema


def test_tests_of_all_states_pass_with_the_new_one_among_them(tree: Path) -> None:
    chosen = "not Bench and (rack or acme or not test_plan_fidelity)"
    done = run(
        tree,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not node", "-k", chosen, *TESTS),
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "passed" in done.stdout


def test_a_vendors_daemon_with_its_removal_is_a_page() -> None:
    assert len(DAEMON.splitlines()) <= 80


def test_a_state_without_tests_is_noticed(tree: Path) -> None:
    (tree / "states/bare.py").write_text(STATE.replace("rack-name", "bare"), encoding="utf-8")
    try:
        done = run(
            tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_state_table.py"
        )
    finally:
        (tree / "states/bare.py").unlink()
    assert done.returncode != 0
    assert "test_no_state_has_a_blank_row" in done.stdout
