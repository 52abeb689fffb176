"""Which of the GPU Operator's status files a validation writes, keeps and removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate.diagnosis import chain
from gpustate.nodeside import validate

ALL = ["driver-ready", "toolkit-ready", "cuda-ready"]


def checks(**outcomes: str) -> tuple[chain.Check, ...]:
    return tuple(
        chain.Check(name, outcomes.get(name.replace("-", "_"), "ok"), "") for name in chain.LINKS
    )


@pytest.mark.parametrize(
    ("outcomes", "busy", "written"),
    [
        ({}, False, ALL),
        # Nothing was started, so nobody knows what a container gets.
        ({"container": "not applicable"}, False, ["driver-ready", "cuda-ready"]),
        ({"container": "failed"}, False, ["driver-ready"]),
        ({"health": "failed"}, False, ["driver-ready", "toolkit-ready"]),
        ({"pci": "failed"}, False, []),
        ({"cuda": "not applicable"}, True, ALL),
        ({"cuda": "not applicable"}, False, ["driver-ready", "toolkit-ready"]),
    ],
)  # fmt: skip
def test_a_file_is_there_for_what_was_tested(
    tmp_path: Path, outcomes: dict[str, str], busy: bool, written: list[str]
) -> None:
    files = validate.StatusFiles(True, tmp_path / "state", tmp_path / "validations")
    assert files.finish(checks()) == ALL
    assert files.finish(checks(**outcomes), busy=busy) == written
    assert sorted(path.name for path in (tmp_path / "validations").iterdir()) == sorted(written)


def test_files_of_the_operators_own_validator_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "driver-ready").write_text("IS_HOST_DRIVER=false\n")
    assert (
        validate.StatusFiles(True, tmp_path / "state", tmp_path).finish(checks(pci="failed")) == []
    )
    assert (tmp_path / "driver-ready").exists()
