"""Random changes of MIG layouts on the simulated driver of the lab end as asked.

One GPU after another of the tables goes from layout to layout, mode changes, users and reboots in
between, planned from what NVML says and carried out through it. 10,000 changes with ``--proof``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from migoracle import best, counts_of, random_instances, random_wanted, worth
from migsim import Simulated, described, driver
from shares import seed, tries

from gpustate.mig import live
from gpustate.mig.config import Config, Entry
from gpustate.mig.document import as_data
from gpustate.mig.layout import Layout
from gpustate.mig.live import Use
from gpustate.mig.plan import NodePlan, plan
from gpustate.mig.tables import MODELS, Model
from gpustate_lab.sim.native import Libraries

#: Changes of all GPUs together.
MANY = tries(10_000, 300)


@pytest.fixture(scope="module")
def simulated(
    libraries: Libraries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Simulated]:
    with driver(tmp_path_factory.mktemp("mig") / "root", libraries) as made:
        yield made


def planned(layout: Layout, wanted: dict[str, int] | None) -> NodePlan:
    return plan(Config("wanted", (Entry(wanted is not None, wanted or {}),)), layout)


def used(simulated: Simulated, rng: random.Random) -> Layout:
    """The layout with some compute instances in use."""
    report = simulated.report()
    uses = [
        Use(report.gpus[0].minor or 0, one.id, piece[0], "job")
        for one in report.gpus[0].mig_instances
        for piece in one.compute
        if rng.random() < 0.3
    ]
    return live.layout(live.in_order(report), (), uses)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_random_changes_end_as_asked_and_keep_the_most(simulated: Simulated, model: Model) -> None:
    rng = random.Random(f"{seed()} simulator {model.name}")
    simulated.describe(described(model))
    for _ in range(-(-MANY // len(MODELS))):
        if rng.random() < 0.02:
            simulated.reboot()
        layout = used(simulated, rng)
        now = list(layout.gpus[0].instances)
        wanted = None
        if rng.random() > 0.05:
            near = now if rng.random() < 0.8 else random_instances(model.geometry, rng)
            wanted = random_wanted(model.geometry, near, rng, most=5)
        made = planned(layout, wanted)
        for step in as_data(made)["gpus"][0]["steps"]:
            simulated.carry_out(0, step)
        after = simulated.layout()
        gpu = after.gpus[0]
        assert gpu.enabled is (wanted is not None)
        assert gpu.pending_mode is gpu.enabled
        assert Counter(counts_of(gpu.instances)) == Counter(wanted or {})
        assert not planned(after, wanted), "a second plan has nothing to do"
        if wanted is not None and layout.gpus[0].enabled:
            final = {
                (one.profile, one.start): frozenset((c.start, c.slices) for c in one.compute)
                for one in gpu.instances
            }
            assert worth(final, now) == best(model.geometry, now, wanted)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_nvml_tells_what_the_tables_have(simulated: Simulated, model: Model) -> None:
    simulated.describe(described(model))
    found = simulated.layout().gpus[0].profiles()
    assert found is not None
    assert found.source == "NVML"
    for profile in model.geometry.profiles:
        there = found.get(profile.name)
        assert there is not None
        assert (there.slices, there.size, there.starts, there.most, there.media) == (
            profile.slices,
            profile.size,
            profile.starts,
            profile.most,
            profile.media,
        )
        assert (there.nvml_id, there.smi_id) == (profile.nvml_id, profile.smi_id)
        assert there.compute == profile.compute
