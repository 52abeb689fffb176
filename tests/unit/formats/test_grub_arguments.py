"""Kernel arguments in GRUB's drop-ins and menu; the drop-in is run by a real sh."""

from __future__ import annotations

import subprocess

import pytest

from gpustate.formats import grub

WORDS = ("intel_iommu=on", "iommu=pt")
MENU = """
menuentry 'Debian' {
	linux	/boot/vmlinuz-6.1.0-28-amd64 root=UUID=1 ro quiet intel_iommu=on iommu=pt
}
submenu 'Advanced' {
	linux /vmlinuz-6.1.0-25-amd64 root=UUID=1 ro single
}
"""


def sourced(before: str, *texts: str) -> str:
    """GRUB_CMDLINE_LINUX as grub-mkconfig would have it after reading the drop-ins."""
    script = before + "\n" + "\n".join(texts) + '\nprintf %s "$GRUB_CMDLINE_LINUX"'
    return subprocess.run(
        ["sh", "-eu", "-c", script], text=True, capture_output=True, check=True
    ).stdout


DEFAULTS = [
    ('GRUB_CMDLINE_LINUX=""; GRUB_CMDLINE_LINUX_DEFAULT="quiet"', "intel_iommu=on iommu=pt"),
    ('GRUB_CMDLINE_LINUX="a=b"; GRUB_CMDLINE_LINUX_DEFAULT=""', "a=b intel_iommu=on iommu=pt"),
    ('GRUB_CMDLINE_LINUX=""; GRUB_CMDLINE_LINUX_DEFAULT="quiet intel_iommu=on"', "iommu=pt"),
    (
        'GRUB_CMDLINE_LINUX="iommu=pt intel_iommu=on"; GRUB_CMDLINE_LINUX_DEFAULT=""',
        "iommu=pt intel_iommu=on",
    ),
]


@pytest.mark.parametrize(("before", "wanted"), DEFAULTS)
def test_an_argument_is_added_once_whoever_asks_for_it(before: str, wanted: str) -> None:
    assert sourced(before, grub.drop_in_text("vfio", WORDS)) == wanted
    twice = grub.drop_in_text("kata", WORDS), grub.drop_in_text("vfio", WORDS)
    assert sourced(before, *twice) == wanted


def test_every_entry_of_the_menu_is_asked() -> None:
    entries = grub.menu_arguments(MENU.splitlines())
    assert [release for release, _ in entries] == ["6.1.0-28-amd64", "6.1.0-25-amd64"]
    assert [grub.lacking(words, WORDS) for _, words in entries] == [(), WORDS]


def test_the_opposite_is_seen() -> None:
    assert grub.conflicting(("ro", "intel_iommu=off", "iommu=pt"), WORDS) == ("intel_iommu=off",)


def test_a_list_may_hold_more() -> None:
    wanted = ("modprobe.blacklist=nouveau",)
    assert grub.lacking(("modprobe.blacklist=foo,nouveau",), wanted) == ()
    assert grub.lacking(("modprobe.blacklist=foo",), wanted) == wanted
    assert grub.conflicting(("modprobe.blacklist=foo",), wanted) == ()


@pytest.mark.parametrize("text", ["a b", "x=$(id)", 'x="y"', "x=';'", "", "a=b\n", "`id`", "x=*"])
def test_what_sh_would_read_otherwise_is_no_argument(text: str) -> None:
    assert not grub.is_argument(text)
