"""Parse Kubernetes YAML (or JSON) text into items with line numbers.

A file may contain several documents, and a ``kind: List`` several objects. Values are parsed as by the
API server: YAML 1.1, so an unquoted ``on`` or ``no`` is a boolean; keys are text.

Sources:
    kubernetes-sigs/yaml: what kubectl makes of a file.
    helm/helm v3: cmd/helm/get_values.go (the line above the values).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats import yaml_events
from gpustate.formats.yaml_events import Written

#: Limits for Kubernetes objects: several in one file, with binary data in Secrets.
OBJECTS = yaml_events.Rules(
    PolicyError,
    depth=60,
    values=500_000,
    tags={"tag:yaml.org,2002:binary": str, yaml_events.FLOAT: Written},
    text_keys=True,
    many=True,
)
#: The heading of ``helm get values``; with ``--all`` the second.
_HEADING = re.compile(r"(USER-SUPPLIED|COMPUTED) VALUES:[ \t]*(\r?\n|\Z)")
_NO_VALUES = ("", "null", "{}")
#: A variable that Flux substitutes, with its default.
_WITH_DEFAULT = re.compile(r"(?<!\$)\$\{[A-Za-z_][A-Za-z0-9_]*:?[=-]([^{}\n]*)\}")
#: Template placeholders of other programs.
UNFILLED = re.compile(r"(?<!\$)\$\{[A-Za-z_][A-Za-z0-9_]*\}|\{\{.*\}\}", re.DOTALL)
_FLUX_RENDERS = "render it first: flux envsubst --strict < FILE > rendered.yaml"
_RENDERERS = (
    (".gotmpl", "helmfile template > rendered.yaml"),
    (".j2", "ansible localhost -m template -a 'src=FILE dest=rendered.yaml'"),
)


@dataclass(frozen=True, slots=True)
class Item:
    """A value and the line of its key (in a list: of the value itself).

    Args:
        value: a scalar, a dict of items by key, or a list of items.
        line: counted from 1.
    """

    value: Any
    line: int

    def get(self, *path: str) -> Item | None:
        """Follow keys down mappings; ``None`` if one is missing or null."""
        item: Item | None = self
        for key in path:
            if item is None or not isinstance(item.value, dict):
                return None
            item = item.value.get(key)
        return None if item is None or item.value is None else item

    def text(self, *path: str) -> str:
        """The string at a path; empty if there is none."""
        item = self.get(*path)
        return item.value if item is not None and isinstance(item.value, str) else ""


def plain(item: Item) -> Any:
    """Return an item as plain Python data."""
    if isinstance(item.value, dict):
        return {key: plain(value) for key, value in item.value.items()}
    if isinstance(item.value, list):
        return [plain(value) for value in item.value]
    return float(item.value) if isinstance(item.value, Written) else item.value


def without_heading(text: str) -> str:
    """Remove the heading of ``helm get values``; line numbers stay the same.

    No values at all become an empty section: the chart's defaults apply.
    """
    heading = _HEADING.match(text)
    if heading is None:
        return text
    body = text[heading.end() :]
    return "#\n" + ("operator: {}\n" if body.strip() in _NO_VALUES else body)


def filled_in(text: str) -> str:
    """Substitute Flux's variables with their defaults: ``${version:=580}``."""
    return _WITH_DEFAULT.sub(lambda match: match[1], text) if "${" in text else text


def rendering(path: str) -> str:
    """The command that renders a template."""
    command = next((renderer for ending, renderer in _RENDERERS if path.endswith(ending)), "")
    return f"render it first: {command or 'helm template gpu-operator CHART > rendered.yaml'}"


def placeholder(value: object, path: str) -> str | None:
    """How to fill in the placeholder of another program in a value; ``None`` if it has none."""
    match = UNFILLED.search(value) if isinstance(value, str) else None
    if match is None:
        return None
    return _FLUX_RENDERS if match[0][0] == "$" else rendering(path)


def read(text: str, path: str) -> list[Item]:
    """Return the non-empty documents of a file, those of a ``List`` one by one.

    Raises:
        PolicyError: invalid text, with its line.
    """
    contents: list[Item] = []
    try:
        read = yaml_events.documents(without_heading(text), path, OBJECTS)
    except PolicyError as error:
        line = next(
            (n for n, row in enumerate(text.split("\n"), 1) if "{{" in row or "{%" in row), 0
        )
        if not line:
            raise
        place = f"{path}:{line}"
        raise PolicyError("is a template, not YAML", place=place, fix=rendering(path)) from error
    for document in read:
        item = document.wrapped(Item)
        if item.text("kind") == "List" and item.text("apiVersion") == "v1":
            items = item.get("items")
            if items is not None and isinstance(items.value, list):
                contents.extend(items.value)
                continue
        if item.value is not None:
            contents.append(item)
    return contents
