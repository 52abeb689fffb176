"""A node that is meant to have no GPU: what needs one does not apply, and nothing is refused over it."""

from __future__ import annotations

from gpustate import registry
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.outcome import Outcome
from gpustate.core.policy import build
from gpustate.core.state import AnyState
from gpustate.plan.make import Observations, make

GPU = tuple(sorted(name for name in registry.states() if registry.get(name).needs_gpu))


def outcomes(gpus: int | str | None, *names: str) -> dict[str, Outcome]:
    states: list[AnyState] = [build(registry.get("preflight"), {"gpus": gpus})]
    states += [build(registry.get(name), {}) for name in names]
    observations = Observations(NodeView("n", (), {}, NodeFacts()))
    observations.errors = {state.name: "nobody looked" for state in states}
    return {name: result.outcome for name, result in make(states, observations).items()}


def test_what_needs_a_gpu_does_not_apply_where_none_is_expected() -> None:
    assert {"cdi", "dcgm", "mig", "mps", "validator"} <= set(GPU)
    for gpus in (0, "0"):
        found = outcomes(gpus, *GPU)
        assert {name for name, one in found.items() if one is Outcome.NOT_APPLICABLE} == set(GPU)


def test_a_node_that_lost_its_gpus_is_no_node_without() -> None:
    assert Outcome.NOT_APPLICABLE not in outcomes(None, *GPU).values()
    assert Outcome.NOT_APPLICABLE not in outcomes(8, *GPU).values()


def test_what_needs_a_gpu_can_be_removed_where_none_is_expected() -> None:
    states: list[AnyState] = [
        build(registry.get("preflight"), {"gpus": 0}),
        build(registry.get("cdi"), {"ensure": "absent"}),
    ]
    observations = Observations(
        NodeView("n", (), {}, NodeFacts()), errors={"cdi": "x", "preflight": "x"}
    )
    assert make(states, observations)["cdi"].outcome is Outcome.FAILED
