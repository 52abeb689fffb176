"""Parse arguments of ``ssh`` in an inventory (``ansible_ssh_common_args`` and similar).

gpustate does not run ``ssh``, so these arguments are parsed for the options that decide target, user and host
key checking. Options that only tune OpenSSH (multiplexing, verbosity) are skipped; all others are reported.

Sources:
    ssh(1), ssh_config(5) of OpenSSH 9.6; "for each parameter, the first obtained value is used".
"""

from __future__ import annotations

import functools
import re
import shlex
from typing import NamedTuple

from gpustate.errors import InventoryError
from gpustate.formats.words import quote
from gpustate.inventory.secrets import word_shown

#: Supported options of ssh_config.
USED = frozenset(
    {
        *("connecttimeout", "hostname", "identityfile", "port", "proxycommand"),
        *("proxyjump", "serveralivecountmax", "serveraliveinterval"),
        *("stricthostkeychecking", "user", "userknownhostsfile"),
    }
)
#: Options that only tune OpenSSH itself.
TUNING = frozenset(
    {
        *("batchmode", "checkhostip", "compression", "connectionattempts", "controlmaster"),
        *("controlpath", "controlpersist", "escapechar", "hashknownhosts", "ipqos"),
        *("loglevel", "numberofpasswordprompts", "requesttty", "tcpkeepalive"),
        *("updatehostkeys", "visualhostkey"),
    }
)
_FLAGS = "46AaCfGgKkMNnqsTtVvXxYy"
_FLAGS_TUNING = "CnqTtv"
_WITH_VALUE = "BbcDEeFIiJLlmOopPQRSWw"
_AS_OPTION = {"i": "identityfile", "J": "proxyjump", "l": "user", "p": "port"}
_OPTION = re.compile(r"\s*(\w+)\s*(?:=|\s)\s*(.*)", re.DOTALL)


class Option(NamedTuple):
    """One option: its name in lower case (``-F`` for a flag), and its value."""

    name: str
    value: str


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Option, ...]:
    """Return the options in ``text`` in order, without tuning ones.

    Raises:
        InventoryError: invalid arguments; without a place.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InventoryError(f"invalid ssh options: {str(error).lower()}") from error
    options: list[Option] = []
    waiting = iter(words)
    for word in waiting:
        if len(word) < 2 or word[0] != "-" or word == "--":
            raise InventoryError(f"{word_shown(word, [f'{text}='])} is not an ssh option")
        for position, letter in enumerate(word[1:], 1):
            if letter in _WITH_VALUE:
                value = word[position + 1 :] or next(waiting, None)
                if value is None:
                    raise InventoryError(f"-{letter} has no value")
                options.append(_valued(letter, value))
                break
            if letter not in _FLAGS:
                raise InventoryError(
                    f"{quote('-' + letter)} in {word_shown(word, [f'{text}='])} is not an ssh option"
                )
            if letter not in _FLAGS_TUNING:
                options.append(Option(f"-{letter}", ""))
    return tuple(option for option in options if option.name not in TUNING)


def _valued(letter: str, value: str) -> Option:
    if letter != "o":
        return Option(_AS_OPTION.get(letter, f"-{letter}"), value)
    match = _OPTION.fullmatch(value)
    if match is None or not match[2].strip():
        raise InventoryError(f"-o {word_shown(value, [])}, wanted -o Name=value")
    text = match[2].strip()
    # ssh_config allows quotes around a value with spaces.
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return Option(match[1].lower(), text)
