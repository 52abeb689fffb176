"""JSON patches of policies against the library jsonpatch, on random documents and patches."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch as reference
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jsonpointer import JsonPointerException
from shares import tries

from gpustate.errors import PolicyError
from gpustate.policies import jsonpatch, trees

MANY = tries(3000, 300)

KEYS = st.sampled_from(["a", "b", "0", "x/y", "t~z", ""])
SCALAR = st.sampled_from([None, True, False, 0, 1, 1.5, "", "1", "text"])
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
DOCUMENT = st.dictionaries(KEYS, VALUE, min_size=1, max_size=4)
STEP = st.sampled_from(["a", "b", "0", "1", "2", "-", "01", "x~1y", "t~0z", ""])
POINTER = st.lists(STEP, min_size=1, max_size=3).map(lambda steps: "".join(f"/{s}" for s in steps))
OPERATION = (
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "replace", "test"]), "path": POINTER, "value": VALUE}
    )
    | st.fixed_dictionaries({"op": st.just("remove"), "path": POINTER})
    | st.fixed_dictionaries(
        {"op": st.sampled_from(["move", "copy"]), "path": POINTER, "from": POINTER}
    )
)


def by_library(data: Any, patch: Any) -> tuple[bool, Any]:
    try:
        return True, reference.apply_patch(data, patch)
    except (reference.JsonPatchException, JsonPointerException):
        return False, None


def by_gpustate(data: Any, patch: Any) -> tuple[bool, Any]:
    try:
        made = jsonpatch.apply(trees.from_data(data, "x"), trees.from_data(patch, "y"), {})
    except PolicyError:
        return False, None
    return True, trees.plain(made)


@given(data=DOCUMENT, patch=st.lists(OPERATION, min_size=1, max_size=4))
@settings(max_examples=MANY, deadline=None)
def test_a_patch_does_what_the_library_does(data: Any, patch: Any) -> None:
    expected, made = by_library(data, patch), by_gpustate(data, patch)
    event("applied" if expected[0] else "refused")
    assert made[0] == expected[0]
    assert json.dumps(made[1], sort_keys=True) == json.dumps(expected[1], sort_keys=True)
