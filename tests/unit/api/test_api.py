"""The Python API on two nodes of this machine, and the example of the docs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest

import gpustate
from gpustate import Disruption, PolicyError, api
from gpustate.engine import fleet
from gpustate.errors import InventoryError, UsageError

TOP = Path(__file__).parents[3]
POLICY = """
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpustate import Disruption, Node, Plan, Policy, State, Step, diff, ops


@dataclass(frozen=True, slots=True)
class Observed:
    text: str | None


class Greeting(State[Observed]):
    name: ClassVar[str] = "acme-greeting"

    path: str = "/proc/nowhere"
    cost: str = "none"

    def probe(self, node: Node) -> Observed:
        return Observed(node.own_text(self.path))

    def desired(self, seen: Observed) -> Observed:
        return Observed(None if self.absent else "hello\\n")

    def plan(self, seen: Observed) -> Plan:
        return diff(seen, self.desired(seen), costs={"text": Disruption.parse(self.cost)})

    def apply(self, seen: Observed, plan: Plan) -> Iterator[Step]:
        yield ops.RemoveOwn(self.path) if self.absent else ops.PutText(self.path, "hello\\n")


policy = Policy(Greeting())
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A policy of one file, and an inventory of two nodes that are this machine."""
    (tmp_path / "policy.py").write_text(POLICY)
    lines = ["all:", "  hosts:"]
    for name in ("gpu1", "gpu2"):
        lines += [
            f"    {name}:",
            "      ansible_connection: local",
            f"      gpustate_state_folder: {tmp_path}/{name}-state",
            f"      gpustate: {{acme-greeting: {{path: {tmp_path}/{name}-greeting}}}}",
        ]
    (tmp_path / "inventory.yml").write_text("\n".join(lines) + "\n")
    return tmp_path


def files(site: Path) -> list[str]:
    return sorted(path.name for path in site.glob("*-greeting"))


def test_plan_apply_drift_and_removal_go_hand_in_hand(site: Path) -> None:
    policy, inventory = site / "policy.py", site / "inventory.yml"
    heard: list[api.Event] = []
    planned = api.plan(policy, inventory, events=heard.append)
    assert (planned.pending, planned.ok, planned.exit_code) == (True, True, 0)
    assert planned.disruption is Disruption.NONE
    assert {event.node for event in heard} == {"gpu1", "gpu2"}
    assert files(site) == []
    assert api.drift(policy, inventory).drifted == ("gpu1", "gpu2")

    runs: list[str] = []
    applied = api.apply(planned, inventory, reason="OPS-1", started=runs.append)
    assert (applied.changed, applied.failed, applied.skipped) == (("gpu1", "gpu2"), (), ())
    assert runs == [applied.run]
    assert applied.node("gpu1").outcomes(api.Outcome.CHANGED)[0].state == "acme-greeting"
    assert files(site) == ["gpu1-greeting", "gpu2-greeting"]
    assert api.drift(policy, inventory).drifted == ()
    assert api.apply(policy, inventory).changed == ()

    removed = api.apply(policy, inventory, remove=True, limit="gpu2")
    assert (removed.changed, removed.document["verb"]) == (("gpu2",), "remove")
    assert files(site) == ["gpu1-greeting"]


def test_a_plan_is_refused_on_a_node_that_has_moved(site: Path) -> None:
    policy, inventory = site / "policy.py", site / "inventory.yml"
    planned = api.plan(policy, inventory)
    (site / "gpu2-greeting").write_text("mine\n")
    applied = api.apply(planned, inventory)
    assert (applied.changed, applied.failed) == (("gpu1",), ("gpu2",))
    assert applied.node("gpu2").status is api.NodeStatus.REFUSED
    assert applied.exit_code == 5


def test_documents_are_those_of_the_command_line(site: Path) -> None:
    policy, inventory = site / "policy.py", site / "inventory.yml"
    planned = api.plan(policy, inventory)
    planned.save(site / "plan.json")
    schemas = TOP / "gpustate/plan/schema"
    document = json.loads((site / "plan.json").read_text())
    jsonschema.validate(document, json.loads((schemas / "plan.json").read_text()))
    applied = api.apply(planned, inventory)
    assert applied.changed == ("gpu1", "gpu2")
    jsonschema.validate(
        json.loads(applied.to_json()), json.loads((schemas / "result.json").read_text())
    )


def test_a_saved_plan_is_applied_from_its_file(site: Path) -> None:
    module = f"greeting_{site.name.replace('-', '_')}"
    (site / f"{module}.py").write_text(POLICY)
    (site / "gpustate.toml").write_text(f'states = ["{module}:Greeting"]\n')
    (site / "policy.py").write_text(
        f"from {module} import Greeting\nfrom gpustate import Policy\npolicy = Policy(Greeting())\n"
    )
    planned = api.plan(site / "policy.py", site / "inventory.yml")
    planned.save(site / "plan.json")
    applied = api.apply(site / "plan.json", site / "inventory.yml")
    assert applied.changed == ("gpu1", "gpu2")
    damaged = {**planned.document, "id": "0"}
    with pytest.raises(PolicyError, match="damaged"):
        api.apply(damaged, site / "inventory.yml")


def test_nothing_is_begun_once_stop_says_so(site: Path) -> None:
    applied = api.apply(site / "policy.py", site / "inventory.yml", stop=lambda: True)
    assert (applied.interrupted, applied.skipped, files(site)) == (True, ("gpu1", "gpu2"), [])


def test_objects_of_the_program_are_taken_as_they_are(site: Path) -> None:
    policy = api.load_policy(site / "policy.py")
    inventory = api.load_inventory(site / "inventory.yml", limit="gpu1")
    assert api.plan(policy, inventory).node("gpu1").pending
    with pytest.raises(KeyError):
        api.plan(policy, inventory).node("gpu2")
    with pytest.raises(UsageError, match="load_inventory"):
        api.plan(policy, inventory, limit="gpu1")


def test_implied_states_come_to_a_policy_however_it_is_passed(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.yml"
    inventory.write_text("all: {hosts: {gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    (tmp_path / "policy.yaml").write_text("states: {driver: {branch: 580}, nvlsm: false}\n")
    text = (
        "from gpustate import Policy\nfrom gpustate.states.driver import DriverInstalled\n"
        "policy = Policy(DriverInstalled(branch=580), without=['nvlsm'])\n"
    )
    (tmp_path / "policy.py").write_text(text)
    namespace: dict[str, api.Policy] = {}
    exec(text, namespace)
    sources = [tmp_path / "policy.yaml", tmp_path / "policy.py", namespace["policy"]]
    for source in (*sources, api.load_policy(sources[0])):
        policy = api.plan(source, inventory).policy
        names = {state.name for state in policy.states}
        assert names == {"driver", "driver-repository", "fabric-manager", "nouveau"}
        assert policy.places["states", "nouveau"].startswith("comes with driver: ")
    (single,) = api.plan(api.load_policy("driver"), inventory).policy.states
    assert single.name == "driver"


def test_mistakes_are_raised_before_a_node_is_reached(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "Session", None)
    with pytest.raises(PolicyError):
        api.plan("no-such-policy.py", site / "inventory.yml")
    with pytest.raises(InventoryError):
        api.apply(site / "policy.py", site / "inventory.yml", limit="gpu9")
    with pytest.raises(UsageError, match="batch size"):
        api.apply(
            site / "policy.py", site / "inventory.yml", strategy=api.Strategy(serial=("none",))
        )


def test_every_exported_name_is_there_and_documented() -> None:
    assert set(dir(api)) == set(api.__all__)
    assert api.__all__ == sorted(api.__all__)
    for name in api.__all__:
        assert getattr(api, name).__doc__, name
    with pytest.raises(AttributeError):
        _ = api.nothing  # type: ignore[attr-defined,unused-ignore]
    assert (Path(gpustate.__file__).parent / "py.typed").is_file()


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rollout", TOP / "docs/examples/api/rollout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_rolls_out_canary_first(
    site: Path, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.roll_out(str(site / "policy.py"), str(site / "inventory.yml"), "gpu2") == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "gpu2: 1 of 1 nodes changed",
        "all:!gpu2: 1 of 1 nodes changed",
        "drift: none",
    ]
    assert printed.err.index("gpu2: finished") < printed.err.index("gpu1: started")


def test_the_example_stops_before_a_plan_that_costs_too_much(
    site: Path, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    text = POLICY.replace("policy = Policy(Greeting())", 'policy = Policy(Greeting(cost="drain"))')
    (site / "policy.py").write_text(text)
    assert example.roll_out(str(site / "policy.py"), str(site / "inventory.yml"), "gpu1") == 5
    assert "disruption would be drain" in capsys.readouterr().out
    assert files(site) == []
