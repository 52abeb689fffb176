"""Killed with SIGKILL at every journal entry of a full apply, one more apply converges.

The run is recorded on lab nodes, held at every call that forces something to disk, and its points are
enumerated (:mod:`killpoints`). Somebody dies there: the controller, the whole node program, the
program's shell alone while its step goes on, or the node. On Debian 12 controller and node die at every
entry of the journal; of the other deaths there, and of Debian 13, where they die inside a step as well, a share is
taken that turns with the commit. What dies in a stage after the first dies in a run that begins with that stage, on the disk
that the stage before it left, where that run does the same. A re-run ends with the stage of the kill, on the disk that the
recorded run had there; every tenth goes on to the end. Then ``gpustate apply`` is run once more, and
``drift`` after it. Both have to end with 0; the disk has to be that of a run nobody disturbed, files of
others to the byte; nothing temporary may be left, no lock, no process; and no step whose result was on
disk may have been done again.

A later state is in the run by being registered: in the policy are those of the Kubernetes preset and
every other one with its defaults, and a state that did nothing in the run fails the first test.

``GPUSTATE_POINT=debian12/node-2.17-result-after`` carries out one point alone;
``debian12/shell-*`` all of a kind.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase

import declarations
import killpoints
import nodedisk
import pytest
import shares
from killcampaign import Campaign, told
from killpoints import CONTROLLER, NODE, PROGRAM, WHENS, Point

from gpustate import presets, registry
from gpustate_lab.api import Lab
from gpustate_lab.sim.node_packages import OLDER_KERNEL
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

POINT = os.environ.get("GPUSTATE_POINT", "")
#: Version 1.17 of the toolkit brings no refresh unit of its own, so the cdi state has its own to do, and its mode
#: auto would end in libnvidia-container, which the lab has not; by its default
#: persistenced has nothing to do once the driver is loaded.
POLICY = """
from gpustate import Policy, presets, registry

