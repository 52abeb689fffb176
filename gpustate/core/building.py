"""From plain data to a state and back, and what is said when that cannot be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from gpustate.core.parameter_errors import describe_expected, in_part, show_value
from gpustate.core.state import AnyState
from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats.masking import MASK, mask, missing_secrets, remember_parameters
from gpustate.formats.words import printable, quote, quote_name, suggest

#: Mistakes told at once.
_MOST_LISTED = 5

#: Says where a parameter stands: its name, and the keys and indices below it.
Locate = Callable[[tuple[str | int, ...]], str | None]


def parameters(state: AnyState) -> Json:
    """The parameters that were given, as plain JSON data."""
    data: Json = json.loads(state.model_dump_json(exclude_unset=True))
    return data


def every_parameter(state: AnyState) -> Json:
    """All parameters, those with their defaults too, as plain JSON data."""
    data: Json = json.loads(state.model_dump_json())
    return data


def build(
    cls: type[AnyState], values: JsonView, *, place: str | None = None, locate: Locate | None = None
) -> AnyState:
    """Make a state from plain data, all of whose parameters fit together.

    Args:
        cls: its class.
        values: its parameters.
        place: where they stand.
        locate: where one of them stands; ``place`` where it does not say.

    Raises:
        PolicyError: naming the parameter that is wrong.
    """
    try:
        remember_parameters(values)
        text = json.dumps(dict(values))
    except (TypeError, ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise PolicyError(f"{cls.name}: {why}", place=place) from error
    hidden = missing_secrets(values) if MASK in text else []
    if hidden:
        path = ".".join(quote_name(step) for step in hidden[0])
        raise PolicyError(
            f"{cls.name}: {path}: contains {MASK}, which gpustate prints in place of a secret",
            place=(locate(hidden[0]) if locate is not None else None) or place,
            fix="set the secret itself, in the inventory's variable gpustate",
        )
    try:
        return cls.model_validate_json(text)
    except ValidationError as error:
        origin = place
        if locate is not None:
            origin = locate(error.errors(include_url=False)[0]["loc"]) or place
        raise PolicyError(f"{cls.name}: {explain(error, cls, values)}", place=origin) from None
    except PolicyError as error:
        origin = _culprit(cls, values, locate) if locate is not None else None
        raise PolicyError(
            f"{cls.name}: {error.message}", place=origin or place, fix=error.fix
        ) from None


def build_in_part(cls: type[AnyState], values: JsonView, error: PolicyError) -> AnyState:
    """Make the state of one layer, whose parameters may fit together only with those of others.

    Raises:
        PolicyError: the given one, if another layer cannot help.
    """
    with in_part():
        try:
            return build(cls, values)
        except PolicyError:
            raise error from None


def _culprit(cls: type[AnyState], values: JsonView, locate: Locate) -> str | None:
    """Where the one parameter stands that is refused on its own; a validator names none."""
    for name, value in values.items():
        try:
            cls.model_validate_json(json.dumps({name: value}))
        except PolicyError:
            return locate((name,))
        except ValidationError:
            continue
    return None


def explain(error: ValidationError, cls: type[AnyState], values: JsonView | None = None) -> str:
    """Say in one line which parameters are wrong, what was given and what is wanted.

    Args:
        error: the library's.
        cls: the state.
        values: what was given, as it was written; JSON has no 580.10.
    """
    parts: list[str] = []
    #: Where one of several kinds would do, each is a mistake of its own at the same place.
    choices: dict[tuple[str, str], list[str]] = {}
    for item in error.errors(include_url=False)[:_MOST_LISTED]:
        path = ".".join(quote_name(step) for step in _without_kind(item["loc"]))
        text = describe_expected(item["type"], item.get("ctx") or {})
        if item["type"] == "extra_forbidden":
            names = sorted(cls.model_fields)
            hint = suggest(path, names, f"it has {', '.join(names)}", form="{!r}")
            parts.append(f"no parameter {quote(path)}; {hint}")
        elif item["type"] == "value_error":
            # The state's own words; the library puts its own before them.
            message = mask(item["msg"].removeprefix("Value error, "))[:300]
            parts.append(": ".join(filter(None, (path, printable(message)))))
        elif item["type"] == "missing":
            parts.append(f"{path or 'it'}: is not given, and has no default")
        elif text is not None:
            was = as_written(item["loc"], item["input"], values or {})
            key = (path or "it", f"{show_value(was)}{_quoted(item['type'], item['input'])}")
            choices.setdefault(key, []).append(printable(text[:300]))
        else:
            message = mask(item["msg"][:1].lower() + item["msg"][1:])
            parts.append(
                f"{path or 'it'}: {printable(message[:300])} (given: {show_value(item['input'])})"
            )
    parts += [
        f"{path}: wanted {' or '.join(dict.fromkeys(words))} (given: {was})"
        for (path, was), words in choices.items()
    ]
    more = error.error_count() - _MOST_LISTED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def as_written(place: tuple[str | int, ...], value: object, values: JsonView) -> object:
    """The value that was given at a place; the library's, where that is another."""
    current: Any = values
    for step in _without_kind(place):
        if isinstance(current, list) and isinstance(step, int):
            current = dict(enumerate(current))
        current = current.get(step) if isinstance(current, Mapping) else None
    return current if isinstance(current, float) and current == value else value


def _without_kind(place: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A place without the kind that pydantic puts behind it, where one of several would do."""
    kinds = {"int", "str", "bool", "float", "constrained-int", "constrained-str"}
    return place[:-1] if len(place) > 1 and place[-1] in kinds else place


def _quoted(kind: str, value: object) -> str:
    """What is the matter with a text that looks like what is wanted."""
    words = {
        "bool": r"yes|no|true|false|on|off",
        "int": r"-?[0-9]+",
        "float": r"-?[0-9]+(\.[0-9]+)?",
    }
    pattern = words.get(kind.partition("_")[0])
    if pattern is None or not isinstance(value, str) or not re.fullmatch(pattern, value.lower()):
        return ""
    return ", which is text; quotes make it that"
