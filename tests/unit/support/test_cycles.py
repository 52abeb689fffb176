"""The tally of what states went through on nodes counts what happened, and misses what did not."""

from __future__ import annotations

from cycles import APPLIED, DAMAGED, MENDED, PARTS, REMOVED, SETTLED, Cycles


def told(*rows: tuple[str, str, str], disk: str = "1") -> Cycles:
    found = Cycles()
    for verb, policy, outcome in rows:
        found.note(verb, policy, disk, "gpu1", "cdi", outcome)
    return found


def test_a_whole_cycle_is_seen_whole() -> None:
    found = told(
        ("apply", "a", "changed"),
        ("apply", "a", "unchanged"),
        ("drift", "a", "would change"),
        ("apply", "a", "changed"),
        ("remove", "a", "changed"),
    )
    assert found.seen["cdi"] == set(PARTS)
    assert found.missing(["cdi"]) == {}


def test_another_policy_or_disk_is_no_damage() -> None:
    assert told(("apply", "a", "changed"), ("apply", "b", "changed")).seen["cdi"] == {APPLIED}
    assert told(("apply", "a", "changed"), ("drift", "b", "would change")).seen["cdi"] == {APPLIED}
    found = told(("apply", "a", "changed"))
    found.note("apply", "a", "2", "gpu1", "cdi", "changed")
    assert found.seen["cdi"] == {APPLIED}


def test_a_failed_apply_leaves_nothing_settled() -> None:
    found = told(("apply", "a", "changed"), ("apply", "a", "failed"), ("apply", "a", "changed"))
    assert found.seen["cdi"] == {APPLIED}
    removed = told(("apply", "a", "changed"), ("remove", "a", "changed"), ("apply", "a", "changed"))
    assert removed.seen["cdi"] == {APPLIED, REMOVED}


def test_what_was_not_seen_is_missing_and_so_is_a_state_nobody_ran() -> None:
    found = told(("apply", "a", "changed"), ("apply", "a", "unchanged"))
    assert found.missing(["cdi", "driver"]) == {"cdi": (DAMAGED, MENDED, REMOVED), "driver": PARTS}
    assert SETTLED in found.seen["cdi"]
    assert "applied" not in found.missing(["preflight"]).get("preflight", ())
