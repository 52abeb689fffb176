"""The sandbox of random command lines, wherever the checkout lies."""

from __future__ import annotations

from pathlib import Path

import clitrials
import pytest
import sandbox


@pytest.fixture
def checkout(short_path: Path) -> Path:
    """A folder below /tmp with a program in it."""
    if missing := sandbox.missing():
        pytest.skip(missing)
    folder = short_path / "a/checkout"
    folder.mkdir(parents=True)
    (folder / "program").write_text("#!/bin/sh\n" + 'ls -A "$1"; echo x >"$1/written"; ls -A /tmp')
    (folder / "program").chmod(0o755)
    return folder


def test_a_program_below_tmp_runs_in_an_otherwise_empty_tmp(
    checkout: Path, short_path: Path
) -> None:
    done = clitrials.run_inside([f"{checkout}/program", str(short_path)], [str(checkout)])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["a", "canary", short_path.name]
    assert not (short_path / "written").exists()


def test_a_program_below_tmp_cannot_write_to_its_own_folder(checkout: Path) -> None:
    done = clitrials.run_inside([f"{checkout}/program", str(checkout)], [str(checkout)])
    assert "Read-only file system" in done.stderr
    assert [path.name for path in checkout.iterdir()] == ["program"]
