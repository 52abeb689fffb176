"""jinja2 for inventories: sandboxed, and strict about undefined variables.

It is a separate module so that an inventory without templates does not import jinja2.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import SandboxedEnvironment

from gpustate.documents import Json
from gpustate.formats.masking import is_secret_name, remember
from gpustate.inventory.commands import output_of
from gpustate.inventory.needs import NotYet


class _Environment(SandboxedEnvironment):
    """jinja2's sandbox, without the two operators that build huge values from short text."""

    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise jinja2.TemplateRuntimeError(f"'{operator}' is not supported on these values")
        return super().call_binop(context, operator, left, right)


def _lookup(plugin: str, *names: str, default: str | None = None) -> str:
    """Ansible's ``lookup``, with the plugins ``env`` and ``pipe``."""
    short = plugin.removeprefix("ansible.builtin.")
    if short not in {"env", "pipe"} or len(names) != 1:
        raise jinja2.TemplateRuntimeError(
            f"lookup({plugin!r}) is unsupported; use lookup('env') or lookup('pipe')"
        )
    if short == "pipe":
        NotYet.check()
        return output_of(names[0])
    value = os.environ.get(names[0], default)
    if value is None:
        raise jinja2.UndefinedError(f"the environment variable {names[0]!r} is not set")
    if is_secret_name(names[0]):
        remember(value)
    return value


_ENVIRONMENT = _Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
_ENVIRONMENT.globals = {"lookup": _lookup}


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template, and the variables it refers to."""

    names: frozenset[str]
    render: Callable[[Json], Any]


@functools.lru_cache(maxsize=4096)
def compile_template(text: str) -> Template:
    """Compile a template, cached; exceptions of jinja2 pass through."""
    tree = _ENVIRONMENT.parse(text)
    names = frozenset(meta.find_undeclared_variables(tree))
    only = tree.body[0] if len(tree.body) == 1 else None
    if (
        isinstance(only, nodes.Output)
        and len(only.nodes) == 1
        and not isinstance(only.nodes[0], nodes.TemplateData)
        and text.startswith("{{")
        and text.endswith("}}")
    ):
        # A "-" or "+" at the braces is about surrounding blanks, of which there are none.
        inner = text[3:-2] if text[2] in "-+" else text[2:-2]
        inner = inner[:-1] if inner[-1:] in "-+" else inner
        return Template(names, _ENVIRONMENT.compile_expression(inner, undefined_to_none=False))
    return Template(names, _ENVIRONMENT.from_string(text).render)
