"""What has changed in a cluster since a plan was saved."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.reconcile.saved import stale

CHANGE = {"field": "data.a", "before": "1", "after": "2"}
OTHER = {"field": "data.a", "before": "3", "after": "2"}


def cluster(*rows: tuple[str, str, list[dict[str, Any]]]) -> dict[str, Any]:
    found = [
        {"object": name, "action": action, **({"changes": changes} if changes else {})}
        for name, action, changes in rows
    ]
    return {"server": "s", "namespace": "n", "objects": found}


X = "configmap/x"
UNCHANGED, UPDATE = (X, "unchanged", []), (X, "update", [CHANGE])


@pytest.mark.parametrize(
    ("then", "now", "words", "lenient"),
    [
        (cluster(UNCHANGED), cluster(UNCHANGED), {}, {}),
        (cluster(UPDATE), cluster(UPDATE), {}, {}),
        (
            cluster(UNCHANGED),
            cluster(UPDATE),
            *[{X: "unchanged in the plan, update of data.a now"}] * 2,
        ),
        (
            cluster(UPDATE),
            cluster((X, "update", [OTHER])),
            *[{X: "update of data.a in the plan, update of data.a now"}] * 2,
        ),
        (
            cluster(UPDATE),
            cluster(UNCHANGED),
            {X: "update of data.a in the plan, unchanged now"},
            {},
        ),
        (cluster(), cluster((X, "delete", [])), *[{X: "missing in the plan, delete now"}] * 2),
        (cluster((X, "delete", [])), cluster(), {X: "delete in the plan, missing now"}, {}),
        (
            cluster((X, "create", [])),
            cluster((X, "refused", [OTHER])),
            *[{X: "create in the plan, refused of data.a now"}] * 2,
        ),
    ],
)
def test_another_change_than_the_planned_one_is_named(
    then: dict[str, Any], now: dict[str, Any], words: dict[str, str], lenient: dict[str, str]
) -> None:
    assert stale(then, now) == words
    assert stale(then, now, lenient=True) == lenient


def test_labels_of_a_node_whose_run_has_failed_are_not_missed() -> None:
    then = cluster(("node/gpu1", "update", [CHANGE]), ("node/gpu2", "update", [CHANGE]))
    now = cluster(("node/gpu1", "update", [CHANGE]))
    assert not stale(then, now)
    edited = cluster(("node/gpu1", "update", [OTHER]))
    assert stale(then, edited)
    assert not stale(then, edited, nodes=False)


def test_many_fields_are_counted() -> None:
    changes = [{**CHANGE, "field": name} for name in "abcd"]
    found = stale(cluster(UNCHANGED), cluster((X, "update", changes)))
    assert found == {X: "unchanged in the plan, update of a, b and 2 more now"}
