"""No file of proofs is left out of ``make proof``."""

from __future__ import annotations

import proofs


def test_every_file_of_proofs_is_walked_once() -> None:
    walked = [name for some in proofs.files() for name in some]
    assert sorted(walked) == sorted(path.stem for path in proofs.PROOF.glob("test_*.py"))
    assert {*proofs.FIRST, *proofs.ALONE} <= set(walked)
