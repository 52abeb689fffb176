"""The JSON Schema of gpustate's own policies, generated from the parameters of the states.

``python -m gpustate.policies.schemas`` writes the published schema of the bundled states. ``gpustate policy schema`` prints
that of all installed states, for an editor's completion.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from gpustate import manifests, registry
from gpustate.core.drain import DrainOverrides, EvictionRules
from gpustate.core.rollout import RolloutPolicy
from gpustate.core.state import AnyState
from gpustate.core.where import Condition
from gpustate.documents import Json, JsonView
from gpustate.manifests import cluster_part
from gpustate.policies.document import FORMAT, KEYS
from gpustate.presets import STACKS

FILE = Path(__file__).with_name("schema") / "policy.json"
_ARGUMENT = re.compile(r"^ {4}(?P<names>\w+(?:, \w+)*): (?P<text>.*?)(?=^ {4}\S|\Z)", re.M | re.S)
_REASONS = {"type": "string", "pattern": "\\S"}


class _Generator(GenerateJsonSchema):
    """Supports conditions, which are text in a file."""

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        if schema.get("cls") is Condition:
            return {"type": "string"}
        return super().dataclass_schema(schema)


def schema(classes: Mapping[str, type[AnyState]] | None = None) -> Json:
    """The schema of policies with some states; by default all registered ones."""
    by_name = registry.states() if classes is None else classes
    definitions: Json = {}
    states: Json = {}
    listed: Json = {}
    for name, cls in sorted(by_name.items()):
        definitions |= _of_state(cls, name)
        states[name] = _or_null(name)
        listed[name] = {"oneOf": [*states[name]["oneOf"], {"const": False}]}
    families: Json = {}
    partly: Json = {}
    for family, cls in sorted(registry.Registry().families().items()):
        definitions[family] = {**_of_state(cls, family)[family], "title": f"{family}-NAME"}
        pattern = f"^{family}-[a-z0-9]+(-[a-z0-9]+)*$"
        families[pattern] = {"$ref": f"#/$defs/{family}"}
        partly[pattern] = {"$ref": f"#/$defs/{family}-override"}
        definitions[f"{family}-override"] = {
            key: value for key, value in definitions[family].items() if key != "required"
        }
    definitions["condition"] = {
        "type": "string",
        "description": "Selects nodes: runtime('containerd') & ~mig_capable, group('inference').",
    }
    definitions["states"] = _closed(
        listed, "Parameters by state; nothing for the defaults, false to leave it out.", families
    )
    definitions["allow"] = {
        "type": "object",
        "description": "Allowed exceptions from rules of the compatibility matrix, each with the reason.",
        "additionalProperties": _REASONS,
    }
    definitions["drain"] = _drain()
    definitions["rollout"] = _rollout()
    definitions |= _cluster()
    definitions["overrides"] = {
        "type": "object",
        "additionalProperties": _closed(
            {**states, "allow": {"$ref": "#/$defs/allow"}},
            "Parameters by state that override those of the fleet.",
            partly,
        ),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:gpustate:policy:1",
        "title": FORMAT,
        "description": "Desired states, with parameters for groups and nodes.",
        "type": "object",
        "additionalProperties": False,
        "if": {"required": ["preset"]},
        "else": {"required": ["states"], "propertyNames": {"enum": [*KEYS]}},
        "patternProperties": families,
        "properties": {
            "format": {"const": FORMAT},
            "name": {"type": ["string", "null"], "description": "Shown in plans."},
            "preset": {"enum": [*STACKS], "description": "States of a whole node."},
            **{
                key: _or_null("overrides" if key in ("groups", "nodes") else key)
                for key in KEYS[KEYS.index("states") :]
            },
            **listed,
        },
        "$defs": dict(sorted(definitions.items())),
    }


_KINDS: dict[str, Json] = {
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "float": {"type": "number", "minimum": 0},
    "int": {"type": "integer", "minimum": 0},
}


def _section(cls: type, kinds: Mapping[str, Json], description: str) -> Json:
    """A section of a policy.

    Args:
        cls: its values, which its docstring describes.
        kinds: of fields whose type does not say it, by name.
        description: of the section.
    """
    texts = _arguments(cls.__doc__ or "")
    rows: Json = {}
    for field in dataclasses.fields(cls):
        kind = str(field.type).removesuffix(" | None")
        row = dict(kinds[field.name] if field.name in kinds else _KINDS[kind])
        if kind != field.type and isinstance(row["type"], str):
            row["type"] = [row["type"], "null"]
        rows[field.name] = {**row, "description": texts[field.name]}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": rows,
        "description": description,
    }


def _drain() -> Json:
    """How workloads leave a node."""
    rules = _section(EvictionRules, {}, "")
    kinds = {"gpu_pods": rules, "node": rules}
    return _section(DrainOverrides, kinds, "How workloads leave a node before a change.")


def _rollout() -> Json:
    """How a rollout goes through its nodes."""
    size: Json = {"type": ["string", "integer"]}
    sizes = {"type": ["string", "integer", "array"], "items": size}
    kinds = {"canary": size, "serial": sizes, "max_unavailable": size}
    about = "How a rollout goes through its nodes; options of the command line take precedence."
    return _section(RolloutPolicy, kinds, about)


def _cluster() -> Json:
    """The objects of a cluster: the definition of their settings, and those of its parts."""
    root = cluster_part.adapter().json_schema(ref_template="#/$defs/cluster.{model}")
    parts = root.pop("$defs")
    classes = {name: getattr(manifests, name) for name in parts}
    definitions = {
        f"cluster.{name}": _settings(body, classes[name]) for name, body in parts.items()
    }
    definitions["cluster"] = _settings(root, manifests.ClusterSettings)
    return definitions


def _settings(body: Json, cls: type) -> Json:
    """The schema of one class of settings with descriptions from its docstring."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= _arguments(base.__doc__ or "")
    properties: Json = {}
    for name, value in body["properties"].items():
        value.pop("title", None)
        properties[name] = {**value, "description": texts[name]}
    about = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return {**body, "description": about, "properties": properties}


