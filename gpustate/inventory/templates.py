"""``{{ templates }}`` in the values of variables.

A value may refer to the node's other variables, to ``inventory_hostname``, ``group_names`` and similar, and to
``lookup('env', 'NAME')``. jinja2 evaluates it in its sandbox. Variables of the connection and all ``gpustate...``
variables must resolve. Other values that do not resolve (because of facts, or a filter of Ansible) are kept as
written: Ansible too evaluates a variable only when it is used, and gpustate uses no others.

A value that is one expression keeps its type: ``"{{ port }}"`` is a number if ``port`` is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import InventoryError
from gpustate.formats.masking import remember
from gpustate.formats.words import quote, quote_name
from gpustate.inventory.documents import EncryptedText, LiteralText
from gpustate.inventory.needs import NotYet, deferring
from gpustate.inventory.secrets import HIDDEN, gives_secrets, is_secret
from gpustate.inventory.store import Value
from gpustate.inventory.vault import HINT, Vault

_MARKS = ("{{", "{%", "{#")
_UNDEFINED = re.compile(r"'\w+' is undefined|the environment variable '\w+' is not set")
_LIMIT_TEXT = 1_000_000
#: A value encrypted by sops.
_SOPS = "ENC[AES256_GCM,"
_LIMIT_CHAIN = 50


def is_template(text: str) -> bool:
    """Whether ``text`` contains a template."""
    return "{" in text and any(mark in text for mark in _MARKS)


class Scope:
    """The variables of one node, resolved on demand.

    Args:
        node: its name, for messages.
        variables: its merged variables.
        magic: returns Ansible's special variables; raises KeyError for others.
        encrypted: unreadable files, which may contain a missing variable.
        plain: ids of lists and mappings without templates; shared by all nodes of one load.
        vault: decrypts values on demand.
    """

    def __init__(
        self,
        node: str,
        variables: Mapping[str, Value],
        magic: Callable[[str], Any],
        encrypted: Sequence[str],
        plain: set[int],
        vault: Vault | None = None,
    ) -> None:
        self.node = node
        self.variables = variables
        self._magic = magic
        self._encrypted = encrypted
        self._plain = plain
        self._vault = vault or Vault()

    def require(self, name: str) -> Value | None:
        """Return a variable that must resolve; None if it is not set.

        Raises:
            InventoryError: it refers to an undefined variable, or is encrypted.
        """
        value = self.variables.get(name)
        if value is None:
            return None
        if type(value.value) is str and "{" not in value.value and value.value[:4] != _SOPS[:4]:
            return value
        try:
            return Value(self._resolve(value, (name,)), value.origin)
        except RecursionError as error:
            raise self._error(value, name, "is nested too deep") from error

    def value_of(self, variable: Value, name: str) -> Any:
        """Return a variable's value in one scope, regardless of precedence.

        Raises:
            InventoryError: as for :meth:`require`.
        """
        try:
            return self._resolve(variable, (name,))
        except RecursionError as error:
            raise self._error(variable, name, "is nested too deep") from error

    def resolved(self) -> JsonView:
        """Return all variables; unresolvable ones as written, if they are not needed.

        Values that need decryption or a command are computed on access.
        """
        result: Json = {}
        waiting = False
        with deferring():
            for name, variable in self.variables.items():
                value = variable.value
                if type(value) is str and "{" not in value:
                    result[name] = value
                    continue
                try:
                    result[name] = self._as_used(name, variable)
                except NotYet:
                    waiting = True
        return Waiting(self, result) if waiting else result

    def as_used(self, name: str) -> Any:
        """Return one variable as :meth:`resolved` has it; KeyError if it is not set."""
        return self._as_used(name, self.variables[name])

    def _as_used(self, name: str, variable: Value) -> Any:
        if name.startswith("gpustate"):
            needed = self.require(name)
            return None if needed is None else needed.value
        try:
            return self._resolve(variable, (name,), strict=self._vault.usable)
        except (InventoryError, RecursionError):
            return variable.value

    def _resolve(self, variable: Value, names: tuple[str, ...], *, strict: bool = True) -> Any:
        return self._walk(variable.value, variable, names, strict)

    def _walk(self, value: Any, variable: Value, names: tuple[str, ...], strict: bool) -> Any:
        if isinstance(value, str):
            if isinstance(value, EncryptedText):
                return self._decrypted(value, variable, names) if strict else value
            if isinstance(value, LiteralText):
                return str(value)
            if strict and value.startswith(_SOPS):
                raise self._error(
                    variable,
                    names[-1],
                    "the value is encrypted with SOPS",
                    "decrypt it with: \"{{ lookup('pipe', 'sops -d --extract ...') }}\"",
                )
            return self._render(value, variable, names) if is_template(value) else value
        if not isinstance(value, dict | list | tuple) or id(value) in self._plain:
            return value
        if isinstance(value, dict):
            walked: Any = {k: self._walk(v, variable, names, strict) for k, v in value.items()}
            same = all(walked[key] is value[key] for key in walked)
        else:
            walked = [self._walk(item, variable, names, strict) for item in value]
            same = len(walked) == len(value) and all(
                a is b for a, b in zip(walked, value, strict=True)
            )
        if not same:
            return walked
        if strict:
            self._plain.add(id(value))
        return value

    def _render(self, text: str, value: Value, names: tuple[str, ...]) -> Any:
        # Most inventories have no template, and importing jinja2 is slow.
        import jinja2

        from gpustate.inventory.rendering import compile_template

        try:
            template = compile_template(text)
            context: Json = {}
            for name in template.names:
                if name in self.variables:
                    context[name] = self._refer(name, value, names)
                else:
                    try:
                        context[name] = self._magic(name)
                    except KeyError:
                        continue
            result = template.render(context)
            if isinstance(result, jinja2.Undefined):
                # For jinja2 only its use is an error.
                result = str(result)
        except (InventoryError, NotYet, RecursionError):
            raise
        except jinja2.UndefinedError as error:
            why = error.message or "undefined"
            if self._secret(text, names) and not _UNDEFINED.fullmatch(why):
                why = f"{HIDDEN}: undefined"  # the missing key may be a value
            raise self._error(value, names[0], why, self._hint()) from error
        except jinja2.TemplateError as error:
            why = f"{HIDDEN if self._secret(text, names) else quote(text)}: {error.message}"
            raise self._error(value, names[0], why) from error
        except Exception as error:
            why = f"{quote(text)}: {type(error).__name__}: {error}"
            if self._secret(text, names):  # the message may contain a value
                why = f"{HIDDEN}: {type(error).__name__}"
            raise self._error(value, names[0], why) from error
        if isinstance(result, str) and len(result) > _LIMIT_TEXT:
            raise self._error(value, names[0], f"becomes {len(result)} characters")
        return result

    def _refer(self, name: str, value: Value, names: tuple[str, ...]) -> Any:
        if name in names:
            chain = " > ".join(map(quote_name, (*names[names.index(name) :], name)))
            raise self._error(value, names[0], f"refers to itself: {chain}")
        if len(names) >= _LIMIT_CHAIN:
            raise self._error(value, names[0], f"refers through more than {_LIMIT_CHAIN} variables")
        return self._resolve(self.variables[name], (*names, name))

    def _secret(self, text: str, names: tuple[str, ...]) -> bool:
        return is_secret(text) or gives_secrets(text) or any(map(is_secret, names))

    def _hint(self) -> str:
        if self._encrypted:
            return f"it may be in {self._encrypted[0]}, which is encrypted: {HINT}"
        return "set it for this node, or for one of its groups"

    def _error(self, value: Value, name: str, why: str, fix: str | None = None) -> InventoryError:
        line = " ".join(why.split())
        return InventoryError(
            f"{self.node}: {quote_name(name)}: {line}", place=value.origin, fix=fix
        )

    def _decrypted(self, value: EncryptedText, variable: Value, names: tuple[str, ...]) -> str:
        needed = "" if len(names) == 1 else f", which {quote_name(names[-2])} needs,"
        NotYet.check()
        try:
            clear = self._vault.decrypt(str(value), variable.origin)
        except InventoryError as error:
            why = error.message
            if error.place != variable.origin:  # the password is the problem, not the value
                source = f"{error.place}: " if error.place else ""
                why = f"cannot be decrypted: {source}{why}"
            raise self._error(variable, names[-1], f"the value{needed} {why}", error.fix) from None
        remember(clear)
        return clear


class Waiting(JsonView):
    """The variables of a node, some of which are computed on access."""

    def __init__(self, scope: Scope, variables: Json) -> None:
        self._scope = scope
        self._known = variables

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._scope.as_used(name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._scope.variables

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope.variables)

    def __len__(self) -> int:
        return len(self._scope.variables)
