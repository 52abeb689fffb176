"""Kernels as the fragment reports them; the fragment itself runs here too, over folders of ours."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gpustate import ProbeError
from gpustate.core.queries import Answer
from gpustate.formats import certificates
from gpustate.probes.kernels import Kernel, Kernels, default_kernel

OUT = """\
kernel|6.1.0-18-amd64|/boot/vmlinuz-6.1.0-18-amd64|1|1|1
module: /lib/modules/6.1.0-18-amd64/updates/dkms/nvidia-current.ko
version:        580.65.06
license:        Dual MIT/GPL
signer:         DKMS module signing key
kernel|6.1.0-9-amd64|/boot/vmlinuz-6.1.0-9-amd64|||
"""


def test_kernels_are_listed_oldest_first_with_their_modules() -> None:
    old, new = Kernels().parse(Answer(0, OUT.encode()))
    assert old == Kernel("6.1.0-9-amd64", image="/boot/vmlinuz-6.1.0-9-amd64")
    assert new == Kernel(
        "6.1.0-18-amd64",
        image="/boot/vmlinuz-6.1.0-18-amd64",
        running=True,
        bootable=True,
        headers=True,
        nvidia_version="580.65.06",
        nvidia_license="Dual MIT/GPL",
        nvidia_signer="DKMS module signing key",
        module_path="/lib/modules/6.1.0-18-amd64/updates/dkms/nvidia-current.ko",
    )
    assert new.nvidia_open
    assert old.nvidia_open is None


def test_the_key_of_a_module_is_told_as_its_certificate_tells_it() -> None:
    """modinfo writes whole bytes, openssl leaves a leading zero out: every eighth serial number."""
    said = OUT.replace("signer: ", "sig_key:        0E:3F:00:91\nsigner: ")
    assert Kernels().parse(Answer(0, said.encode()))[1].nvidia_key == certificates.digits("e3F0091")


def test_the_newest_kernel_that_can_boot_is_the_default() -> None:
    assert default_kernel(
        (
            Kernel("6.1.0-9", image="/boot/x", bootable=True),
            Kernel("6.1.0-18", image="/boot/y", bootable=True),
            Kernel("6.1.0-20", image="/boot/z"),
        )
    ) == Kernel("6.1.0-18", image="/boot/y", bootable=True)
    assert default_kernel((Kernel("6.1.0-9", running=True),)) is None


def test_grubs_choice_goes_before_the_newest_kernel() -> None:
    menu = "set default=1\nmenuentry 'new' {\n linux /boot/vmlinuz-6.1.0-18 root=x\n}\n"
    menu += "menuentry 'old' {\n linux /boot/vmlinuz-6.1.0-9 root=x\n}\n"
    listed = "kernel|6.1.0-9|/boot/x||1|1\nkernel|6.1.0-18|/boot/y|1|1|1\n"
    chosen = default_kernel(Kernels().parse(Answer(0, f"{listed}grub=\n{menu}".encode())))
    assert chosen is not None
    assert chosen.release == "6.1.0-9"
    newest = default_kernel(Kernels().parse(Answer(0, f"{listed}grub=\n".encode())))
    assert newest is not None
    assert newest.release == "6.1.0-18"


@pytest.mark.parametrize("out", ["", "kernel|torn\n", "kernel|6.1|/boot/x||1|1\n"])
def test_an_answer_without_the_running_kernel_is_an_error(out: str) -> None:
    with pytest.raises(ProbeError):
        Kernels().parse(Answer(0, out.encode()))


def test_the_fragment_finds_the_running_kernel_of_this_machine() -> None:
    done = subprocess.run(["sh", "-c", Kernels().script()], capture_output=True, check=True)
    kernels = Kernels().parse(Answer(done.returncode, done.stdout))
    running = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True)
    assert [k.release for k in kernels if k.running] == [running.stdout.strip()]


def test_the_menu_is_read_from_where_grub_keeps_it(tmp_path: Path) -> None:
    """The script itself, in a /boot of its own: what it sends is what the reader wants."""
    boot = tmp_path / "boot"
    (boot / "grub").mkdir(parents=True)
    menu = Path(__file__).parents[2] / "data" / "grub"
    (cfg,) = menu.glob("debian12*.cfg")
    (boot / "grub" / "grub.cfg").write_text(cfg.read_text())
    releases = dict.fromkeys(re.findall(r"/vmlinuz-(\S+)", cfg.read_text()))
    for release in releases:
        (boot / f"vmlinuz-{release}").touch()
    script = Kernels().script().replace("/boot/", f"{boot}/")
    oldest = list(releases)[-1]
    title = re.search(rf"menuentry '([^']*{re.escape(oldest)})'", cfg.read_text())
    assert title is not None
    for environment, expected in (("", next(iter(releases))), (f"1>{title[1]}", oldest)):
        (boot / "grub" / "grubenv").write_text(f"# GRUB\nnext_entry={environment}\n####\n")
        said = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
        chosen = [k.release for k in Kernels().parse(Answer(0, said.stdout)) if k.boots_next]
        assert chosen == [expected]


class Modules:
    """The modules of the running kernel, in a /lib/modules of ours."""

    def __init__(self, top: Path, *, base: str = "nvidia", end: str = ".ko") -> None:
        self.top, self.base, self.end = top, base, end
        self.kernel = "6.1.0-18-amd64"
        self.folder = top / f"lib/modules/{self.kernel}/updates/dkms"
        self.folder.mkdir(parents=True)
        self.record = top / "var/lib/dkms/nvidia/580.65.06/k/x86_64/module"
        self.record.mkdir(parents=True)
        (top / "var/lib/dkms/nvidia" / f"kernel-{self.kernel}-x86_64").symlink_to(
            self.record.parent, target_is_directory=True
        )
        self.names = [f"{base}{part}{end}" for part in ("-drm", "-modeset", "", "-uvm")]
        rows = ""
        for name in self.names:
            (self.folder / name).write_text("ELF")
            (self.record / name).touch()
            rows += f"updates/dkms/{name}:\n"
        self.dep = top / f"lib/modules/{self.kernel}/modules.dep"
        self.dep.write_text(rows)
        modinfo = top / "modinfo"
        modinfo.write_text(
            '#!/bin/sh\nfor f; do echo "filename:       $f"\n'
            'case $(cat "$f") in ELF) echo "version:        580.65.06"; echo "license:        Dual MIT/GPL";; esac; done\n'
        )
        uname = top / "uname"
        uname.write_text(f"#!/bin/sh\necho {self.kernel}\n")
        for program in (modinfo, uname):
            program.chmod(0o755)

    def path(self) -> str | None:
        """Of the module that counts, where the set is whole."""
        text = Kernels().script()
        for folder in ("/lib/modules", "/var/lib/dkms", "/boot"):
            text = text.replace(folder, f"{self.top}{folder}")
        environment = {"PATH": f"{self.top}:/usr/bin:/bin", "G": str(self.top / "state")}
        said = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, check=True)
        (kernel,) = Kernels().parse(Answer(0, said.stdout))
        return kernel.module_path and kernel.module_path.removeprefix(f"{self.folder}/")


@pytest.mark.parametrize("base", ["nvidia", "nvidia-current"])
@pytest.mark.parametrize("end", [".ko", ".ko.zst"])
def test_a_module_counts_while_those_that_belong_to_it_are_there(
    tmp_path: Path, base: str, end: str
) -> None:
    modules = Modules(tmp_path, base=base, end=end)
    assert modules.path() == f"{base}{end}"
    for name in modules.names:
        (modules.folder / name).rename(tmp_path / "away")
        assert modules.path() is None, name
        (modules.folder / name).write_text("garbage")
        assert modules.path() is None, name
        (tmp_path / "away").rename(modules.folder / name)
        assert modules.path() == f"{base}{end}"
    (modules.folder / f"{base}-drm{end}").unlink()
    (modules.record / f"{base}-drm{end}").unlink()  # a kernel without DRM has none
    assert modules.path() == f"{base}{end}"
    modules.dep.write_text(modules.dep.read_text().replace(f"updates/dkms/{base}-uvm{end}:\n", ""))
    assert modules.path() is None


def test_a_kernel_without_what_nvidia_modeset_needs_is_told() -> None:
    listed = "kernel|6.12|/boot/x||1|1\nlacks: video\nkernel|6.18|/boot/y|1|1|1\n"
    kernels = Kernels().parse(Answer(0, listed.encode()))
    assert [kernel.lacks_video for kernel in kernels] == [True, False]
