"""Edits of containerd's configuration, judged by real containerd binaries.

Nothing is started: ``containerd config dump`` reads files of a temporary directory.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import containerds
import pytest
from containerds import read, snapshot, write

from gpustate.errors import RefusedError
from gpustate.formats.containerd import (
    Files,
    Handler,
    effective,
    effective_change,
    handler_problems,
    plan_edit,
    plan_removal,
)
from gpustate.formats.toml_scan import parse

pytestmark = pytest.mark.node

DATA = Path(__file__).parents[1] / "data" / "containerd"
CASES = [*sorted(path.name for path in (DATA / "inputs").iterdir()), "kubeadm"]
HANDLERS = {"plain": Handler(), "default-and-cdi": Handler(default=True, enable_cdi=True)}


@pytest.fixture(scope="module", params=containerds.releases())
def containerd(lab_machine: None, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Path and version of one program."""
    path = containerds.program(request.param)
    return path, containerds.version(path)


def lay_out(case: str, version_default: str, etc: Path) -> None:
    """Put the files of ``case`` into ``etc``, paths in them pointing there."""
    if case == "kubeadm":
        text = version_default.replace("SystemdCgroup = false", "SystemdCgroup = true")
        (etc / "config.toml").write_text(text)
    else:
        shutil.copytree(DATA / "inputs" / case, etc, dirs_exist_ok=True)
    for path in etc.rglob("*.toml"):
        path.write_bytes(path.read_bytes().replace(b"/etc/containerd", bytes(etc)))


def dump(containerd: tuple[str, str], files: Files) -> str:
    done = containerds.dump(containerd[0], files)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wish", HANDLERS)
def test_only_the_handler_differs_in_the_dump_and_removal_gives_the_bytes_back(
    containerd: tuple[str, str], case: str, wish: str, tmp_path: Path
) -> None:
    path, version = containerd
    handler = HANDLERS[wish]
    etc = tmp_path / "containerd"
    etc.mkdir()
    defaults = subprocess.run([path, "config", "default"], capture_output=True, text=True)
    lay_out(case, defaults.stdout, etc)
    files = read(etc)
    old = snapshot(etc)
    data = parse(files.root_text or "", case)
    if case == "newer-drop-in":
        pytest.skip("containerd cannot use these files before the edit; another test has them")
    if data.get("version", 1) > 2 and version.startswith("1."):
        pytest.skip("containerd 1.x reads no version 3 file")
    if case == "version-1" and version.startswith(("2.0.", "2.1.", "2.2.")):
        with pytest.raises(RefusedError, match=r"CRI settings containerd 2\.[012] ignores"):
            plan_edit(files, handler, containerd_version=version, dump_text=dump(containerd, files))
        return
    before = dump(containerd, files)
    if case == "no-trailing-newline" and version.startswith(("2.0.", "2.1.", "2.2.")):
        with pytest.raises(RefusedError, match="ignores it"):
            plan_edit(files, handler, containerd_version=version, dump_text=before)
        return

    edit = plan_edit(files, handler, containerd_version=version, dump_text=before)
    write(edit)

    changed_files = read(etc)
    after = dump(containerd, changed_files)
    change = effective_change(before, after, handler)
    # containerd 1.x has no runc where files name other runtimes and not it; its CRI plugin did not load.
    grown = "runc" not in effective(before).runtimes
    assert [one for one in change.foreign if not (grown and ".runtimes.runc." in one)] == []
    old_default = effective(before).default_runtime
    low_level = old_default if not old_default.startswith("nvidia") else "runc"
    if not (version.startswith("1.6") and handler.enable_cdi):
        assert handler_problems(effective(after), handler, low_level=low_level) == ()
    assert bool(change) == bool(edit)
    again = plan_edit(changed_files, handler, containerd_version=version, dump_text=after)
    assert again.files == {}
    write(plan_removal(changed_files, handler))
    assert snapshot(etc) == old


@pytest.mark.parametrize("wish", HANDLERS)
def test_a_drop_in_newer_than_its_root_is_made_harmless(
    containerd: tuple[str, str], wish: str, tmp_path: Path
) -> None:
    version = containerd[1]
    handler = HANDLERS[wish]
    etc = tmp_path / "containerd"
    etc.mkdir()
    lay_out("newer-drop-in", "", etc)
    files = read(etc)
    old = snapshot(etc)
    alone = etc / "alone.toml"
    alone.write_text((files.root_text or "").replace("imports", "# imports"))
    before = dump(containerd, Files(alone.read_text(), root_path=str(alone)))
    alone.unlink()

    edit = plan_edit(files, handler, containerd_version=version, dump_text=before)
    write(edit)

    changed_files = read(etc)
    after = dump(containerd, changed_files)
    assert effective_change(before, after, handler).foreign == ()
    assert "registry.example.org/pause:3.9" in after
    assert any("version 3" in note for note in edit.notes)
    write(plan_removal(changed_files, handler))
    assert snapshot(etc) == old
