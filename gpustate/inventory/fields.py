"""Typed reading of the variables that describe a connection.

Values come from INI, YAML, JSON or Python, so the same port may be a number or text. Each method accepts
several names of a variable; as in Ansible, the last one that is set takes precedence.
"""

from __future__ import annotations

import math
import os
import re

from gpustate.core.inventory import Sealed
from gpustate.errors import InventoryError
from gpustate.formats.words import kind_of
from gpustate.inventory.needs import NotYet, deferring
from gpustate.inventory.secrets import quote_value
from gpustate.inventory.store import Value
from gpustate.inventory.templates import Scope

# OpenSSH's own rules (valid_hostname and valid_ruser in ssh.c): safe in a shell.
HOST = re.compile(r"""[^\s'`"$\\;&<>|(){},]+""")
USER = re.compile(r"""[^'`";&<>|(){}$\\\s]+( [^'`";&<>|(){}$\\\s-][^'`";&<>|(){}$\\\s]*)*""")
#: Ansible's values for true and false, in lower case.
TRUE_WORDS = frozenset({"yes", "on", "1", "true", "t", "y", "1.0"})
FALSE_WORDS = frozenset({"no", "off", "0", "false", "f", "n", "0.0"})


def _written(value: object) -> str:
    """A value as text; empty if it cannot be written (a number with thousands of digits)."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        return ""


class Fields:
    """The connection variables of one node.

    Args:
        scope: where they are.
        node: its name, for messages.
    """

    def __init__(self, scope: Scope, node: str) -> None:
        self.scope = scope
        self.node = node

    def first(self, *names: str) -> tuple[str, Value] | None:
        """Return the last of ``names`` that is set, with its value."""
        for name in reversed(names):
            if name in self.scope.variables:
                value = self.scope.require(name)
                if value is not None and value.value is not None:
                    return name, value
        return None

    def text(self, *names: str, secret: bool = False) -> str | None:
        """Return a text or a number as text. An empty text means "not set"."""
        entry = self.first(*names)
        if entry is None:
            return None
        name, (value, place) = entry
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            detail = "" if secret else f" ({self.quote(name, value, place)})"
            raise self.error(name, f"is {kind_of(value)}{detail}, wanted a text", place)
        text = _written(value)
        if any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in text):
            raise self.error(name, "contains a control character", place)
        return text or None

    def password(self, *names: str) -> str | Sealed | None:
        """Return a password; an encrypted one is decrypted when it is needed."""
        try:
            with deferring():
                return self.text(*names, secret=True)
        except NotYet:
            return Sealed(lambda: self.text(*names, secret=True))

    def host(self, *names: str) -> str | None:
        """Return an address, valid by ssh's rules.

        It becomes part of a ``ProxyCommand`` and of suggested commands.
        """
        address = self.text(*names)
        if address is not None and (address[0] == "-" or not HOST.fullmatch(address)):
            raise self.error(
                self._named(names),
                f"is {self._quote(names, address)}, not a valid address",
                self._place(names),
            )
        return address

    def user(self, *names: str) -> str | None:
        """Return a user name, valid by ssh's rules."""
        user = self.text(*names)
        if user is not None and (user[0] == "-" or not USER.fullmatch(user)):
            raise self.error(
                self._named(names),
                f"is {self._quote(names, user)}, not a valid user name",
                self._place(names),
            )
        return user

    def quote(self, name: str, value: object, place: str) -> str:
        """A value for a message, unless it may be a secret."""
        written = self.scope.variables.get(name)
        return quote_value(value, name, place, written.value if written is not None else "")

    def _quote(self, names: tuple[str, ...], value: object) -> str:
        return self.quote(self._named(names), value, self._place(names))

    def _named(self, names: tuple[str, ...]) -> str:
        entry = self.first(*names)
        return names[0] if entry is None else entry[0]

    def _place(self, names: tuple[str, ...]) -> str:
        entry = self.first(*names)
        return "" if entry is None else entry[1].origin

    def path(self, *names: str) -> str | None:
        """Return a path, ``~`` expanded."""
        path = self.text(*names)
        return None if path is None else os.path.expanduser(path)

    def port(self, *names: str) -> int | None:
        """Return a TCP port."""
        entry = self.first(*names)
        if entry is None or entry[1].value == "":
            return None
        name, (value, place) = entry
        text = _written(value) if isinstance(value, str | int) and value is not True else ""
        if re.fullmatch(r"[0-9]{1,6}", text) and 1 <= int(text) <= 65535:
            return int(text)
        raise self.error(
            name, f"is {self.quote(name, value, place)}, wanted a port from 1 to 65535", place
        )

    def flag(self, *names: str) -> bool | None:
        """Return a boolean in any of Ansible's spellings."""
        entry = self.first(*names)
        if entry is None:
            return None
        name, (value, place) = entry
        word = _written(value).strip().lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
        raise self.error(name, f"is {self.quote(name, value, place)}, wanted true or false", place)

    def seconds(self, *names: str) -> float | None:
        """Return a time above zero, in seconds."""
        entry = self.first(*names)
        if entry is None:
            return None
        name, (value, place) = entry
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if math.isfinite(number) and number > 0:
            return number
        raise self.error(
            name, f"is {self.quote(name, value, place)}, wanted seconds above zero", place
        )

    def error(self, name: str, why: str, place: str, fix: str | None = None) -> InventoryError:
        """Return an error about one variable of this node."""
        return InventoryError(f"{self.node}: {name} {why}", place=place, fix=fix)