def _or_null(name: str) -> Json:
    return {"oneOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}


def _closed(properties: JsonView, description: str, patterns: JsonView) -> Json:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": dict(properties),
        "patternProperties": dict(patterns),
    }


def _of_state(cls: type[AnyState], name: str) -> Json:
    """The schemas of one state, with descriptions from its docstring, and of what it has."""
    body = cls.model_json_schema(
        schema_generator=_Generator, ref_template=f"#/$defs/{name}.{{model}}"
    )
    parts = body.pop("$defs", {})
    body["properties"]["only"] = _or_null("condition")
    text = cls.__doc__ or ""
    body["title"] = cls.name
    body["description"] = " ".join(text.split("\n\n")[0].split())
    texts = _arguments(text) | {
        "ensure": "absent removes what the state installed.",
        "only": "Selects the nodes it applies to.",
    }
    for parameter, value in body["properties"].items():
        value.pop("title", None)
        if parameter in texts:
            value["description"] = texts[parameter]
    nested = {f"{name}.{key}": value for key, value in parts.items() if key != "Condition"}
    return {**nested, name: body}


def _arguments(text: str) -> dict[str, str]:
    """The section ``Args`` of a docstring, by name."""
    import inspect

    section = inspect.cleandoc(text).partition("Args:\n")[2]
    section = re.split(r"^\S", section, maxsplit=1, flags=re.M)[0]
    return {
        name: " ".join(match["text"].split())
        for match in _ARGUMENT.finditer(section)
        for name in match["names"].split(", ")
    }


def published() -> str:
    """The text of the published schema: bundled states only."""
    bundled = {
        name: cls
        for name, cls in registry.Registry().states().items()
        if cls.__module__.startswith("gpustate.states.")
    }
    return json.dumps(schema(bundled), indent=2) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(published(), encoding="utf-8")
