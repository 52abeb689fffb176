"""Files that are not as their packages brought them are told, once a change of theirs is seen."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from gpustate.core.queries import Answer
from gpustate.probes import driver_files
from gpustate.probes.package_files import PackageFiles, packages_of, sources_of

ASK = PackageFiles(
    "x-files",
    ("libx1", "x-[0-9]*", "x-tools"),
    ("/usr/lib/*-linux-gnu/libx.so.*", "/usr/lib/*-linux-gnu/own/libx.so.*", "/usr/bin/x-*"),
)
FOLDER = "usr/lib/x86_64-linux-gnu"


class Root:
    """A tree with what dpkg keeps of three packages, and their files."""

    def __init__(self, top: Path) -> None:
        self.top = top
        for folder in (FOLDER, "usr/bin", "var/lib/dpkg/info", "state"):
            (top / folder).mkdir(parents=True)
        self.package("libx1:amd64", f"{FOLDER}/libx.so.580.1", f"{FOLDER}/other.so.2")
        (top / FOLDER / "libx.so.1").symlink_to("libx.so.580.1")
        self.package("x-580", "usr/bin/x-smi", mode=0o755)
        self.package("y", "usr/bin/x-of-somebody-else")

    def package(self, name: str, *paths: str, mode: int = 0o644) -> None:
        rows = ""
        for path in paths:
            (self.top / path).write_text(path)
            (self.top / path).chmod(mode)
            digest = hashlib.md5(path.encode(), usedforsecurity=False).hexdigest()
            rows += f"{digest}  {path}\n"
        (self.top / f"var/lib/dpkg/info/{name}.md5sums").write_text(rows)

    def look(self, *others: PackageFiles) -> tuple[str, ...]:
        """What one ask reads out of the answer to all."""
        asked = ASK.joined(others) if others else ASK
        text = re.sub(r"/(?=(usr|var)/)", f"{self.top}/", asked.script())
        # Rows of md5sums begin at the root.
        text = text.replace("f=/$f\n", f"f={self.top}/$f\n")
        done = subprocess.run(
            ["sh", "-c", f"G={self.top}/state\n{text}"], capture_output=True, check=True
        )
        assert not done.stderr
        answer = Answer(0, done.stdout.replace(os.fsencode(self.top), b""))
        return (others[-1] if others else ASK).parse(answer)

    def kept(self) -> list[Path]:
        return sorted((self.top / "state/cache").iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "r")


def test_whole_files_are_silent_and_the_answer_is_kept_until_one_is_another(root: Root) -> None:
    assert root.look() == ()
    (kept,) = root.kept()
    kept.write_text(f"{kept.read_text()}libx1: /kept answer\n")
    assert root.look() == ("libx1: /kept answer",)
    os.utime(root.top / f"{FOLDER}/libx.so.580.1")
    assert root.look() == ()


def test_a_library_cut_off_is_told_with_its_package(root: Root) -> None:
    os.truncate(root.top / f"{FOLDER}/libx.so.580.1", 3)
    found = root.look()
    assert found == (f"libx1:amd64: /{FOLDER}/libx.so.580.1 is not as the package brought it",)
    assert packages_of(found) == ("libx1",)


@pytest.mark.parametrize("target", [None, "other.so.2"])
def test_a_link_that_is_gone_or_leads_elsewhere_is_told(root: Root, target: str | None) -> None:
    link = root.top / f"{FOLDER}/libx.so.1"
    link.unlink()
    if target is not None:
        link.symlink_to(target)
    found = root.look()
    assert found == (f"libx1:amd64: /{FOLDER}/libx.so.1 is not a link to libx.so.580.1",)


def test_a_program_that_nobody_may_execute_or_that_is_gone_is_told(root: Root) -> None:
    program = root.top / "usr/bin/x-smi"
    program.chmod(0)
    assert root.look() == ("x-580: /usr/bin/x-smi has mode 0",)
    program.unlink()
    assert root.look() == ("x-580: /usr/bin/x-smi is missing",)
    os.mkfifo(program)
    assert root.look() == ("x-580: /usr/bin/x-smi is not a file",)


def test_what_an_administrator_diverted_or_gave_another_mode_is_as_wanted(root: Root) -> None:
    dpkg = root.top / "var/lib/dpkg"
    (root.top / "usr/bin/x-smi").chmod(0o750)
    assert len(root.look()) == 1
    (dpkg / "statoverride").write_text(f"root adm 750 {root.top}/usr/bin/x-smi\n")
    assert root.look() == ()
    (root.top / f"{FOLDER}/libx.so.580.1").write_text("my own")
    (dpkg / "diversions").write_text(f"{root.top}/{FOLDER}/libx.so.580.1\n/elsewhere\n:\n")
    assert root.look() == ()


def test_a_library_in_a_folder_of_its_own_is_found_by_the_link_of_the_usual_one(root: Root) -> None:
    own = f"{FOLDER}/own/libx.so.580.1"
    (root.top / FOLDER / "own").mkdir()
    root.package("libx1:amd64", own)
    assert root.look() == ()
    (root.top / f"{FOLDER}/libx.so.1").unlink()
    assert root.look() == (f"libx1:amd64: /{FOLDER}/libx.so.1 is not a link to libx.so.580.1",)


def test_asks_that_leave_together_are_answered_from_one_cache_each_with_its_own_rows(
    root: Root,
) -> None:
    mine = PackageFiles("y-files", ("y",), ("/usr/bin/x-of-*",))
    (root.top / "usr/bin/x-smi").chmod(0)
    (root.top / "usr/bin/x-of-somebody-else").chmod(0o755)
    assert root.look(PackageFiles("z-files", ("z",), ("/usr/bin/z",)), mine) == ()
    (root.top / "usr/bin/x-of-somebody-else").unlink()
    rows = ("y: /usr/bin/x-of-somebody-else is missing",)
    assert root.look(PackageFiles("z-files", ("z",), ("/usr/bin/z",)), mine) == rows
    assert len(root.kept()) == 1


def test_lines_that_are_no_rows_are_left_out() -> None:
    text = b"\xff\n=of x-files\n: x\nlibx1 /usr\nx: /y is missing\n=of y-files\nx: /z is missing\n"
    assert ASK.parse(Answer(0, text)) == ("x: /y is missing",)
    assert ASK.placeholder() == ()


def test_of_sources_one_that_is_missing_is_told_and_what_somebody_changed_is_theirs(
    root: Root,
) -> None:
    names = ("dkms.conf", "Makefile", "deep/nv.c")
    (root.top / "usr/src/x-580.1/deep").mkdir(parents=True)
    root.package("x-source", *(f"usr/src/x-580.1/{name}" for name in names))
    mine = PackageFiles("s-files", ("x-source",), ("/usr/src/x*/*",))
    other = PackageFiles("o-files", ("y",), ("/usr/bin/y",))
    (root.top / "usr/src/x-580.1/dkms.conf").write_text("MAKE=mine")
    assert root.look(other, mine) == ()
    makefile = root.top / "usr/src/x-580.1/Makefile"
    makefile.write_text("")
    assert root.look(other, mine) == ("x-source: /usr/src/x-580.1/Makefile is empty",)
    makefile.unlink()
    os.mkfifo(makefile)
    assert root.look(other, mine) == ("x-source: /usr/src/x-580.1/Makefile is not a file",)
    makefile.unlink()
    makefile.write_text("mine")
    (root.top / "usr/src/x-580.1/deep/nv.c").unlink()
    rows = ("x-source: /usr/src/x-580.1/deep/nv.c is missing",)
    assert root.look(other, mine) == rows
    assert sources_of((*rows, "libx1: /usr/lib/x.so is missing")) == rows
    for name in names[:2]:
        (root.top / "usr/src/x-580.1" / name).unlink()
    assert root.look(other, mine) == ("x-source: /usr/src/x-580.1/dkms.conf is missing",)


def test_of_some_files_only_that_they_are_there_is_looked_at(root: Root) -> None:
    mine = PackageFiles(
        "t-files", ("libx1",), ("/usr/bin/z",), present_only=("/usr/lib/*-linux-gnu/other.so.*",)
    )
    (root.top / f"{FOLDER}/other.so.2").write_text("of another kind")
    assert root.look(mine) == ()
    (root.top / f"{FOLDER}/other.so.2").write_text("")
    assert root.look(mine) == (f"libx1:amd64: /{FOLDER}/other.so.2 is empty",)
    (root.top / f"{FOLDER}/other.so.2").unlink()
    assert root.look(mine) == (f"libx1:amd64: /{FOLDER}/other.so.2 is missing",)
    assert mine.watches("libx1", f"/{FOLDER}/other.so.3")
    assert not mine.watches("libx1", f"/{FOLDER}/libx.so.1")
    assert not mine.watches("y", f"/{FOLDER}/other.so.3")


@pytest.mark.parametrize(
    ("package", "path", "watched"),
    [
        ("firmware-nvidia-gsp", "/lib/firmware/nvidia/580.65.06/gsp_ga10x.bin", True),
        ("nvidia-firmware-580-580.65.06", "/usr/lib/firmware/nvidia/580.65.06/gsp_tu10x.bin", True),
        ("nvidia-kmod-common", "/usr/lib/firmware/nvidia/580.65.06/gsp_tu10x.bin", True),
        ("firmware-misc-nonfree", "/lib/firmware/nvidia/ga102/gsp/booter_load.bin", False),
        ("libnvidia-nvvm4", "/usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.580.65.06", True),
        ("libegl-nvidia0", "/usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.580.65.06", True),
        ("libnvidia-container1", "/usr/lib/x86_64-linux-gnu/libnvidia-container.so.1.17.8", False),
        ("nvidia-cuda-mps", "/usr/bin/nvidia-cuda-mps-server", True),
        ("nvidia-imex", "/usr/bin/nvidia-imex", False),
        ("nvidia-driver-common", "/usr/lib64/libnvidia-ml.so.615.71.09", True),
    ],
)
def test_the_drivers_files_are_told_from_those_of_others(
    package: str, path: str, *, watched: bool
) -> None:
    assert driver_files.FILES.watches(package, path) == watched
