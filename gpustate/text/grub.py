"""Which kernel GRUB boots next, from the menu that ``grub-mkconfig`` writes and GRUB's environment.

Not always the newest: ``GRUB_DEFAULT``, ``grub-set-default`` and ``grub-reboot`` name another entry,
by its place, its title or its id, with ``>`` between a submenu and the entry in it. An entry that
is not there means the first one of its level, and a submenu alone its first entry.

Sources:
    GNU GRUB manual 2.06, ``default``, ``grub-set-default``, ``grub-reboot``, ``save_env``.
    grub2 2.06 (Debian 12), util/grub.d/00_header.in, 10_linux.in; grub-core/normal/menu.c,
    ``get_entry_number``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

#: What of grub.cfg and grubenv :func:`next_release` has to be given, for grep -E.
LINES_ERE = (
    r"^[[:space:]]*(linux(16|efi)?[[:space:]]|set default=|\}[[:space:]]*$)"
    r"|\{[[:space:]]*$|^(saved|next)_entry=."
)

_TITLE = re.compile(r"""\s*(?:menuentry|submenu)\s+(?:'([^']*)'|"([^"]*)")""")
_ID = re.compile(r"""(?:\$menuentry_id_option|--id)\s+(?:'([^']*)'|"([^"]*)"|(\S+))""")
_IMAGE = re.compile(r"\s*linux(?:16|efi)?\s+\S*/vmlinu[xz]-(\S+)")
_DEFAULT = re.compile(r"\s*set default=\"?(.*?)\"?\s*$")


@dataclass(slots=True)
class Entry:
    """One entry of the menu, or a submenu with entries of its own."""

    title: str = ""
    id: str = ""
    release: str | None = None
    entries: list[Entry] = field(default_factory=list["Entry"])


def next_release(lines: Iterable[str]) -> str | None:
    """The release that boots next, or ``None`` where the lines do not say."""
    lines = list(lines)
    menu = _menu(lines)
    chosen = _choice(lines)
    if chosen is None or not menu.entries:
        return None
    entry = menu
    for part in [*chosen.split(">"), "0"]:
        if not entry.entries:
            break
        entry = _find(entry.entries, part)
    return entry.release


def _choice(lines: list[str]) -> str | None:
    """What GRUB's variable ``default`` holds when the menu is shown."""
    environment = dict(
        line.split("=", 1) for line in lines if line.startswith(("saved_entry=", "next_entry="))
    )
    once = environment.get("next_entry")
    found: str | None = None
    for line in lines:
        matched = _DEFAULT.match(line)
        if matched is None:
            continue
        value = matched[1]
        if value == "${next_entry}":
            if once:
                return once
        elif value == "${saved_entry}":
            found = environment.get("saved_entry", "0")
        elif "$" in value:
            return None
        else:
            found = value or "0"
    return found


def _menu(lines: list[str]) -> Entry:
    top = Entry()
    open_entries = [top]
    for line in lines:
        image = _IMAGE.match(line)
        title = _TITLE.match(line)
        if image is not None:
            open_entries[-1].release = image[1]
        elif line.rstrip().endswith("{"):
            entry = Entry()
            if title is not None:
                entry.title = title[1] or title[2] or ""
                found = _ID.search(line)
                entry.id = next((text for text in found.groups() if text), "") if found else ""
                open_entries[-1].entries.append(entry)
            open_entries.append(entry)
        elif line.strip() == "}" and len(open_entries) > 1:
            open_entries.pop()
    return top


def _find(entries: list[Entry], part: str) -> Entry:
    if part.isascii() and part.isdigit():
        place = int(part)
        return entries[place] if place < len(entries) else entries[0]
    for entry in entries:
        if part in (entry.title, entry.id):
            return entry
    return entries[0]
