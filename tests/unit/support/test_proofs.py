"""No test that a run of all tests leaves out is left out of ``make proof``."""

from __future__ import annotations

import proofs


def test_every_file_of_proofs_is_walked_once() -> None:
    walked = [path for paths in proofs.files() for path in paths]
    assert len(walked) == len(set(walked))
    assert set(walked) >= set((proofs.TESTS / "proof").glob("test_*.py"))
    assert {*proofs.FIRST, *proofs.ALONE} <= {path.stem for path in walked}


def test_every_file_with_a_test_that_is_left_out_is_walked() -> None:
    walked = {path for paths in proofs.files() for path in paths}
    mark = ".".join(("mark", "long"))
    marked = {path for path in proofs.TESTS.rglob("test_*.py") if mark in path.read_text("utf-8")}
    assert marked
    assert not marked - walked
