"""Quote parts of an inventory in messages: names and places always, values only if they are not secret.

Messages are copied into tickets and logs. So a value of a file or variable with a secret's name, or of a
template with a lookup, is never quoted. Neither are complete lines, which may contain a password.
"""

from __future__ import annotations

import os
import re

from gpustate.formats.words import quote

_SECRET = re.compile(
    r"pass(?!ive|through|es\b|er|ing)|secret|token|vault|credential|private|api_?key|\bpw\b|_pw\b",
    re.I,
)
#: A template that may result in a secret regardless of names.
_LOOKUP = re.compile(r"\b(lookup|query|q)\s*\(")
HIDDEN = "(not shown: it may be a secret)"


def is_secret(name: str) -> bool:
    """Whether the name of a variable or file suggests a secret."""
    return bool(_SECRET.search(name))


def gives_secrets(template: str) -> bool:
    """Whether a template looks up something outside of the inventory."""
    return bool(_LOOKUP.search(template))


def quote_value(value: object, name: str, place: str, written: object = "") -> str:
    """A value for a message.

    Args:
        value: the result.
        name: of its variable.
        place: its ``file:line``.
        written: the template, if any.
    """
    # Only the file and its folder: the rest of the path may contain any word.
    file = "/".join(place.rpartition(":")[0].split(os.sep)[-2:]) or place
    template = written if isinstance(written, str) and "{" in written else ""
    if any(map(is_secret, (name, file, template))) or gives_secrets(template):
        return HIDDEN
    return quote(value)


def line_shown(line: str) -> str:
    """A line up to its first ``=``; only its first word if that part suggests a secret."""
    head, equals, _ = line.partition("=")
    first = head.split()[0] if head.split() else ""
    if is_secret(head) and first != head.strip():
        return quote(f"{first} ...")
    return quote(f"{head}=..." if equals else head)


def word_shown(word: str, before: list[str]) -> str:
    """A word of a line; hidden if it may belong to the value before it."""
    if is_secret(word) or any("=" in earlier and is_secret(earlier) for earlier in before):
        return HIDDEN
    return quote(word)
