from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import command, images, paths, simulation
from gpustate_lab.command import run
from gpustate_lab.simulation import Repository
from gpustate_lab.spec import LabSpec


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(paths.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "labs"))
    return tmp_path


def build(folder: Path, log: Path) -> None:
    (folder / "root").mkdir()
    log.write_text("built")


def test_an_image_is_built_once(cache: Path) -> None:
    said: list[str] = []
    first = images._cached("x", "1", build, said.append, "what")
    assert first.is_dir()
    assert images._cached("x", "1", build, said.append, "what") == first
    assert len([line for line in said if "building" in line]) == 1


def test_a_failed_build_leaves_no_folder_and_the_next_one_works(cache: Path) -> None:
    def fail(folder: Path, log: Path) -> None:
        build(folder, log)
        run(["sh", "-c", "echo E: no such package >&2; exit 100"], log=log)

    with pytest.raises(LabError, match=r"exited with 100: .*E: no such package; read .*x\.log"):
        images._cached("x", "1", fail, lambda line: None, "what")
    assert list((cache / "layers").iterdir()) == []
    assert images._cached("x", "1", build, lambda line: None, "what").is_dir()


def test_a_changed_recipe_replaces_the_old_folder_and_leaves_other_images(cache: Path) -> None:
    for name, digest in (("x", "1"), ("x-gpu", "1"), ("x", "2")):
        images._cached(name, digest, build, lambda line: None, "what")
    names = sorted(path.name for path in (cache / "layers").iterdir())
    assert names == ["x-gpu@1", "x@2"]


def test_a_layer_that_a_lab_names_stays(cache: Path) -> None:
    old = images._cached("x", "1", build, lambda line: None, "what")
    (cache / "labs" / "off").mkdir(parents=True)
    (cache / "labs" / "off" / "lab.json").write_text(json.dumps({"layers": [str(old)]}))
    images._cached("x", "2", build, lambda line: None, "what")
    assert old.is_dir()


def test_what_a_killed_build_left_is_removed_before_the_next(cache: Path) -> None:
    left = cache / "layers" / ".x@1.building"
    left.mkdir(parents=True)
    images._cached("x", "1", build, lambda line: None, "what")
    assert not left.exists()


def test_a_lab_builds_what_it_needs_and_everything_at_the_same_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Barrier(4)
    built: list[str] = []

    def build_together(what: str) -> None:
        built.append(what)
        # Breaks, and fails the test, if one of the four begins only after another has ended.
        started.wait(timeout=20)

    def repository(folder: Path, distributions: Sequence[str], say: images.Say) -> Repository:
        build_together(f"packages of {', '.join(distributions)}")
        return Repository(folder, folder / "key", ("1", "0"))

    def toolkits(folder: Path, versions: Sequence[str], say: images.Say) -> None:
        build_together(f"toolkits beside the newest: {list(versions)}")

    def root(recipe: images.Recipe, say: images.Say) -> Path:
        build_together(f"root of {recipe.base}")
        return cache / "root"

    def layer(name: str, stack: tuple[Path, ...], *inputs: object) -> Path:
        built.append(f"layer {name}")
        return cache / name

    monkeypatch.setattr(simulation, "build_repository", repository)
    monkeypatch.setattr(simulation, "build_toolkits", toolkits)
    monkeypatch.setattr(simulation, "install_script", lambda *inputs: "")
    monkeypatch.setattr(simulation, "digest", lambda *inputs: "")
    monkeypatch.setattr(images, "provide_base", root)
    monkeypatch.setattr(images, "_layer", layer)
    cluster = functools.partial(build_together, "programs of the cluster")
    prepared = images.prepare(LabSpec().images, print, cluster=cluster)
    assert sorted(built[:4]) == [
        "packages of ubuntu2404",
        "programs of the cluster",
        "root of debian13",
        "toolkits beside the newest: []",
    ]
    assert built[4:] == ["layer ubuntu2404", "layer ubuntu2404-gpu"]
    assert list(prepared.stacks) == ["ubuntu2404"]


def test_a_build_that_fails_ends_the_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = threading.Event()

    def fail(folder: Path, versions: Sequence[str], say: images.Say) -> None:
        assert running.wait(timeout=20)
        raise LabError("no compiler")

    def root(recipe: images.Recipe, say: images.Say) -> Path:
        threading.Timer(0.2, running.set).start()
        run(["sleep", "60"])
        return cache

    monkeypatch.setattr(simulation, "build_repository", lambda *inputs: None)
    monkeypatch.setattr(simulation, "build_toolkits", fail)
    monkeypatch.setattr(images, "provide_base", root)
    began = time.monotonic()
    with pytest.raises(LabError, match="no compiler"):
        images.prepare(["debian12"], print)
    assert time.monotonic() - began < 30


def test_a_long_build_reports_what_it_does_now(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PROGRESS_EVERY_S", 0.01)
    lines: list[str] = []
    reported = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        if "Unpacking gcc" in line:
            reported.set()

    def slow(folder: Path, log: Path) -> None:
        (folder / "root").mkdir()
        log.write_text("I: Retrieving gcc\nI: Unpacking gcc...\n")
        assert reported.wait(timeout=20)

    images._cached("x", "1", slow, say, "mmdebstrap")
    assert lines[0] == "image x: building (mmdebstrap)"
    assert "image x: Unpacking gcc... (0 s)" in lines
    assert lines[-1] == "image x: built in 0 s"


def test_an_unknown_image_names_the_known_ones() -> None:
    with pytest.raises(LabError, match="image 'debian11' does not exist; choose one of debian12, "):
        images.recipe_of("debian11")


def test_one_slurm_cluster_has_one_release_of_slurm() -> None:
    known = {name: images.IMAGES[name].slurm_suite for name in images.IMAGES}
    assert (known["debian12"], known["debian13"]) == ("bookworm", "trixie")
    assert known["debian13-slurm26"] == "sid"
    for other in ("debian12", "debian13"):
        with pytest.raises(LabError, match="one Slurm cluster cannot span"):
            images.prepare([other, "debian13-slurm26"], print, slurm=True)


def test_no_script_names_a_mirror() -> None:
    texts = {path.name: path.read_text() for path in images.SCRIPTS.glob("*.sh")}
    assert set(texts) >= {
        "base.sh",
        "layer.sh",
        *(script for recipe in images.IMAGES.values() for script in recipe.scripts),
    }
    assert [name for name, text in texts.items() if "http://" in text or "https://" in text] == []


def test_what_is_built_beside_pip_needs_no_library() -> None:
    top = Path(__file__).parents[3]
    load = f"import sys; sys.path[:0] = [{str(top)!r}, {str(top / 'lab')!r}]; import gpustate_lab.early"
    subprocess.run([sys.executable, "-I", "-S", "-c", load], check=True)
