"""Determine the kernel that GRUB boots next, from ``grub-mkconfig``'s menu and GRUB's environment.

It is not always the newest: ``GRUB_DEFAULT``, ``grub-set-default`` and ``grub-reboot`` select another entry by
position, title or id, with ``>`` between a submenu and its entry. A missing entry selects the first one of its
level, and a submenu alone its first entry.

Sources:
    GNU GRUB manual 2.06, ``default``, ``grub-set-default``, ``grub-reboot``, ``save_env``.
    grub2 2.06 (Debian 12), util/grub.d/00_header.in, 10_linux.in; grub-core/normal/menu.c,
    ``get_entry_number``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Lines of grub.cfg and grubenv that :func:`next_release` needs, for grep -E.
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
    """One entry of the menu, or a submenu with entries."""

    title: str = ""
    id: str = ""
    release: str | None = None
    entries: list[Entry] = field(default_factory=list["Entry"])


def next_release(lines: Iterable[str]) -> str | None:
    """The release that boots next, or ``None`` if unknown."""
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
    """GRUB's variable ``default`` when the menu is shown."""
    environment = dict(
        line.split("=", 1) for line in lines if line.startswith(("saved_entry=", "next_entry="))
    )
    once = environment.get("next_entry")
    chosen: str | None = None
    for line in lines:
        matched = _DEFAULT.match(line)
        if matched is None:
            continue
        value = matched[1]
        if value == "${next_entry}":
            if once:
                return once
        elif value == "${saved_entry}":
            chosen = environment.get("saved_entry", "0")
        elif "$" in value:
            return None
        else:
            chosen = value or "0"
    return chosen


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
                match = _ID.search(line)
                entry.id = next((text for text in match.groups() if text), "") if match else ""
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


# --- the kernel's arguments ----------------------------------------------------------------------

#: Drop-ins that Debian's and Ubuntu's grub-mkconfig reads after /etc/default/grub.
DROP_INS = "/etc/default/grub.d"
_ARGUMENTS = re.compile(r"\s*linux(?:16|efi)?\s+\S*/vmlinu[xz]-(\S+)\s*(.*)$")
#: Arguments that may be given several times, each time with a list.
_LISTS = ("modprobe.blacklist", "module_blacklist")


def drop_in_path(owner: str) -> str:
    """The drop-in with one owner's arguments."""
    return f"{DROP_INS}/gpustate-{owner}.cfg"


def drop_in_text(owner: str, words: Iterable[str]) -> str:
    """A drop-in that adds each argument unless it is there already.

    The words become part of sh: they must satisfy :func:`is_argument`.
    """
    lines = [f"# Written by gpustate (state {owner}); changes are undone by the next apply."]
    for word in words:
        lines += [
            f'case " $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT " in *" {word} "*) ;;',
            f'*) GRUB_CMDLINE_LINUX="${{GRUB_CMDLINE_LINUX:+$GRUB_CMDLINE_LINUX }}{word}" ;; esac',
        ]
    return "\n".join(lines) + "\n"


def is_argument(text: str) -> bool:
    """Whether the text is a kernel argument that needs no quoting."""
    return re.fullmatch(r"[A-Za-z0-9_.]+(=[A-Za-z0-9_.,:+-]*)?", text) is not None


def menu_arguments(lines: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Release and arguments of every entry of a menu, in order."""
    matches = (_ARGUMENTS.match(line) for line in lines)
    return tuple((match[1], tuple(match[2].split())) for match in matches if match)


def lacking(words: Iterable[str], required: Iterable[str]) -> tuple[str, ...]:
    """The wanted arguments missing in a command line."""
    present = tuple(words)
    return tuple(word for word in required if not _has(present, word))


def conflicting(words: Iterable[str], required: Iterable[str]) -> tuple[str, ...]:
    """Arguments of a command line that contradict a wanted one: ``intel_iommu=off``."""
    keys = {word.partition("=")[0]: word for word in required if "=" in word}
    return tuple(
        word
        for word in words
        if (key := word.partition("=")[0]) in keys and key not in _LISTS and word != keys[key]
    )


def _has(words: tuple[str, ...], required: str) -> bool:
    key, _, value = required.partition("=")
    if key not in _LISTS:
        return required in words
    assignments = (word.partition("=") for word in words)
    return any(name == key and value in text.split(",") for name, _, text in assignments)
