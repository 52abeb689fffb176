"""What a parameter wants, in words: from what pydantic says of one that is wrong.

Its own sentences speak of inputs, integers and regular expressions. A pattern is told by what it stands
for: a state declares it with :func:`text`, unless it is one of the common ones here. A pattern without words, of a state
of a site's own, is shown as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpustate.formats.words import quote

_PLAIN_NAME = "a name of letters, digits, dots, hyphens and underscores"
_PATH = "an absolute path"
_UNIT = "the name of a unit, with .service at its end"
_VERSION = "a version such as {}"

#: What the patterns of bundled states stand for.
PATTERNS: Mapping[str, str] = {
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$": "a name of small letters, digits and hyphens",
    r"^/[A-Za-z0-9_./+@:-]+$": _PATH,
    r"^/[A-Za-z0-9._/-]+$": _PATH,
    r"^(/[A-Za-z0-9._-]+)*$": f"{_PATH}, or an empty text",
    r"^[A-Za-z0-9@_.:-]+\.service$": _UNIT,
    r"^[A-Za-z0-9@._-]+\.service$": _UNIT,
    r"^GPU-[0-9a-f-]{36}$": "the UUID of a GPU, as nvidia-smi -L has it",
    r"^(GPU-[0-9a-f-]{36}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])$": (
        "the UUID of a GPU, or its PCI address such as 0000:1b:00.0"
    ),
    r"^[0-9]+(\.[0-9]+)+$": _VERSION.format("4.6.0"),
    r"^[0-9][0-9A-Za-z.+~:-]*$": _VERSION.format("1.18.0-1"),
    r"^([0-9][0-9A-Za-z.+~-]*)?$": f"{_VERSION.format('2.5')}, or an empty text",
    r"^([0-9A-Za-z][0-9A-Za-z.+:~-]*)?$": f"{_VERSION.format('24.10-1')}, or an empty text",
    r"^([0-9]{1,2}\.[0-9]{1,2})?$": f"{_VERSION.format('12.9')}, or an empty text",
    r"^(gds-tools-[0-9]+-[0-9]+)?$": "a package such as gds-tools-12-9, or an empty text",
    r"^([a-z0-9][a-z0-9._+-]*)?$": "the name of a package, or an empty text",
    r"^[!$-~][!-~]*$": "a word without spaces and quotation marks that does not begin with #",
    r"^[A-Za-z0-9_./+~:@-]+$": "a word without spaces and special characters",
    r"^[A-Za-z0-9._-]*$": _PLAIN_NAME,
    r"^[A-Za-z0-9._-]+$": _PLAIN_NAME,
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$": _PLAIN_NAME,
    r"^[A-Za-z0-9.:_-]*$": "the name or address of a host",
    r"^([0-9]{1,3}(\.[0-9]{1,3}){3})?:[0-9]{1,5}$": "a port such as :9400, with or without an IPv4 address before it",
    r"^([A-Za-z0-9.-]+:[0-9]{1,5})?$": "a host and port such as localhost:5555, or an empty text",
    r"^(ALL|[0-9]{1,3}(\.[0-9]{1,3}){3})$": "an IPv4 address, or ALL",
}

#: What patterns of states stand for, as :func:`text` was given them.
_TEXTS: dict[str, str] = {}

_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    "int_parsing_size": "a whole number that is not as long as that",
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "a number"),
    **dict.fromkeys(("string_type", "string_unicode"), "text"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"),
        "a mapping",
    ),
    **dict.fromkeys(("literal_error", "enum"), "{expected}"),
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
}


def text(pattern: str, words: str) -> Any:
    """The field of a parameter that is text of a pattern, with what the pattern stands for.

    Args:
        pattern: a regular expression that is not in :data:`PATTERNS`.
        words: what is wanted, behind "wanted": "a version such as 4.6.0".
    """
    from pydantic import Field  # messages alone need none of it

    _TEXTS[pattern] = words
    return Field(pattern=pattern)


def words_of(pattern: str) -> str | None:
    """What a pattern stands for; ``None`` where nobody said."""
    return PATTERNS.get(pattern) or _TEXTS.get(pattern)


def wanted(kind: str, context: Mapping[str, Any]) -> str | None:
    """What is wanted in place of what was given; ``None`` where there are no words for it.

    Args:
        kind: pydantic's name of the mistake.
        context: what it knows of it.
    """
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        return words_of(pattern) or f"text of the form {pattern}"
    words = _WORDS.get(kind)
    return None if words is None else words.format_map(context)


def describe_error(item: Mapping[str, Any]) -> str:
    """One mistake, of pydantic's list of them: what is wanted and what was given."""
    said = wanted(item["type"], item.get("ctx") or {})
    return str(item["msg"]) if said is None else f"wanted {said} (given: {given(item['input'])})"


def given(value: object) -> str:
    """A value as Python writes it, on one line and no longer than that."""
    return quote(value, 80) if isinstance(value, str) else quote(value, 80)[1:-1]
