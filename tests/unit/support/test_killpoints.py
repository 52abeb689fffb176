"""The points of a run, told from a made-up recording."""

from __future__ import annotations

import killpoints
from killpoints import CONTROLLER, NODE, PROGRAM, SHELL, Stop

#: One step that writes a file: the start, its intent, two moments of writing, effect, result, end.
STOPS = (
    Stop(1, 1, 1, "start", "", "a"),
    Stop(2, 1, 2, "intent", "s write f", "a"),
    Stop(3, 1, 2, "", "s write f", "b"),
    Stop(4, 1, 2, "", "s write f", "c"),
    Stop(5, 1, 3, "effect", "s write f", "c"),
    Stop(6, 1, 4, "result", "s write f", "c"),
    Stop(7, 1, 5, "end", "", "d"),
)


def test_each_entry_has_three_points_for_each_of_who_can_die() -> None:
    names = [point.name for point in killpoints.points(STOPS)]
    assert len(names) == len(set(names))
    for stop in killpoints.entries(STOPS):
        for who in (CONTROLLER, PROGRAM, NODE):
            for when in ("before", "torn", "after"):
                assert f"{who}-{stop.name}-{when}" in names


def test_between_entries_nobody_kills_a_controller_and_the_shell_dies_alone_only_there() -> None:
    inner = [point for point in killpoints.points(STOPS) if not point.stop.kind]
    assert {point.who for point in inner} == {PROGRAM, NODE, SHELL}
    assert all(not p.stop.kind for p in killpoints.points(STOPS) if p.who == SHELL)


def test_points_with_one_disk_and_one_verdict_are_one_place() -> None:
    points = killpoints.points(STOPS)
    places = killpoints.places(points)
    nodes = [place for place in places if place.who == NODE]
    assert [len(place.points) for place in nodes] == [6, 1, 7, 3]
    assert sorted(p.name for place in places for p in place.points) == sorted(
        point.name for point in points
    )
    split = killpoints.places(points, lambda point: str(point.when == "torn"))
    assert len([place for place in split if place.who == NODE]) == 4 + 3


def test_equal_disks_with_another_between_them_are_two_places() -> None:
    back = (*STOPS[:3], Stop(8, 1, 5, "end", "", "a"))
    places = [p for p in killpoints.places(killpoints.points(back)) if p.who == NODE]
    assert [len(place.points) for place in places] == [6, 1, 3]


def test_thinning_keeps_every_place_with_an_entry_and_some_within_the_steps() -> None:
    stops: list[Stop] = []
    for step in range(8):
        names = [f"{step}-{n}" for n in range(3)]
        stops += [
            Stop(10 * step, 1, 2 * step + 1, "intent", f"s write {step}", f"i{step}"),
            *(
                Stop(10 * step + n, 1, 2 * step + 1, "", f"s write {step}", name)
                for n, name in enumerate(names, 1)
            ),
            Stop(10 * step + 9, 1, 2 * step + 2, "result", f"s write {step}", f"r{step}"),
        ]
    places = killpoints.places(killpoints.points(stops))
    thin = killpoints.thinned(places)
    assert set(killpoints.with_entries(places)) <= set(thin)
    within = [place for place in thin if place not in killpoints.with_entries(places)]
    assert {who: sum(p.who == who for p in within) for who in (PROGRAM, NODE, SHELL)} == {
        PROGRAM: 4,
        NODE: 4,
        SHELL: 2,
    }
    # Another moment of writing each time.
    assert {p.chosen.stop.call % 10 for p in within if p.who == NODE} == {1, 2, 3}
    assert [p for p in places if p in thin] == thin


def test_a_long_step_is_killed_at_two_moments_and_its_shell_at_one() -> None:
    ticks = [Stop(2, 1, 2, "", "s build", f"t{n}", clock=0.1 + n) for n in range(5)]
    places = killpoints.places(killpoints.points([*STOPS[:2], *ticks]))
    thin = [place for place in killpoints.thinned(places) if place.chosen.stop.clock]
    assert {who: sum(p.who == who for p in thin) for who in (PROGRAM, NODE, SHELL)} == {
        PROGRAM: 2,
        NODE: 2,
        SHELL: 1,
    }


def test_a_journal_is_cut_to_what_a_kill_leaves() -> None:
    journal = b'{"e":"start"}\n{"e":"intent","i":1}\n'
    assert killpoints.cut(journal, "after") == journal
    assert killpoints.cut(journal, "before") == b'{"e":"start"}\n'
    assert killpoints.cut(journal, "torn") == b'{"e":"start"}\n{"e":"inte'
    assert killpoints.cut(b"", "torn") == b""


def test_only_a_step_that_had_ended_and_does_something_counts_as_repeated() -> None:
    done = [("s", "restart x"), ("s", "look for y")]
    again = [*done, ("s", "restart z")]
    assert killpoints.repeated(done, again, ["look for"]) == ["s: restart x"]
