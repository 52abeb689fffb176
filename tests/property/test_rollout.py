"""Rollouts of made-up fleets: whatever fails, waits or is paused, what was asked for holds at every moment.

A history is played with the real decision and a clock of its own: nodes take random times and end in random ways,
somebody pauses, windows open and close. ``--proof`` plays ten times as many.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate.rollout.decide import Decision, End, Place, Progress, Rollout, decide
from gpustate.rollout.slots import allowed, full
from gpustate.rollout.windows import Window, wait_s
from gpustate.schedulers.base import Member

START = 1_795_000_000.0
EXAMPLES = tries(20_000, 500)
windows = st.builds(
    Window,
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.sampled_from(("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")),
).filter(lambda one: one.opens != one.closes)


@dataclass
class History:
    """A fleet, and what happens to it. Times are minutes."""

    rollout: Rollout
    takes: dict[str, int]
    ends: dict[str, End]
    pauses: list[tuple[int, int]]
    limit: str
    foreign: int
    bad_check: int
    log: list[str] = field(default_factory=list)


@st.composite
def histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(1, 14))
    names = [f"n{number}" for number in range(count)]
    waves = sorted(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)))
    numbers = {wave: number for number, wave in enumerate(sorted(set(waves)))}
    open_ = draw(st.lists(windows, max_size=2)) if draw(st.booleans()) else []
    own = draw(st.booleans())
    places = tuple(
        Place(
            name,
            numbers[wave],
            draw(st.sampled_from(("", "r1", "r2", "r3"))),
            (tuple(open_),) if open_ and (not own or draw(st.booleans())) else (),
        )
        for name, wave in zip(names, waves, strict=True)
    )
    pauses: list[tuple[int, int]] = []
    for begin in draw(st.lists(st.integers(0, 200), max_size=2)):
        pauses.append((begin, begin + draw(st.integers(1, 90))))
    fate = st.sampled_from((End.RELEASED,) * 6 + (End.ROLLED_BACK, End.FAILED, End.SKIPPED))
    return History(
        Rollout(
            places,
            slots=draw(st.integers(1, 6)),
            max_failures=draw(st.integers(0, 4)),
            soak_s=60.0 * draw(st.sampled_from((0, 0, 15))),
        ),
        {name: draw(st.integers(1, 40)) for name in names},
        {name: draw(fate) for name in names},
        pauses,
        draw(st.sampled_from(("", "1", "2", "30%"))),
        draw(st.integers(0, 1)),
        draw(st.sampled_from((0, 0, 0, 1, 2))),
    )


@dataclass
class Played:
    """What became of a history."""

    begun: list[str] = field(default_factory=list)
    began_at: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    last: Decision = field(default_factory=Decision)
    rollout: Rollout = field(default_factory=lambda: Rollout((), 1))  # with refused nodes replaced


def play(history: History) -> Played:
    """Play it to its end, with the limits checked at every step."""
    rollout, played = history.rollout, Played()
    places = {place.name: place for place in rollout.places}
    total = len(places) + history.foreign
    down = {f"f{number}" for number in range(history.foreign)}  # of the cluster, by others
    waiting: list[str] = []  # begun, and not yet out of service
    until: dict[str, float] = {}
    progress, now, soaks = Progress(), START, 0
    for _ in range(20000):
        minute = (now - START) / 60
        paused = any(begin <= minute < end for begin, end in history.pauses)
        progress = replace(progress, paused="paused by ann" if paused else "")
        decision = decide(rollout, progress, now)
        assert decision == decide(rollout, progress, now), "deterministic"
        assert not (paused and decision.start)
        assert not (decision.over and decision.start)
        if decision.soaking and now - progress.wave_ended_at >= rollout.soak_s:
            soaks += 1
            if soaks == history.bad_check:
                progress = replace(progress, stopped="a check failed")
            else:
                progress = replace(progress, checked=decision.wave)
            continue
        for name in decision.start:
            place = places[name]
            assert name not in played.begun, "a node begins once"
            assert all(not wait_s(some, now) for some in place.windows), "inside of its windows"
            earlier = [one for one in places.values() if one.wave < place.wave]
            out = {
                one.rack for one in places.values() if progress.ended.get(one.name) is End.FAILED
            }
            left = [one for one in earlier if one.name not in progress.ended]
            assert all(one.rack and one.rack in out for one in left), "waves in their order"
            same = [one for one in places.values() if one.wave == place.wave]
            first = not any(one.name in played.begun for one in same)
            if place.wave and first and rollout.soak_s and progress.ended:
                assert now - progress.wave_ended_at >= rollout.soak_s, "soaked"
            played.begun.append(name)
            played.began_at[name] = now
            waiting.append(name)
        progress = replace(progress, busy=progress.busy | set(decision.start))
        assert len(progress.busy) <= rollout.slots
        for rack in {place.rack for place in places.values()} - {""}:
            mine = [one.name for one in places.values() if one.rack == rack]
            failed = sum(progress.ended.get(name) is End.FAILED for name in mine)
            busy = sum(name in progress.busy for name in mine)
            assert busy + failed <= max(1, failed), f"one node of {rack} at a time"
        for name in list(waiting):  # the second step: out of service, as the budget allows
            if paused:
                break
            members = [Member(one, True, one not in down) for one in places]
            members += [Member(f"f{n}", True, False) for n in range(history.foreign)]
            me = next(one for one in members if one.name == name)
            blocked = full(members, me, history.limit, {one: one for one in until})
            if blocked and not until:
                waiting.remove(name)
                progress = replace(
                    progress,
                    busy=progress.busy - {name},
                    ended={**progress.ended, name: End.SKIPPED},
                    wave_ended_at=now,
                    stopped=progress.stopped or "the budget is used up",
                )
                played.ended_at[name] = now
            elif not blocked:
                waiting.remove(name)
                until[name] = now + 60 * history.takes[name]
                down.add(name)
                most = max(allowed(history.limit, total), history.foreign)
                assert len(down) <= most, "the budget holds"
        if decision.over and not progress.busy:
            played.progress, played.last, played.rollout = progress, decision, rollout
            return played
        again = [now + 60, *until.values()]
        if decision.wake_s and not progress.busy:
            again = [now + min(decision.wake_s, 6 * 3600)]
            if any(begin * 60 > now - START for begin, _ in history.pauses):
                again.append(now + 60)
        then = decide(rollout, progress, now)
        if not (then.start or progress.busy or paused or then.over):
            assert then.wake_s is not None, f"starved: {then}"
        now = max(now + 1, min(again))
        for name in [name for name, at in until.items() if at <= now]:
            del until[name]
            end = history.ends[name]
            if end is not End.FAILED:
                down.discard(name)
            progress = replace(
                progress,
                busy=progress.busy - {name},
                ended={**progress.ended, name: end},
                wave_ended_at=now,
            )
            played.ended_at[name] = now
            if end is End.SKIPPED:
                rollout = rollout.without(name, progress.busy | progress.ended.keys())
                places = {place.name: place for place in rollout.places}
    raise AssertionError("the rollout never ends")


@given(histories())
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_history_keeps_what_was_asked_for_and_ends(history: History) -> None:
    played = play(history)
    rollout, progress = played.rollout, played.progress
    assert progress.ended.keys() == set(played.begun)
    waves = {place.name: place.wave for place in rollout.places}
    bad = [name for name, end in progress.ended.items() if end is not End.RELEASED]
    if rollout.max_failures:
        late = sorted(played.ended_at[name] for name in bad)[rollout.max_failures - 1 :]
        for name in played.begun if late else ():
            assert played.began_at[name] <= late[0], "nothing begins after the threshold"
    elif failed := [name for name in bad if progress.ended[name] is not End.SKIPPED]:
        assert max(waves[name] for name in played.begun) == min(waves[name] for name in failed)
    if not played.last.stop:
        out = {
            p.rack for p in rollout.places if p.rack and progress.ended.get(p.name) is End.FAILED
        }
        missing = [p for p in rollout.places if p.name not in progress.ended]
        assert all(place.rack in out for place in missing), "every node has its turn"


@given(st.lists(windows, min_size=1, max_size=3), st.integers(0, 400 * 86400))
@settings(max_examples=tries(500, 166), deadline=None)
def test_a_window_opens_after_the_time_that_it_names(found: list[Window], later: int) -> None:
    at = START + later
    wait = wait_s(found, at)
    assert 0 <= wait <= 8 * 86400
    assert wait_s(found, at + wait) == 0
    if wait > 1:
        assert wait_s(found, at + wait / 2) > 0


@pytest.mark.parametrize("count", [5000])
def test_a_decision_about_many_nodes_takes_no_time(count: int) -> None:
    rollout = Rollout(tuple(Place(f"n{n}", n // 500) for n in range(count)), 50)
    assert decide(rollout, Progress(), START).start == tuple(f"n{n}" for n in range(50))
