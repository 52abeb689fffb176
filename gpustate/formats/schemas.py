"""Check documents that are read back against their published JSON Schemas.

The schemas are files of this package (``gpustate/plan/schema/plan.json``); a schema is compiled once, when the first
document of its kind is read. The error names the place in the document and what was expected there. A value that must be
a certain word is named in the schema by its ``title``: ``a driver version``.

Sources:
    JSON Schema, draft 2020-12 (the keywords of draft 7 in it); fastjsonschema's documentation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from gpustate.documents import Json
from gpustate.errors import GpustateError
from gpustate.formats.words import kind_of, quote, quote_name

_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "nothing",
    "number": "a number",
    "object": "a mapping",
    "string": "a string",
}


def check(
    data: Any,
    package: str,
    name: str,
    *,
    place: str,
    error: type[GpustateError],
    fix: str,
    subject: str = "",
) -> None:
    """Check a document.

    Args:
        data: the document, as read from JSON.
        package: that has the schema in its folder ``schema``: ``gpustate.plan``.
        name: of the schema's file.
        place: of the document, for messages.
        error: raised if the document does not match the schema.
        fix: the next step.
        subject: beginning of the message: ``the plan is damaged``.

    Raises:
        GpustateError: of the given class.
    """
    import fastjsonschema  # only where a document is read back

    try:
        _validator(package, name)(data)
    except fastjsonschema.JsonSchemaValueException as violation:
        message = _message(violation)
        raise error(f"{subject}: {message}" if subject else message, place=place, fix=fix) from None


def check_format(
    data: Any, expected: str, *, place: str, error: type[GpustateError], fix: str
) -> None:
    """Check the ``format`` of a document before anything else in it.

    Raises:
        GpustateError: of the given class; it has another format or none.
    """
    if not isinstance(data, dict):
        raise error(f"is {kind_of(data)}, expected a mapping", place=place, fix=fix)
    if "format" not in data:
        raise error("format: is missing", place=place, fix=fix)
    if data["format"] != expected:
        raise error(f"format is {quote(data['format'])}, expected {expected}", place=place, fix=fix)


@cache
def _validator(package: str, name: str) -> Callable[[Any], Any]:
    import fastjsonschema

    text = resources.files(package).joinpath("schema", name).read_text("utf-8")
    schema = json.loads(text, object_hook=_as_draft_7)
    return fastjsonschema.compile(schema, use_default=False, use_formats=False)


def _as_draft_7(data: Json) -> Json:
    """The one keyword of our schemas that has another name in the draft that fastjsonschema implements."""
    required = data.pop("dependentRequired", None)
    return data if required is None else {**data, "dependencies": required}


def _message(violation: Any) -> str:
    path, value, schema = (
        violation.name.removeprefix("data").removeprefix("."),
        violation.value,
        violation.definition,
    )
    where = path or "the document"
    rule, limit = violation.rule, violation.rule_definition
    if rule == "type":
        kinds = limit if isinstance(limit, list) else [limit]
        return f"{where}: is {kind_of(value)}, expected {' or '.join(_KINDS[k] for k in kinds)}"
    if rule == "required":
        missing = next(key for key in limit if key not in value)
        return f"{path}.{missing}: is missing".removeprefix(".")
    if rule == "additionalProperties":
        unknown = next(key for key in value if key not in schema.get("properties", {}))
        supported = ", ".join(schema.get("properties", {}))
        return f"{where}: unknown key {quote_name(unknown)}, expected {supported}"
    if rule in ("enum", "const"):
        words = limit if rule == "enum" else [limit]
        *most, last = map(str, words)
        expected = f"{', '.join(most)} or {last}" if most else last
        return f"{where}: is {quote(value)}, expected {expected}"
    if rule == "pattern":
        return f"{where}: is {quote(value)}, expected {schema.get('title', f'a text that matches {limit}')}"
    if rule == "uniqueItems":
        return f"{where}: has a duplicate item"
    if rule == "minItems":
        return f"{where}: is empty"
    if rule in ("minimum", "maximum"):
        bound = "from" if rule == "minimum" else "up to"
        return f"{where}: is {quote(value)}, expected a number {bound} {limit}"
    return str(violation.message).removeprefix("data.")
