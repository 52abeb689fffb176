"""jinja2 as inventories may use it: sandboxed, strict about what is undefined.

A module of its own, so that an inventory without templates does not import jinja2.
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

from gpustate.formats.masking import is_secret_name, remember
from gpustate.inventory.commands import printed
from gpustate.inventory.needs import NotYet


class _Environment(SandboxedEnvironment):
    """jinja2's sandbox, without the two operators that make a huge value from a short text."""

    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise jinja2.TemplateRuntimeError(f"'{operator}' is not supported on these values")
        return super().call_binop(context, operator, left, right)


def _lookup(plugin: str, *names: str, default: str | None = None) -> str:
    """Ansible's ``lookup``, of which ``env`` and ``pipe`` have a use in an inventory that stands alone."""
    short = plugin.removeprefix("ansible.builtin.")
    if short not in {"env", "pipe"} or len(names) != 1:
        raise jinja2.TemplateRuntimeError(
            f"lookup({plugin!r}) is not supported, only 'env', and 'pipe' with the command of any program"
        )
    if short == "pipe":
        NotYet.check()
        return printed(names[0])
    found = os.environ.get(names[0], default)
    if found is None:
        raise jinja2.UndefinedError(f"the environment variable {names[0]!r} is not set")
    if is_secret_name(names[0]):
        remember(found)
    return found


_ENVIRONMENT = _Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
_ENVIRONMENT.globals = {"lookup": _lookup}


@dataclass(frozen=True, slots=True)
class Template:
    """A template that is compiled, and the variables it refers to."""

    names: frozenset[str]
    render: Callable[[dict[str, Any]], Any]


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> Template:
    """Compile a template, each text once; whatever jinja2 raises passes through."""
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
        # A "-" or "+" beside the braces is about blanks around them, of which there are none.
        inner = text[3:-2] if text[2] in "-+" else text[2:-2]
        inner = inner[:-1] if inner[-1:] in "-+" else inner
        return Template(names, _ENVIRONMENT.compile_expression(inner, undefined_to_none=False))
    return Template(names, _ENVIRONMENT.from_string(text).render)
