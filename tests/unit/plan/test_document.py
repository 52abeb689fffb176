"""Plans and results as documents: they survive JSON, keep to their schemas, and notice alterations."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from filestates import file_state
from jsonschema import Draft202012Validator, ValidationError

from gpustate import Disruption, Plan, Policy, PolicyError, where
from gpustate.core.change import Change
from gpustate.core.outcome import RESTARTED, NodeResult, NodeStatus, Outcome, StateResult
from gpustate.manifests.settings import ClusterSettings, Component
from gpustate.plan import document

CREATED = "2026-11-21T07:55:00Z"
First, Second = file_state("first"), file_state("second", needs=("first",))
POLICY = Policy(
    First(path="/etc/x", text="x"), Second(only=where.group("gpu")), name="pair", notes=("a note",)
)


def schema(name: str) -> Draft202012Validator:
    text = resources.files("gpustate.plan").joinpath("schema", f"{name}.json").read_text("utf-8")
    return Draft202012Validator(json.loads(text))


PLAN_SCHEMA, RESULT_SCHEMA = schema("plan"), schema("result")


def node(name: str = "gpu1", **more: Any) -> NodeResult:
    """A node with a state of every kind a plan can have."""
    change = Change("text", "a\n", "b\n", Disruption.RESTART, "set by the policy", "/etc/x")
    password = Change("key", "old", "new", secret=True)
    states = [
        StateResult(
            "first",
            Outcome.PENDING,
            Plan((change, password), notes=("by the way",)),
            worst=Disruption.RESTART,
        ),
        StateResult("second", Outcome.KNOWN_AFTER, known_after=("first",), worst=Disruption.REBOOT),
        StateResult("third", Outcome.NOT_APPLICABLE, reason="only where gpu"),
        StateResult("fourth", Outcome.FAILED, reason="no answer", evidence="E: one\nE: two"),
    ]
    observed: dict[str, object] = {"first": {"text": "a\n", "size": 2}, "second": {"text": None}}
    return NodeResult(
        name, states=states, observed=observed, execs=1, connections=1, notes=["see above"], **more
    )


def plan(*nodes: NodeResult) -> dict[str, Any]:
    return document.plan_document(
        POLICY, "policy.py", nodes or (node(),), run="run-1", created=CREATED
    )


def result(*nodes: NodeResult, **more: Any) -> dict[str, Any]:
    kept = {"run": "run-1", "created": CREATED, "verb": "apply", "summary": "", "exit_code": 0}
    return document.result_document(nodes, **{**kept, **more})


def test_the_schemas_are_schemas_and_every_object_in_them_is_closed_or_says_why() -> None:
    open_objects: list[str] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            if value.get("type") == "object" and "additionalProperties" not in value:
                open_objects.append(path)
            for key, item in value.items():
                walk(item, f"{path}/{key}")

    for validator in (PLAN_SCHEMA, RESULT_SCHEMA):
        Draft202012Validator.check_schema(validator.schema)
        walk(validator.schema, "")
    # What a state takes and what it observes is its own; both are checked when the plan is applied.
    # The lock file has a schema of its own, and the settings of objects are those of a policy.
    assert sorted(open_objects) == [
        "/$defs/node/properties/observed/additionalProperties",
        "/$defs/overrides/additionalProperties/additionalProperties",
        "/$defs/policy/properties/cluster",
        "/$defs/policy/properties/states/items/properties/parameters",
        "/properties/lock",
    ]


def test_a_plan_keeps_to_its_schema_and_survives_json() -> None:
    made = plan(node(), node("gpu2"))
    PLAN_SCHEMA.validate(made)
    again = json.loads(json.dumps(made))
    assert again == made
    assert document.read_plan(again, place="p.json") == made


def test_the_keys_of_a_plan_keep_their_order() -> None:
    made = plan()
    assert list(made) == ["format", "id", "run", "created", "policy", "notes", "nodes", "fleet"]
    assert list(made["nodes"][0]) == [
        "name",
        "status",
        "states",
        "disruption",
        "reboots",
        "connections",
        "execs",
        "notes",
        "observed",
        "fingerprint",
    ]
    assert list(made["nodes"][0]["states"][0]) == [
        "state",
        "outcome",
        "changes",
        "disruption",
        "notes",
    ]


def test_the_same_plan_has_the_same_id_whenever_it_was_made() -> None:
    later = document.plan_document(POLICY, "policy.py", [node()], run="2", created="2027")
    assert later["id"] == plan()["id"]
    assert plan(node("gpu2"))["id"] != plan()["id"]


def test_a_service_that_is_removed_is_not_said_to_be_restarted() -> None:
    def units(outcome: Outcome) -> list[str]:
        layout = Plan((Change("instances", "a", "b"),), restarted=("a.service", "b.service"))
        states = [
            StateResult("mig", Outcome.PENDING, layout),
            StateResult("dcgm", outcome, known_after=("mig",), removes=("a.service",)),
        ]
        made = plan(NodeResult("gpu1", states=states))
        return [row["name"] for row in made["nodes"][0]["disturbed"]]

    assert units(Outcome.PENDING) == units(Outcome.KNOWN_AFTER) == ["b.service"]
    assert units(Outcome.REFUSED) == ["a.service", "b.service"], "it stays"


OFF = Component(enabled=False)


def test_a_daemon_set_that_is_deleted_is_not_said_to_be_restarted() -> None:
    rows = (("a/train", "is evicted"), ("DaemonSet g/plugin", RESTARTED), ("DaemonSet g/dcgm", RESTARTED))  # fmt: skip
    objects = [
        {"object": "daemonset/plugin", "action": "delete"},
        {"object": "daemonset/dcgm", "action": "update"},
    ]
    made = document.with_clusters(
        plan(node(workloads=rows), node("gpu2")),
        ClusterSettings(device_plugin=OFF, feature_discovery=OFF),
        [{"server": "s", "namespace": "g", "objects": objects}],
        absent=True,
        force=False,
    )
    names = [row["name"] for row in made["nodes"][0]["disturbed"]]
    assert "a/train" in names
    assert "DaemonSet g/dcgm" in names
    assert "DaemonSet g/plugin" not in names


def test_a_plan_needs_no_other_file() -> None:
    assert plan()["policy"] == {
        "name": "pair",
        "source": "policy.py",
        "states": [
            {"state": "first", "parameters": {"path": "/etc/x", "text": "x"}},
            {"state": "second", "parameters": {"only": "group('gpu')"}},
        ],
    }


def test_a_node_costs_what_its_worst_state_may_cost() -> None:
    assert plan()["nodes"][0]["disruption"] == "reboot"
    assert document.announced_disruptions(plan()) == {
        "gpu1": {"first": Disruption.RESTART, "second": Disruption.REBOOT}
    }
    assert document.planned_observations(plan()) == {"gpu1": node().observed}


def test_secrets_are_masked_before_anything_is_written() -> None:
    text = json.dumps(plan())
    assert '"before": "(secret)", "after": "(secret)"' in text
    assert "old" not in text


@pytest.mark.parametrize("status", [status for status in NodeStatus if status is not NodeStatus.OK])
def test_a_result_keeps_to_its_schema_whatever_became_of_the_nodes(status: NodeStatus) -> None:
    all_outcomes = [StateResult(f"s{n}", outcome) for n, outcome in enumerate(Outcome)]
    check: dict[str, object] = {
        "name": "pci",
        "outcome": "failed",
        "evidence": "no GPU",
        "remedy": "look",
    }
    nodes = (
        NodeResult("a", status, "the reason", all_outcomes, reboots=1, checks=[check]),
        node("b"),
    )
    made = result(
        *nodes, verb="validate", exit_code=3, notes=("n",), skipped=("c",), summary="nodes=3"
    )
    RESULT_SCHEMA.validate(made)
    assert json.loads(json.dumps(made)) == made
    assert made["skipped"] == ["c"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.update(extra=1),
        lambda data: data["nodes"][0].update(extra=1),
        lambda data: data["nodes"][0]["states"][0].update(extra=1),
        lambda data: data["nodes"][0]["states"][0]["changes"][0].pop("before"),
        lambda data: data["nodes"][0]["states"][0].pop("disruption"),
        lambda data: data["nodes"][0].update(status="fine"),
        lambda data: data["nodes"][0].update(disruption="some"),
        lambda data: data.update(created="yesterday"),
        lambda data: data.update(format="gpustate.plan/2"),
    ],
)
def test_the_schema_takes_nothing_else(spoil: Any) -> None:
    made = plan()
    spoil(made)
    with pytest.raises(ValidationError):
        PLAN_SCHEMA.validate(made)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "this is not a gpustate plan"),
        ([], "this is not a gpustate plan"),
        ({}, "this is not a gpustate plan"),
        ({"format": "gpustate.result/1"}, "this is not a gpustate plan"),
        (
            {"format": "gpustate.plan/9"},
            "unsupported format 'gpustate.plan/9'; this gpustate reads 'gpustate.plan/1'; make a new plan: gpustate plan POLICY --out FILE",
        ),
        (
            {"format": "gpustate.plan/1"},
            "the plan is damaged: id: is missing; make a new plan: gpustate plan POLICY --out FILE",
        ),
    ],
)
def test_what_is_no_plan_is_refused_with_the_place(data: Any, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        document.read_plan(data, place="p.json")
    assert str(caught.value) == f"p.json: {message}"


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (
            lambda d: d["nodes"][0]["observed"]["first"].update(text="b\n"),
            "the plan was altered: gpu1",
        ),
        (
            lambda d: d["policy"]["states"][0]["parameters"].update(text="y"),
            "the plan was altered after it was made",
        ),
        (
            lambda d: d["nodes"][0]["states"][1].update(worst="none"),
            "the plan was altered after it was made",
        ),
        (lambda d: d["nodes"].pop(), "the plan was altered after it was made"),
        (lambda d: d.pop("id"), "the plan is damaged: id: is missing"),
    ],
)
def test_a_plan_that_was_altered_is_refused(alter: Any, message: str) -> None:
    made = plan(node(), node("gpu2"))
    alter(made)
    with pytest.raises(PolicyError) as caught:
        document.read_plan(made, place="p.json")
    assert (
        str(caught.value) == f"p.json: {message}; make a new plan: gpustate plan POLICY --out FILE"
    )


def test_a_run_over_no_nodes_has_documents_too() -> None:
    PLAN_SCHEMA.validate(document.plan_document(POLICY, "p", [], run="r", created=CREATED))
    RESULT_SCHEMA.validate(result())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda made: made["nodes"][0]["states"][1].pop("known_after"), "known_after"),
        (
            lambda made: made["nodes"][0]["states"].append(7),
            "nodes[0].states[4]: is a number, expected a mapping",
        ),
        (lambda made: made["nodes"][0].pop("status"), "nodes[0].status: is missing"),
        (
            lambda made: made["nodes"][0]["states"][0]["changes"][0].pop("before"),
            "nodes[0].states[0].changes[0].before: is missing",
        ),
        (
            lambda made: made["policy"]["states"][0].pop("parameters"),
            "policy.states[0].parameters: is missing",
        ),
        (
            lambda made: made["policy"]["states"][0].update(state=7),
            "policy.states[0].state: is a number, expected a string",
        ),
        (lambda made: made.update(notes=7), "notes: is a number, expected a list"),
        (lambda made: made.update(nodes=7), "nodes: is a number, expected a list"),
        (lambda made: made["nodes"][0].pop("name"), "nodes[0].name: is missing"),
        (lambda made: made["nodes"].append(7), "nodes[1]: is a number, expected a mapping"),
    ],
)
def test_a_plan_that_does_not_fit_its_schema_is_refused_with_the_place_in_it(
    spoil: Any, message: str
) -> None:
    made = json.loads(json.dumps(plan(node())))
    spoil(made)
    made["id"] = document.plain_fingerprint([made["policy"], made["nodes"]])
    with pytest.raises(PolicyError) as caught:
        document.read_plan(made, place="p.json")
    assert str(caught.value).startswith("p.json: the plan is damaged: ")
    assert message in str(caught.value)


def test_a_plan_of_an_earlier_release_without_a_fleet_is_read_and_shown() -> None:
    made = plan(node(), node("gpu2"))
    del made["fleet"]
    PLAN_SCHEMA.validate(made)
    assert document.read_plan(made, place="p.json") == made


def test_a_fleet_follows_from_the_nodes() -> None:
    nodes = [ready("gpu1"), ready("gpu2"), NodeResult("gpu3", NodeStatus.UNREACHABLE, "no route")]
    made = document.plan_document(POLICY, "p", nodes, run="r", created=CREATED)
    PLAN_SCHEMA.validate(made)
    fleet = made["fleet"]
    assert fleet["nodes"] == {"change": 2, "unchanged": 0, "not_planned": 1}
    assert fleet["disruption"] == [
        {"disruption": "restart", "nodes": 2, "possible": 0, "changes": 2}
    ]
    assert [row["names"] for row in fleet["groups"]] == [["gpu[1-2]"], ["gpu3"]]
    assert document.read_plan(json.loads(json.dumps(made)), place="p.json") == made


def ready(name: str) -> NodeResult:
    change = Change("text", "a\n", "b\n", Disruption.RESTART, "", "/etc/x")
    state = StateResult("first", Outcome.PENDING, Plan((change,)), worst=Disruption.RESTART)
    return NodeResult(name, states=[state])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda fleet: fleet["nodes"].update(change=7),
        lambda fleet: fleet["disruption"][0].update(nodes=2),
        lambda fleet: fleet["groups"][0]["nodes"].append("gpu9"),
        lambda fleet: fleet["groups"].clear(),
    ],
)
def test_what_is_said_of_the_fleet_must_fit_the_nodes(spoil: Any) -> None:
    made = document.plan_document(POLICY, "p", [ready("gpu1")], run="r", created=CREATED)
    spoil(made["fleet"])
    with pytest.raises(PolicyError, match=r"^p.json: the plan is damaged"):
        document.read_plan(made, place="p.json")