preset = presets.kubernetes_node(
    driver={"version": "580.65.06"}, container_toolkit={"version": "1.17.8", "mode": "cdi"},
    persistenced={"uvm_persistence": True},
)
others = set(registry.states()) - {state.name for state in preset.states}
policy = Policy(*preset.states, *(registry.get(name)() for name in sorted(others)))
"""
#: States that are in the run and have no step there, each with its reason.
STEPLESS = declarations.collected("STEPLESS")
IMAGES = ("debian12", "debian13")
#: Where every place that the death of the controller or of the node can leave is carried out.
WHOLE = "debian12"


@dataclass
class Killed:
    """What was done on one image."""

    image: str
    campaign: Campaign
    taken: list[Point]


def points_to_take(image: str, campaign: Campaign) -> list[Point]:
    """All of what must be seen whole, and a share of the rest that turns with the commit: each victim once at least."""
    if POINT:
        return [p for p in campaign.points if fnmatchcase(f"{image}/{p.name}", POINT)]
    some = [place.chosen for place in killpoints.thinned(campaign.places)]
    entries = {place.chosen for place in killpoints.with_entries(campaign.places)}
    whole = [p for p in some if image == WHOLE and p.who in (CONTROLLER, NODE) and p in entries]
    rest = [point for point in some if point not in whole]

    def share(what: str, points: list[Point], most: int, *, always: bool) -> list[Point]:
        return shares.share(
            f"kill points, {image}{what}",
            points,
            most=most,
            kind=lambda point: (point.who, point.when) if always else point.who,
            always=always,
        )

    if not shares.everything():
        return share("", some, 4, always=False)
    return share("", whole, 0, always=False) + share(", the rest", rest, 5, always=True)


@pytest.fixture(scope="module")
def killed(
    lab_factory: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Killed]]:
    """Each victim, on an image that turns with the commit; or everything, on nodes side by side."""
    turn = int(hashlib.sha256(shares.seed().encode()).hexdigest(), 16)
    images = [IMAGES[0], *IMAGES] if shares.everything() else [IMAGES[turn % len(IMAGES)]]
    if POINT:
        images = [POINT.partition("/")[0]]
    names = [f"gpu{number}" for number in range(1, len(images) + 1)]
    lab = lab_factory(
        LabSpec.parse(
            nodes=len(images),
            image=",".join(images),
            gpus="8xH100",
            faults=[f"nouveau@{name}" for name in names],
        )
    )
    policy = tmp_path_factory.mktemp("kill") / "policy.py"
    policy.write_text(POLICY)
    folder = lab.directory / "kill"  # goes with the lab; /tmp may be small
    nodedisk.in_memory(folder)
    made = {
        image: Campaign(
            lab.name, [n for n, i in zip(names, images, strict=True) if i == image], policy, folder
        )
        for image in dict.fromkeys(images)
    }

    def one(image: str) -> Killed:
        campaign = made[image]
        # A second kernel doubles builds and images of every one of the many points; the others have it.
        spare = OLDER_KERNEL if shares.everything() and image == WHOLE else ""
        # Stops by the clock make recording several times as long, and are for deaths inside a step only.
        campaign.record(clock=shares.everything() and image != WHOLE, spare_kernel=spare)
        taken = points_to_take(image, campaign)
        campaign.carry_out(taken, lambda line: print(f"{image}/{line}", flush=True))
        return Killed(image, campaign, taken)

    try:
        with ThreadPoolExecutor(len(made)) as pool:
            done = dict(zip(made, pool.map(one, made), strict=True))
        for image, result in done.items():
            for line in result.campaign.table():
                shares.TAKEN[f"killed, {image}, {line.partition(':')[0]}"] = line.partition(": ")[2]
        yield done
    finally:
        for campaign in made.values():
            campaign.close()


def test_every_registered_state_does_something_in_the_run_that_is_killed(
    killed: dict[str, Killed],
) -> None:
    known = set(registry.states())
    assert known >= {state.name for state in presets.kubernetes_node().states}
    for image, result in killed.items():
        outcomes = result.campaign.recording.states
        assert outcomes.keys() == known
        idle = {name for name, outcome in outcomes.items() if outcome != "changed"}
        assert idle == set(STEPLESS), (
            f"{image}: {sorted(idle ^ set(STEPLESS))}: make the node or the policy such that each of "
            "these has something to do in the run"
        )


def test_with_every_state_a_look_at_a_converged_node_is_one_connection_and_one_exec(
    killed: dict[str, Killed],
) -> None:
    for image, result in killed.items():
        recording = result.campaign.recording
        row = recording.converged
        assert {state["outcome"] for state in row["states"]} <= {"unchanged", "not applicable"}
        assert len(row["states"]) == len(registry.states())
        assert (row["connections"], row["execs"]) == (1, 1)
        what = f"a look at {len(row['states'])} states, {image}"
        shares.TAKEN[what] = (
            f"{recording.looked_s * 1000:.0f} ms of the node's processor, "
            f"of which {recording.login_s * 1000:.0f} ms are the login"
        )


def test_every_journal_entry_has_its_points_and_each_of_them_a_place(
    killed: dict[str, Killed],
) -> None:
    for result in killed.values():
        campaign = result.campaign
        entries = killpoints.entries(campaign.recording.stops)
        assert {stop.kind for stop in entries} == {"start", "intent", "effect", "result", "end"}
        placed = {point.name for place in campaign.places for point in place.points}
        for stop in entries:
            for who in (CONTROLLER, PROGRAM, NODE):
                assert placed >= {f"{who}-{stop.name}-{when}" for when in WHENS}
        if shares.everything() and not POINT:
            carried = set(campaign.results)
            for place in killpoints.with_entries(campaign.places):
                if place.who in (CONTROLLER, NODE) and result.image == WHOLE:
                    assert place.chosen.name in carried


@pytest.mark.parametrize("who", killpoints.WHO)
@pytest.mark.parametrize("image", IMAGES)
def test_whoever_dies_wherever_one_more_apply_converges_and_repeats_nothing(
    killed: dict[str, Killed], image: str, who: str
) -> None:
    results = killed[image].campaign.results if image in killed else {}
    mine = {name: result for name, result in results.items() if name.startswith(f"{who}-")}
    if not mine:
        pytest.skip(f"no point of {who} on {image} was asked for")
    wrong = [result for result in mine.values() if result.problems]
    assert not wrong, f"{len(wrong)} of {len(mine)}:\n" + "\n".join(
        f"GPUSTATE_POINT='{image}/{told(result)}" for result in wrong
    )
