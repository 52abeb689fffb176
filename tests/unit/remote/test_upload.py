"""Files reach a node once each: continued where they were cut, and none whose hash does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bundleworld import Site

from gpustate.bundle import reading
from gpustate.core.inventory import Connection, InventoryNode
from gpustate.errors import StepFailed
from gpustate.ops.upload import Upload
from gpustate.remote import upload
from gpustate.remote.session import Session

APP = "base/app_1.0_amd64.deb"


@pytest.fixture
def step(tmp_path: Path) -> Upload:
    path = Site(tmp_path / "site").bundle(tmp_path / "b")
    target = reading.load(str(path)).manifest.targets[0]
    files = tuple(
        (f"{repository.name}/{file.name}", file.sha256, file.size)
        for repository in target.repositories
        for file in repository.files
    )
    return Upload(str(path), target.name, str(tmp_path / "node"), files)


def send(step: Upload) -> list[str]:
    """Send to this machine, by the same script; what was sent."""
    said: list[str] = []
    node = InventoryNode("here", connection=Connection(kind="local"))
    upload.send(Session(node), step, said.append)
    return said


def same(step: Upload) -> bool:
    return all(
        (Path(step.folder) / name).read_bytes()
        == (Path(step.source) / step.prefix / name).read_bytes()
        for name, _, _ in step.files
    )


def test_every_file_is_sent_once(step: Upload) -> None:
    assert len(send(step)) == len(step.files)
    assert same(step)
    assert send(step) == []


def test_a_file_that_was_cut_is_continued(step: Upload) -> None:
    send(step)
    whole = Path(step.folder) / APP
    data = whole.read_bytes()
    whole.unlink()
    whole.with_name(f"{whole.name}.part").write_bytes(data[:-5])
    said = send(step)
    assert len(said) == 1
    assert same(step)
    assert not list(Path(step.folder).rglob("*.part"))


def test_what_does_not_fit_is_thrown_away_and_sent_anew_the_next_time(step: Upload) -> None:
    part = Path(step.folder) / f"{APP}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 10)
    with pytest.raises(
        StepFailed,
        match=r"does not match its hash in the bundle; verify it: gpustate image bundle check",
    ):
        send(step)
    assert not part.exists()
    send(step)
    assert same(step)


def test_a_bundle_that_was_damaged_is_never_put_in_place(step: Upload) -> None:
    source = Path(step.source) / step.prefix / APP
    source.write_bytes(b"x" * source.stat().st_size)
    with pytest.raises(StepFailed, match=r"app_1.0_amd64.deb does not match its hash"):
        send(step)
    assert not (Path(step.folder) / APP).exists()
    source.write_bytes(b"x")
    with pytest.raises(StepFailed, match="is shorter than the bundle"):
        send(step)


def test_no_room_is_told_before_anything_is_sent(step: Upload) -> None:
    huge = replace(step, files=((APP, "0" * 64, 1 << 50),))
    with pytest.raises(StepFailed, match=r"No space left on device: .* MiB free, the bundle needs"):
        send(huge)
    assert not list(Path(step.folder).rglob("*.part"))


def test_a_folder_that_cannot_be_made_is_one_line(step: Upload) -> None:
    Path(step.folder).write_text("a file")
    with pytest.raises(StepFailed, match="cannot write to"):
        send(step)
