"""What DKMS has half-done is removed and nothing else; what it does not know is rebuilt or kept, by the real sh."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from gpustate.ops import kmod
from gpustate.states.driver import scripts

ARCH = os.uname().machine
DKMS = """#!/bin/sh
echo "$*" >>"$TOP/calls"
case $1 in
  build) [ ! -e "$TOP/no-compiler" ] || exit 1
    mkdir -p "$TOP/var/lib/dkms/$2/$4/$(uname -m)/module"; : >"$TOP/var/lib/dkms/$2/$4/$(uname -m)/module/nvidia.ko.zst" ;;
  install) ;;
  *) cat "$TOP/status" 2>/dev/null ;;
esac
"""


class Tree:
    """A DKMS tree of ours with one source and version."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.version = top / "var/lib/dkms/nvidia/580.65.06"
        self.version.mkdir(parents=True)
        self.conf = top / "usr/src/nvidia-580.65.06/dkms.conf"
        self.conf.parent.mkdir(parents=True)
        self.conf.touch()
        (self.version / "source").symlink_to(self.conf.parent)
        (top / "bin").mkdir()
        for name, text in (("dkms", DKMS), ("dpkg-query", '#!/bin/sh\ncat "$TOP/packages"\n')):
            (top / "bin" / name).write_text(text)
            (top / "bin" / name).chmod(0o755)

    def build(self, kernel: str, *, log: str = "done", module: str = "ELF") -> Path:
        folder = self.version / kernel / ARCH
        for file, text in (("log/make.log", log), ("module/nvidia.ko", module)):
            (folder / file).parent.mkdir(parents=True)
            if text:
                (folder / file).write_text(text)
        link = self.version.parent / f"kernel-{kernel}-{ARCH}"
        link.symlink_to(f"580.65.06/{kernel}/{ARCH}")
        return folder

    def says(self, *rows: str) -> None:
        (self.top / "status").write_text(
            "".join(f"nvidia{row}\n".replace("ARCH", ARCH) for row in rows)
        )

    def run(self, text: str) -> str:
        for folder in ("/var/lib/dkms", "/usr/src", "/lib/modules"):
            text = text.replace(folder, f"{self.top}{folder}")
        environment = {
            "PATH": f"{self.top}/bin:/usr/bin:/bin",
            "TOP": str(self.top),
            "G": str(self.top / "state"),
            "R": str(self.top),
        }
        done = subprocess.run(
            ["sh", "-euc", text], env=environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def left(self) -> list[str]:
        """Kernels with a build."""
        found = self.version.glob(f"*/{ARCH}")
        return sorted(f.parent.name for f in found if f.parent.name not in ("build", "source"))

    @property
    def calls(self) -> list[str]:
        file = self.top / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_what_dkms_does_not_take_for_built_goes_with_its_link(tree: Tree) -> None:
    for kernel in ("6.1.0-1", "6.1.0-10", "6.1.0-2", "6.1.0-3", "6.1.0-4"):
        tree.build(kernel)
    tree.says(
        "/580.65.06, 6.1.0-10, ARCH: installed (original_module exists)",
        ", 580.65.06, 6.1.0-3, ARCH: built",
        "/580.65.06, 6.1.0-4, ARCH: built (WARNING! Missing some built modules!)",
    )
    said = tree.run(kmod.clear(("nvidia*",)))
    assert tree.left() == ["6.1.0-10", "6.1.0-3"]
    assert said.count("removing the half-done build in ") == 3
    links = {link.name for link in tree.version.parent.glob("kernel-*")}
    assert links == {f"kernel-6.1.0-10-{ARCH}", f"kernel-6.1.0-3-{ARCH}"}
    assert tree.calls == ["status -m nvidia -v 580.65.06"]


def test_modules_that_dkms_keeps_from_before_it_stay(tree: Tree) -> None:
    tree.says("/580.65.06: added")
    places = [
        tree.version.parent / "original_module/6.1.0-1" / ARCH,
        tree.version / "build" / ARCH,
        tree.conf.parent / ARCH,
    ]
    for place in places:
        place.mkdir(parents=True)
    assert tree.run(kmod.clear(("nvidia",))) == ""
    assert all(place.is_dir() for place in places)
    assert (tree.version / "source").is_symlink()
    assert tree.calls == []


@pytest.mark.parametrize("silent", [True, False])
def test_without_a_word_of_dkms_only_what_holds_no_module_goes(tree: Tree, silent: bool) -> None:
    """Its source is gone, or DKMS ends at one of another module."""
    tree.build("6.1.0-1")
    tree.build("6.1.0-2", log="")
    tree.build("6.1.0-3", module="")
    if silent:
        tree.says()
    else:
        tree.conf.unlink()
        tree.says("/580.65.06: broken")
    tree.run(kmod.clear(("nvidia*",)))
    assert tree.left() == ["6.1.0-1"]


def test_modules_that_a_half_configured_package_cannot_install_over_are_built_anew(
    tree: Tree,
) -> None:
    for kernel, known in (("6.1.0-1", False), ("6.1.0-2", True), ("6.1.0-3", False)):
        folder = tree.top / "lib/modules" / kernel
        (folder / "build").mkdir(parents=True)
        (folder / "build/Makefile").touch()
        if kernel != "6.1.0-3":
            (folder / "updates/dkms").mkdir(parents=True)
            (folder / "updates/dkms/nvidia.ko").write_text("ELF")
        if known:
            tree.build(kernel)
    packages = tree.top / "packages"
    packages.write_text("installed 580.65.06-1\nunpacked 580.65.06-1\n")
    tree.run(kmod.COMPLAIN + scripts._ADOPT)
    assert tree.calls == []
    old = tree.top / "lib/modules/6.1.0-1/updates/dkms/nvidia.ko"
    (old.parent / "nvidia-fs.ko").touch()
    (tree.top / "no-compiler").touch()
    packages.write_text("half-configured 1:580.65.06-1\nhalf-configured 570.1-1\n")
    tree.run(kmod.COMPLAIN + scripts._ADOPT)
    assert tree.calls == ["build nvidia/580.65.06 -k 6.1.0-1"]
    assert old.exists()
    (tree.top / "no-compiler").unlink()
    (tree.top / "calls").unlink()
    tree.run(kmod.COMPLAIN + scripts._ADOPT)
    assert tree.calls == [f"{verb} nvidia/580.65.06 -k 6.1.0-1" for verb in ("build", "install")]
    assert not old.exists()
    assert (old.parent / "nvidia-fs.ko").exists()
    assert scripts.settle().script().index("(adopt)") < scripts.settle().script().index("apt_ready")


@pytest.mark.parametrize("left", ["", "580.178.04 open"])
def test_modules_are_put_back_where_none_is_left(tree: Tree, left: str) -> None:
    folder = tree.top / "lib/modules/6.1.0-1/updates/dkms"
    folder.mkdir(parents=True)
    for name in ("nvidia.ko.zst", "nvidia-uvm.ko.zst"):
        (folder / name).write_text(name)
    functions = f"""depmod() {{ :; }}; sync() {{ :; }}
have() {{ if [ -e "/lib/modules/$1/updates/dkms/nvidia.ko.zst" ]; then echo "580.65.06 open"; else echo "{left}"; fi; }}
"""
    lost = "rm -rf /lib/modules/6.1.0-1/updates\n"
    said = tree.run(
        f"{functions}{scripts._KEEP}keep_modules 6.1.0-1 6.1.0-2\n{lost}modules_back 6.1.0-1 6.1.0-2"
    )
    assert not (tree.top / "state/modules").exists()
    if left:
        assert said == ""
        assert not folder.exists()
        return
    back, none = said.splitlines()
    assert back.startswith("Kernel 6.1.0-1 has the files of its module 580.65.06 open back")
    assert none.startswith("No nvidia module is left for kernel 6.1.0-2")
    assert (folder / "nvidia-uvm.ko.zst").read_text() == "nvidia-uvm.ko.zst"


def test_archives_of_the_replaced_packages_modules_go_and_those_of_others_stay(
    tmp_path: Path,
) -> None:
    def archive(kernel: str) -> Path:
        return tmp_path / "dkms" / "nvidia" / "original_module" / kernel

    archive("6.1").mkdir(parents=True)
    made = " ".join(shlex.quote(str(archive(kernel))) for kernel in ("6.2", "6.3"))
    script = f"R={tmp_path}\n{scripts.ARCHIVES}mkdir {made}\nforget_archives 6.1 6.2\n"
    script = script.replace("/var/lib/dkms", f"{tmp_path}/dkms")
    subprocess.run(["sh", "-eu"], input=script, text=True, check=True)
    assert [kernel for kernel in ("6.1", "6.2", "6.3") if archive(kernel).exists()] == [
        "6.1",
        "6.3",
    ]


def test_a_link_to_a_build_that_is_gone_does_not_count_as_installed(tree: Tree) -> None:
    tree.build("6.1.0-1")
    gone = tree.version.parent / f"kernel-6.1.0-2-{ARCH}"
    gone.symlink_to(f"580.65.06/6.1.0-2/{ARCH}")
    functions = """depmod() { :; }; effect() { :; }; fail() { echo "$1"; exit 1; }
have() { if [ -e "$R/made" ]; then echo want; fi; }
dkms() { [ ! -L /var/lib/dkms/nvidia/kernel-6.1.0-2-* ] && : >"$R/made"; }
"""
    call = "build_module 6.1.0-2 580.65.06 want"
    assert tree.run(f"{functions}{kmod.COMPLAIN}{scripts.BUILD}{call}") == ""
    assert not gone.is_symlink()
    assert (tree.version.parent / f"kernel-6.1.0-1-{ARCH}").is_symlink()
