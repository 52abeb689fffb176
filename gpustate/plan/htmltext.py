"""Text in HTML: what nodes and policies say, made harmless. Pure."""

from __future__ import annotations

from html import escape

from gpustate.formats.words import printable

#: More of one value than this, nobody reads; the documents have it all.
LONGEST = 4000


def text(value: object) -> str:
    """Words in running text or in an attribute: on one line, no markup, no control characters."""
    bare = str(value)
    bare = bare if len(bare) <= LONGEST else bare[: LONGEST - 3] + "..."
    return escape(printable(bare.replace("\n", " ")), quote=True)


def code(value: object) -> str:
    """A value, as code."""
    return f"<code>{text(value)}</code>"


def tag(word: str, mark: str = "") -> str:
    """A word with a spot of colour before it."""
    return f'<span class="tag {mark or word}">{text(word)}</span>'
