"""Helpers for messages about a text: quoted values, kinds, places."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence

from gpustate.formats.masking import mask

LIMIT_SHOWN = 60
#: Ends a message that was cut.
_MORE = " ..."
_QUOTED = re.compile(r"\"[^\"]*\"|`[^`]*`|(?<!\w)'[^']*'(?!\w)")
#: C0 without tab, DEL, C1; line and paragraph separators; what turns the direction around or is
#: invisible; surrogates.
_ACTED_ON = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)

#: The same but for the end of a line: of a JSON document that is not part of a text.
_ACTED_ON_IN_JSON = re.compile(_ACTED_ON.pattern.replace("\x0a-\x1f", "\x0b-\x1f"))


def quote(value: object, limit: int = LIMIT_SHOWN) -> str:
    """Quote ``value`` for a message: on one line, printable, and never longer than ``limit``."""
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        text = "a number of thousands of digits"
    return repr(cut(mask(text), limit))


def suggest(
    name: object,
    supported: Iterable[str],
    otherwise: str,
    count: int = 1,
    cutoff: float = 0.6,
    form: str = "{}",
) -> str:
    """``did you mean NAME``, or another hint where no known name is similar; ``form``: of a name."""
    near = difflib.get_close_matches(str(name), list(supported), count, cutoff)
    return f"did you mean {' or '.join(map(form.format, near))}" if near else otherwise


def cut(text: str, limit: int) -> str:
    """Cut a text to ``limit`` characters, after its secrets are masked: half of one is not recognized."""
    if len(text) > limit:
        text = mask(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def shorten(text: str, limit: int) -> str:
    """Cut a message to ``limit`` characters at the end of a sentence or word, ahead of quotes that would be cut.

    A command that is cut may do something else than the whole one.
    """
    if len(text) > limit:
        text = mask(text)
    if len(text) <= limit:
        return text
    end = limit - len(_MORE)
    end = next((q.start() for q in _QUOTED.finditer(text) if q.start() < end < q.end()), end)
    for boundary in ("; ", ". ", " "):
        at = text.rfind(boundary, limit // 2, end)
        if at >= 0:
            return text[:at].rstrip(" ,;:(") + _MORE
    return cut(text, limit)


def listed(names: Sequence[str], most: int, between: str = ", ", kind: str = "") -> str:
    """The first names, and the number of the others; a single one is named, which is no longer than to count it.

    Args:
        most: how many are named.
        between: stands between two names.
        kind: what they are, after the number.
    """
    surplus = len(names) - most
    if surplus <= 1:
        return between.join(names)
    return f"{between.join(names[:most])} and {surplus} more{kind and f' {kind}'}"


def value_text(value: object, limit: int) -> str:
    """A value of a field, as JSON or quoted if it is a text, cut to ``limit`` characters."""
    if isinstance(value, str):
        return cut(quote(value), limit)
    return cut("none" if value is None else json.dumps(value, ensure_ascii=False), limit)


def distinguish(left_text: str, right_text: str, limit: int = 160) -> tuple[str, str]:
    """Cut two different texts to ``limit`` characters each, around the first difference."""
    left_text, right_text = mask(left_text), mask(right_text)  # before they are cut
    pairs = enumerate(zip(left_text, right_text, strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(len(left_text), len(right_text)))
    # Keep some context before the difference.
    start = max(0, same - limit // 4) if max(len(left_text), len(right_text)) > limit else 0
    return _window(left_text, start, limit), _window(right_text, start, limit)


def _window(text: str, start: int, limit: int) -> str:
    start = max(0, min(start, len(text) - limit // 4))
    before = "..." if start else ""
    tail = text[start:]
    return before + (tail if len(tail) <= limit else tail[: limit - 3] + "...")


def quote_name(name: object) -> str:
    """Return a name for a message: as it is, or quoted when it is long or not printable."""
    text = str(name)
    return text if text.isprintable() and 0 < len(text) <= LIMIT_SHOWN else quote(text)


def kind_of(value: object) -> str:
    """Name the type of ``value`` the way someone who writes YAML would."""
    names: tuple[tuple[type, str], ...] = (
        (dict, "a mapping"),
        (list, "a list"),
        (bool, "a boolean"),
        (str, "a string"),
        (int, "a number"),
        (float, "a number"),
        (type(None), "nothing"),
    )
    kind_name = next((name for kind, name in names if isinstance(value, kind)), None)
    return kind_name or f"a {type(value).__name__}"


def at(path: str, line: int | None) -> str:
    """Return ``path:line``, or the path alone when the line is not known."""
    return path if line is None else f"{path}:{line}"


def printable(text: str) -> str:
    """Write what a terminal would act on, and what no file can hold, as ``\\x1b``: on one line.

    Text of nodes and inventories is shown to people, and must not move their cursor, change their
    title, or turn the order of characters around. Tabs stay.
    """
    return _ACTED_ON.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Escape control characters in multi-line text."""
    return "\n".join(printable(line) for line in text.split("\n"))


def json_text(text: str) -> str:
    """Escape control characters in a JSON document with JSON's own escapes, which keeps its meaning."""
    return _ACTED_ON_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}" if match[0] < "\u0100" else f"\\u{ord(match[0]):04x}"
