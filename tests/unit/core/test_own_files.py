"""Files that gpustate writes itself: what else may be in their place, and whose they have become."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpustate.core.file_queries import apart
from gpustate.core.inventory import InventoryNode
from gpustate.core.node import Node
from gpustate.core.path_conflicts import MaskedUnitsQuery
from gpustate.core.queries import Query
from gpustate.errors import RefusedError
from gpustate.remote import batch

T = TypeVar("T")
root = pytest.mark.skipif(os.geteuid() != 0, reason="files get another owner, which takes root")


class Here(Node):
    """This machine, asked by the real fragments."""

    name, vars = "here", {}

    def query(self, query: Query[T]) -> T:
        made = batch.make_batch(InventoryNode("here"), (query,), "n-1")
        done = subprocess.run(
            ["sh", "-c", made.script], capture_output=True, check=True, timeout=20
        )
        reader = batch.AnswerReader(made)
        reader.feed(done.stdout)
        return query.parse(reader.answers()[0])


def own(path: Path) -> Any:
    return Here().own_text(str(path))


@root
def test_a_file_as_it_was_written_is_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    assert own(path) is None
    path.write_text("a\n")
    for mode in (0o644, 0o755, 0o444):
        path.chmod(mode)
        assert own(path) == "a\n"


@root
@pytest.mark.parametrize(("owner", "mode"), [(1, 0o644), (0, 0o000), (0, 0o600), (0, 0o666)])
def test_a_file_with_another_owner_or_mode_differs_from_what_was_written(
    tmp_path: Path, owner: int, mode: int
) -> None:
    path = tmp_path / "a.conf"
    path.write_text("a\n")
    os.chown(path, owner, owner)
    path.chmod(mode)
    assert own(path) == f"[owner {owner}:{owner}, mode {mode:04o}: not as written]\na\n"


def test_what_is_no_file_is_named_with_the_next_move_and_nothing_waits_for_a_pipe(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.conf"
    makers: dict[str, Callable[[], object]] = {
        "a named pipe": lambda: os.mkfifo(path),
        "a folder": path.mkdir,
        "a symbolic link to nowhere, which is not there": lambda: path.symlink_to("nowhere"),
        "a device": lambda: path.symlink_to("/dev/null"),
    }
    for what, make in makers.items():
        make()
        with pytest.raises(RefusedError) as refused:
            own(path)
        assert str(refused.value) == (
            f"{path} is {what}, and a file belongs there; move it away: mv {path} {path}.moved"
        )
        path.rename(tmp_path / what[:8])


def test_a_link_to_a_file_is_read_through(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("b")
    (tmp_path / "a").symlink_to("b")
    assert own(tmp_path / "a") == "b"


def test_what_is_no_folder_above_a_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for name, what in (
        ("file", "a file"),
        ("lost", "a symbolic link to nowhere, which is not there"),
    ):
        with pytest.raises(RefusedError) as refused:
            own(tmp_path / name / "etc/a.conf")
        assert str(refused.value) == (
            f"{tmp_path}/{name} is {what}, and a folder belongs there; "
            f"move it away: mv {tmp_path}/{name} {tmp_path}/{name}.moved"
        )
    for name in ("none", "folder", "link"):
        assert own(tmp_path / name / "etc/a.conf") is None


def test_a_masked_unit_is_no_file_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / "a.service").symlink_to("/dev/null")
    assert own(folder / "a.service") is None


def test_masked_are_links_to_nothing_and_empty_files_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.service").symlink_to("/dev/null")
    (tmp_path / "b.timer").touch()
    (tmp_path / "c.service").write_text("[Service]\n")
    (tmp_path / "d.service").symlink_to("nowhere")
    (tmp_path / "e.service.d").mkdir()
    script = MaskedUnitsQuery().script().replace("/etc/systemd/system", str(tmp_path))
    assert str(tmp_path) in script
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert {"a.service", "b.timer"} <= set(said.stdout.split())
    assert not {"c.service", "d.service", "e.service.d"} & set(said.stdout.split())


@root
@pytest.mark.parametrize(
    ("owner", "mode", "told"),
    [
        (0, 0o600, ""),
        (0, 0o400, ""),
        (0, 0o644, "owner 0:0, mode 0644"),
        (0, 0o620, "owner 0:0, mode 0620"),
        (0, 0o000, "owner 0:0, mode 0000"),
        (1, 0o600, "owner 1:1, mode 0600"),
    ],
)
def test_a_file_for_root_alone_is_as_written_while_nobody_else_gets_at_it(
    tmp_path: Path, owner: int, mode: int, told: str
) -> None:
    path = tmp_path / "a.read"
    assert Here().otherwise(str(path), private=True) == ""
    path.write_text("a\n")
    os.chown(path, owner, owner)
    path.chmod(mode)
    assert Here().otherwise(str(path), private=True) == told
    text = Here().own_text(str(path), private=True)
    assert text == (f"[{told}: not as written]\na\n" if told else "a\n")
    assert apart(text) == (told, "a\n")
