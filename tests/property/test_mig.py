"""MIG plans on random layouts of every GPU in the tables: they arrive, and none keeps more.

Each GPU is taken through random changes by a simulation that refuses what a driver refuses; whatever a
plan keeps is compared with every final state there is. ``--proof`` takes ten times as many.
"""

from __future__ import annotations

import random

import pytest
from migoracle import (
    Final,
    SimulatedGpu,
    arrangements,
    best,
    counts_of,
    finals,
    legal,
    random_instances,
    random_wanted,
    worth,
)
from shares import seed, tries

from gpustate.core.change import Disruption
from gpustate.mig import builtin, change, refute
from gpustate.mig.config import Config, Entry
from gpustate.mig.document import as_data
from gpustate.mig.layout import GpuInstance, GpuLayout, Layout
from gpustate.mig.names import profile_slices
from gpustate.mig.plan import NodePlan, plan
from gpustate.mig.tables import MODELS, Model

EACH = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


def many() -> int:
    """How many random changes of one GPU."""
    return tries(1000, 50)


def node(model: Model, instances: list[GpuInstance]) -> Layout:
    gpu = GpuLayout(
        index=0, device_id=model.device_ids[0], enabled=True, instances=tuple(instances)
    )
    return Layout(gpus=(gpu,))


def planned(model: Model, instances: list[GpuInstance], wanted: dict[str, int]) -> NodePlan:
    return plan(Config("wanted", (Entry(True, wanted),)), node(model, instances))


def carried_out(model: Model, instances: list[GpuInstance], made: NodePlan) -> SimulatedGpu:
    gpu = SimulatedGpu(model.geometry, instances, enabled=True)
    for step in as_data(made)["gpus"][0]["steps"]:
        gpu.carry_out(step)
    return gpu


@EACH
def test_a_plan_arrives_keeps_the_most_and_is_told_what_it_costs(model: Model) -> None:
    rng = random.Random(f"{seed()} whole {model.name}")
    for _ in range(many()):
        instances = random_instances(model.geometry, rng, split=False)
        wanted = random_wanted(model.geometry, instances, rng)
        check_one(model, instances, wanted)


@EACH
def test_a_plan_with_compute_instances_arrives_and_keeps_the_most(model: Model) -> None:
    rng = random.Random(f"{seed()} split {model.name}")
    for _ in range(many() // 2):
        instances = random_instances(model.geometry, rng)
        wanted = random_wanted(model.geometry, instances, rng, most=4)
        check_one(model, instances, wanted)


def check_one(model: Model, instances: list[GpuInstance], wanted: dict[str, int]) -> None:
    made = planned(model, instances, wanted)
    gpu = carried_out(model, instances, made)
    assert gpu.counts() == wanted
    kept: Final = {
        (one.instance.profile, one.instance.start): frozenset(
            [*((c.start, c.slices) for c in one.compute), *((c.start, c.size) for c in one.created)]
        )
        for one in made.gpus[0].change.preserved
    }
    kept |= {
        (one.profile, one.span.start): frozenset((c.start, c.size) for c in one.compute)
        for one in made.gpus[0].change.created
    }
    assert worth(kept, instances) == best(model.geometry, instances, wanted)
    stayed = {one.instance.id for one in made.gpus[0].change.preserved}
    assert stayed.isdisjoint(gpu.destroyed)
    assert stayed | set(gpu.destroyed) == {one.id for one in instances}
    lost = [one for one in instances if one.id not in stayed]
    in_use = any(one.users or any(c.users != () for c in one.compute) for one in lost)
    if in_use:
        assert made.disruption is Disruption.DRAIN
    assert not planned(model, gpu.instances(), wanted), "a second plan has nothing to do"


@EACH
def test_the_same_question_has_the_same_answer(model: Model) -> None:
    rng = random.Random(f"{seed()} order {model.name}")
    for _ in range(20):
        instances = random_instances(model.geometry, rng)
        wanted = counts_of(random_instances(model.geometry, rng))
        first = change.plan(model.geometry, instances, wanted)
        rng.shuffle(instances)
        assert change.plan(model.geometry, instances, dict(reversed(wanted.items()))) == first


@EACH
def test_what_is_refused_has_no_way_and_what_is_not_has_one(model: Model) -> None:
    rng = random.Random(f"{seed()} fit {model.name}")
    refused = 0
    for _ in range(many()):
        names = rng.sample(model.geometry.names, rng.randint(1, 3))
        wanted = {name: rng.randint(1, 4) for name in names}
        there_is_one = bool(arrangements(model.geometry, wanted))
        why = refute.why_not(model.geometry, wanted)
        assert bool(why) is not there_is_one, (wanted, why)
        assert (change.plan(model.geometry, [], wanted) is None) is not there_is_one
        refused += bool(why)
    assert refused, "something has to be refused for this to say anything"


def test_every_built_in_configuration_fits_every_gpu_it_is_for() -> None:
    file = builtin.config_file()
    fitted = 0
    for model in MODELS:
        for device in model.device_ids:
            gpu = GpuLayout(index=0, device_id=device, enabled=False)
            for config in file.configs.values():
                entry = config.entry_for(0, device)
                if entry is None or not all(model.geometry.get(name) for name in entry.devices):
                    continue
                made = plan(config, Layout(gpus=(gpu,)))
                for step in (steps := as_data(made)["gpus"][0]["steps"]):
                    assert step
                simulated = SimulatedGpu(model.geometry, [], enabled=False)
                for step in steps:
                    simulated.carry_out(step)
                assert sum(simulated.counts().values()) == sum(entry.devices.values())
                fitted += 1
    assert fitted > 200


@EACH
def test_counts_in_the_tables_are_what_the_places_allow(model: Model) -> None:
    for profile in model.geometry.profiles:
        assert profile.slices == profile_slices(profile.name)
        assert arrangements(model.geometry, {profile.name: profile.most})
        if not set("+-") & set(profile.name):
            more = [(profile.name, start) for start in profile.starts]
            # The places of plain profiles lie side by side, so their number is the limit.
            assert len(more) >= profile.most
            assert not legal(model.geometry, [*more, (profile.name, profile.starts[0])])


def test_the_oracle_finds_what_the_user_guide_shows() -> None:
    """Configurations of the MIG User Guide, so that the oracle itself is held to something."""
    geometry = next(model.geometry for model in MODELS if "A100-SXM4-40GB" in model.names)
    for wanted in (
        {"4g.20gb": 1, "3g.20gb": 1},
        {"3g.20gb": 2},
        {"4g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1},
        {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2},
        {"2g.10gb": 3, "1g.5gb": 1},
        {"1g.5gb": 7},
    ):
        assert arrangements(geometry, wanted), wanted
    assert not arrangements(geometry, {"3g.20gb": 2, "1g.5gb": 1})
    split = {"1c.7g.40gb": 1, "2c.7g.40gb": 1, "3c.7g.40gb": 1}
    assert next(finals(geometry, split), None) is not None
