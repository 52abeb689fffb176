"""What a parameter wants, in words: from what pydantic says of one that is wrong.

Its own sentences speak of inputs, integers and regular expressions. A pattern is told by what it stands
for: a state declares it with :func:`pattern`. A pattern without words, of a state of a site's own, is shown as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from gpustate.documents import JsonView
from gpustate.formats.words import quote

S = TypeVar("S")
#: Parameters are those of some layers only, so that what they lack another one may have.
_IN_PART: ContextVar[bool] = ContextVar("in_part", default=False)

#: What patterns of states stand for, as :func:`pattern` was given them.
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


def together(check: Callable[[S], S]) -> Any:
    """A validator of parameters that must fit together: it judges those of a node, when all layers are merged."""
    from pydantic import model_validator

    def judged(state: S) -> S:
        return state if _IN_PART.get() else check(state)

    return model_validator(mode="after")(judged)


@contextmanager
def in_part() -> Iterator[None]:
    """Parameters that are built in this context need not fit together yet."""
    token = _IN_PART.set(True)
    try:
        yield
    finally:
        _IN_PART.reset(token)


def pattern(regex: str, words: str, **more: Any) -> Any:
    """The field of a parameter that is text of a pattern, with what the pattern stands for.

    Args:
        regex: the pattern.
        words: what is wanted, behind "wanted": "a version such as 4.6.0".
        more: arguments of pydantic's ``Field``.
    """
    from pydantic import Field  # messages alone need none of it

    _TEXTS[regex] = words
    return Field(pattern=regex, **more)


def describe_expected(kind: str, context: JsonView) -> str | None:
    """What is wanted in place of what was given; ``None`` where there are no words for it.

    Args:
        kind: pydantic's name of the mistake.
        context: what it knows of it.
    """
    if kind == "string_pattern_mismatch":
        regex = str(context.get("pattern"))
        return _TEXTS.get(regex) or f"text of the form {regex}"
    words = _WORDS.get(kind)
    return None if words is None else words.format_map(context)


def describe_error(item: JsonView) -> str:
    """One mistake, of pydantic's list of them: what is wanted and what was given."""
    text = describe_expected(item["type"], item.get("ctx") or {})
    return (
        str(item["msg"]) if text is None else f"wanted {text} (given: {show_value(item['input'])})"
    )


def show_value(value: object) -> str:
    """A value as Python writes it, on one line and no longer than that."""
    return quote(value, 80) if isinstance(value, str) else quote(value, 80)[1:-1]
