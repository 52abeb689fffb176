"""Parse YAML and JSON into plain Python data with line numbers.

Values are read like in Ansible: YAML 1.1 (``no`` is false), ``!vault`` becomes :class:`EncryptedText`,
``!unsafe`` becomes :class:`LiteralText`. A date stays text.

Sources:
    Ansible, "Advanced playbook syntax: unsafe or raw strings"; "Protecting sensitive data".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpustate.documents import Json
from gpustate.errors import InventoryError
from gpustate.formats import strict_json, yaml_events
from gpustate.formats.words import at


class EncryptedText(str):
    """The text of a value encrypted with Ansible Vault, still encrypted."""

    __slots__ = ()


class LiteralText(str):
    """A text marked ``!unsafe``: braces in it are not a template."""

    __slots__ = ()


_RULES = yaml_events.Rules(
    InventoryError,
    depth=100,
    values=2_000_000,
    tags={"!vault": EncryptedText, "!vault-encrypted": EncryptedText, "!unsafe": LiteralText},
)


@dataclass(slots=True)
class Document:
    """One parsed file with the lines of its mapping keys."""

    path: str
    data: Any = None
    lines: dict[int, dict[Any, int]] = field(default_factory=dict[int, dict[Any, int]])

    def place(self, mapping: Any, key: Any) -> str:
        """Return the place of ``key`` of ``mapping``."""
        return at(self.path, self.lines.get(id(mapping), {}).get(key))

    def places(self, value: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
        """Return the places of everything in a value, by its keys."""
        places: dict[tuple[str, ...], str] = {}
        if isinstance(value, dict):
            for key, below in value.items():
                path = (*above, str(key))
                places[path] = self.place(value, key)
                places.update(self.places(below, path))
        return places


def parse(text: str, path: str) -> Document:
    """Read ``text`` as JSON if ``path`` ends in .json, else as YAML.

    Raises:
        InventoryError: with the line of the problem.
    """
    if path.endswith(".json"):
        return Document(path, parse_json(text, path))
    documents = yaml_events.documents(text, path, _RULES)
    if not documents:
        return Document(path)
    return Document(path, documents[0].data, documents[0].lines.of_keys)


def parse_json(text: str, place: str) -> Any:
    """Read JSON, including Ansible's markers for unsafe and encrypted text."""
    return strict_json.read(text, place, InventoryError, make=_json_object)


def _json_object(data: Json) -> Any:
    if len(data) == 1:
        ((key, value),) = data.items()
        if key == "__ansible_unsafe" and isinstance(value, str):
            return LiteralText(value)
        if key == "__ansible_vault" and isinstance(value, str):
            return EncryptedText(value)
    return data
