"""What of an inventory may stand in a message: names and places always, values only where they are no secret.

A message is copied into tickets and logs. So a value that comes out of a file or a variable called after a
secret, or through a template that looks one up, is never quoted; neither is a line as a whole, which may
hold a password in front of the mistake.
"""

from __future__ import annotations

import os
import re

from gpustate.formats.words import shown

_SECRET = re.compile(
    r"pass(?!ive|through|es\b|er|ing)|secret|token|vault|credential|private|api_?key|\bpw\b|_pw\b",
    re.I,
)
#: A template that may give a secret though no name says so.
_LOOKUP = re.compile(r"\b(lookup|query|q)\s*\(")
HIDDEN = "(not shown: it may be a secret)"


def is_secret(name: str) -> bool:
    """A name of a variable or of a file that is called after a secret."""
    return bool(_SECRET.search(name))


def gives_secrets(template: str) -> bool:
    """A template that looks something up outside of the inventory."""
    return bool(_LOOKUP.search(template))


def quoted(value: object, name: str, place: str, written: object = "") -> str:
    """A value for a message.

    Args:
        value: what it came to.
        name: of its variable.
        place: ``file:line`` it comes from.
        written: what stood there, where that is a template.
    """
    # Only the file and its folder: a whole path may well have a user's word in it.
    file = "/".join(place.rpartition(":")[0].split(os.sep)[-2:]) or place
    template = written if isinstance(written, str) and "{" in written else ""
    if any(map(is_secret, (name, file, template))) or gives_secrets(template):
        return HIDDEN
    return shown(value)


def line_shown(line: str) -> str:
    """A line up to its first ``=``; only its first word where that part has a secret's name."""
    head, equals, _ = line.partition("=")
    first = head.split()[0] if head.split() else ""
    if is_secret(head) and first != head.strip():
        return shown(f"{first} ...")
    return shown(f"{head}=..." if equals else head)


def word_shown(word: str, before: list[str]) -> str:
    """A word of a line; none behind a value that it may be the rest of."""
    if is_secret(word) or any("=" in one and is_secret(one) for one in before):
        return HIDDEN
    return shown(word)
