"""GRUB's choice, by the menu of a Debian 12 with two kernels as ``update-grub`` wrote it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpustate.formats import grub

MENU = (Path(__file__).parents[2] / "data/grub/debian12-grub.cfg").read_text()
OLD, NEW = "6.1.0-47-cloud-amd64", "6.1.0-50-cloud-amd64"
ERE = grub.LINES_ERE.replace("[[:space:]]", r"\s")


def lines(menu: str = MENU, environment: str = "") -> list[str]:
    """What grep leaves of both files."""
    return [line for line in (menu + environment).splitlines() if re.search(ERE, line)]


def with_default(value: str) -> str:
    assert 'set default="0"' in MENU
    return MENU.replace('set default="0"', f'set default="{value}"')


def test_the_first_entry_is_the_newest_kernel() -> None:
    assert grub.next_release(lines()) == NEW


def places() -> list[str]:
    entry_ids = re.findall(r"\$menuentry_id_option '(gnulinux-[^']*)'", MENU)
    submenu = next(text for text in entry_ids if re.match("gnulinux-advanced", text))
    old = next(text for text in entry_ids if OLD in text and "-advanced-" in text)
    title = f"Advanced options for GNU/Linux>GNU/Linux, with Linux {OLD}"
    return ["1>2", title, f"{submenu}>{old}", f"1>{old}"]


@pytest.mark.parametrize("place", places())
def test_a_chosen_entry_is_found_by_place_title_and_id(place: str) -> None:
    assert grub.next_release(lines(with_default(place))) == OLD
    saved = lines(with_default("${saved_entry}"), f"saved_entry={place}\n")
    assert grub.next_release(saved) == OLD


def test_an_entry_for_one_boot_goes_before_the_default() -> None:
    assert grub.next_release(lines(MENU, "saved_entry=0\nnext_entry=1>2\n")) == OLD
    assert grub.next_release(lines(MENU, "saved_entry=1>2\nnext_entry=\n")) == NEW


@pytest.mark.parametrize("place", ["1", "0", "7", "no such entry", "1>no such entry", "0>3"])
def test_what_names_no_kernel_of_its_own_means_the_first(place: str) -> None:
    assert grub.next_release(lines(with_default(place))) == NEW


@pytest.mark.parametrize("menu", ["", "set default=0\n", "}\n}\n", with_default("${chosen}")])
def test_a_menu_that_does_not_say_is_no_choice(menu: str) -> None:
    assert grub.next_release(lines(menu)) is None
