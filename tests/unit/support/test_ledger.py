"""The ledger of a disk, on folders that stand for an overlay's layers."""

from __future__ import annotations

import os
from pathlib import Path

import ledger
import pytest


@pytest.fixture
def disk(tmp_path: Path) -> tuple[Path, Path]:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for folder in (upper, lower):
        (folder / "etc").mkdir(parents=True)
    (lower / "etc/same").write_text("x")
    (upper / "etc/same").write_text("x")
    (upper / "etc/own").write_text("mine\n")
    return upper, lower


def test_a_file_that_was_copied_up_and_not_changed_is_not_in_it(disk: tuple[Path, Path]) -> None:
    upper, lower = disk
    assert list(ledger.read(upper, [lower])) == ["etc/own"]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("other\n"),
        lambda path: path.chmod(0o600),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.symlink_to("elsewhere")),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_content_mode_and_kind_are_told_apart(disk: tuple[Path, Path], change: object) -> None:
    upper, lower = disk
    before = ledger.read(upper, [lower])
    assert callable(change)
    change(upper / "etc/own")
    after = ledger.read(upper, [lower])
    (line,) = ledger.differences(before, after)
    assert line.startswith("etc/own: was file ")
    assert ledger.digest(before) != ledger.digest(after)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what overlayfs calls a whiteout")
def test_a_file_of_the_image_that_is_removed_is_gone(disk: tuple[Path, Path]) -> None:
    upper, lower = disk
    (upper / "etc/same").unlink()
    os.mknod(upper / "etc/same", 0o020000, 0)
    assert ledger.read(upper, [lower])["etc/same"] == "gone"


def test_what_is_volatile_or_our_own_is_not_foreign() -> None:
    assert ledger.foreign("etc/modprobe.d/a.conf")
    assert ledger.foreign("var/lib/dpkg/info/a.list")
    assert ledger.foreign("var/lib/gpustate-lab")
    for name in ("var/lib/gpustate", "var/lib/gpustate/runs/1/journal", "var/log/dpkg.log", "run"):
        assert not ledger.foreign(name)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("etc/.gpustate.0123", True),
        ("etc/a.conf.dpkg-new", True),
        ("var/lib/gpustate/originals/12.new", True),
        ("var/lib/gpustate/runs/a-1.new", True),
        ("var/lib/gpustate/runs/a-1/pre/1.path.new", False),
        ("etc/newer.conf", False),
    ],
)
def test_temporary_files_are_known_by_their_names(tmp_path: Path, name: str, left: bool) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert (ledger.left_behind(tmp_path) == [name]) is left
