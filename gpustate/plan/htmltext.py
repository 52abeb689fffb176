"""Text of nodes and policies, escaped for HTML. Pure."""

from __future__ import annotations

from html import escape

from gpustate.formats.words import cut, printable

#: Longer values are cut; the documents have the whole text.
LONGEST = 4000


def text(value: object) -> str:
    """Text for an element or an attribute: on one line, without markup and control characters."""
    return escape(printable(cut(str(value), LONGEST).replace("\n", " ")), quote=True)


def code(value: object) -> str:
    """A value, as code."""
    return f"<code>{text(value)}</code>"


def tag(word: str, mark: str = "") -> str:
    """A word with a coloured mark before it."""
    return f'<span class="tag {mark or word}">{text(word)}</span>'
