"""Write policies as gpustate's own YAML, and as Python."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import yaml
from pydantic import BaseModel

from gpustate.core import where
from gpustate.core.policy import Policy
from gpustate.core.state import AnyState
from gpustate.errors import PolicyError
from gpustate.formats.yaml_events import Dumper, Written
from gpustate.manifests.settings import default_of
from gpustate.policies import document
from gpustate.policies.implying import left_out

_WIDTH = 100
#: Common parameters come after a state's own.
_SHARED = ("ensure", "only")
_WHERE_TOKEN = re.compile(
    r"""(?P<word>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<name>[a-z_]+)|(?P<rest>.)""", re.DOTALL
)


class _Dumper(Dumper):
    """Writes numbers as they were written."""


_Dumper.add_representer(Written, lambda dumper, number: dumper.represent_float(float(number)))


def as_yaml(policy: Policy) -> str:
    """A policy in gpustate's own format."""
    return yaml.dump(
        document.as_data(policy),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH - 20,
        default_flow_style=False,
    )


def as_python(policy: Policy) -> str:
    """A policy in Python; a condition with custom code is written as its text."""
    writer = _Python()
    states = [writer.state(state) for state in policy.states]
    extra: dict[str, str] = {}
    if policy.name:
        extra["name"] = _quoted(policy.name)
    drain = policy.drain.as_data() if policy.drain is not None else {}
    options = (
        *(("groups", policy.groups), ("nodes", policy.nodes)),
        *(("allow", policy.allow), ("rollout", policy.rollout.as_data()), ("drain", drain)),
        ("without", left_out(policy)),
    )
    for name, value in options:
        if value:
            extra[name] = writer.literal(value, 4 + len(name) + 1)
    if policy.cluster is not None:
        extra["cluster"] = writer.settings(policy.cluster, 4)
    call = _call("Policy", [*states, *(f"{name}={text}" for name, text in extra.items())], 0, True)
    names = ["Policy", *(["where"] if writer.where else [])]
    lines = [f"from gpustate import {', '.join(names)}"]
    for module, classes in sorted(writer.imports.items()):
        lines.append(f"from {module} import {', '.join(sorted(classes))}")
    return f"{chr(10).join(lines)}\n\npolicy = {call}\n"


class _Python:
    """Writes values as Python, and collects their imports."""

    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = {}
        self.where = False

    def state(self, state: AnyState) -> str:
        names = [*(name for name in type(state).model_fields if name not in _SHARED), *_SHARED]
        fields = [name for name in names if name in state.model_fields_set]
        short = [f"{name}={self.literal(getattr(state, name))}" for name in fields]
        cls = self.state_class(type(state))
        line = _call(cls, short, 4)
        if "\n" not in line:
            return line
        long = [f"{name}={self.literal(getattr(state, name), 8)}" for name in fields]
        return _call(cls, long, 4)

    def settings(self, value: Any, indent: int) -> str:
        """Settings of a cluster's objects: a call with the values that are not defaults."""
        if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
            return f"({', '.join(self.settings(element, indent + 4) for element in value)},)"
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return self.literal(value, indent)
        fields = [
            (field.name, content)
            for field in dataclasses.fields(value)
            if (content := getattr(value, field.name)) != default_of(field)
        ]
        rows = [f"{name}={self.settings(content, indent + 4)}" for name, content in fields]
        self.imports.setdefault("gpustate.manifests", set()).add(type(value).__name__)
        return _call(type(value).__name__, rows, indent)

    def state_class(self, cls: type[AnyState]) -> str:
        if not cls.family:
            return self.named(cls)
        family = next(base for base in cls.__mro__ if "family" in vars(base))
        return f"{self.named(family)}.member({_quoted(cls.name)})"

    def named(self, cls: type) -> str:
        self.imports.setdefault(_public(cls), set()).add(cls.__name__)
        return cls.__name__

    def literal(self, value: Any, indent: int | None = None) -> str:
        """A value as Python; a mapping that does not fit after ``indent`` is split into lines."""
        if isinstance(value, Mapping) and indent is not None:
            line = self.literal(value)
            if indent + len(line) + 20 < _WIDTH:
                return line
            level = indent - indent % 4
            space = " " * (level + 4)
            rows = "".join(
                f"{space}{self.literal(k)}: {self.literal(v, level + 4)},\n"
                for k, v in value.items()
            )
            return f"{{\n{rows}{' ' * level}}}"
        if isinstance(value, where.Condition):
            return self.condition(value)
        if isinstance(value, Enum):
            return f"{self.named(type(value))}.{value.name}"
        if value is None or isinstance(value, bool | int | float | str):
            return _quoted(value) if isinstance(value, str) else repr(value)
        if isinstance(value, Mapping):
            return (
                "{"
                + ", ".join(f"{self.literal(k)}: {self.literal(v)}" for k, v in value.items())
                + "}"
            )
        if isinstance(value, tuple):
            inner = ", ".join(self.literal(item) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, list):
            return "[" + ", ".join(self.literal(item) for item in value) + "]"
        if isinstance(value, frozenset | set):
            inner = ", ".join(sorted(self.literal(item) for item in value))
            empty = "frozenset()" if isinstance(value, frozenset) else "set()"
            text = f"{{{inner}}}" if isinstance(value, set) else f"frozenset({{{inner}}})"
            return text if inner else empty
        fields: list[str] = []
        if isinstance(value, BaseModel):
            fields = [name for name in type(value).model_fields if name in value.model_fields_set]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value) if field.init]
        else:
            raise PolicyError(f"a {type(value).__name__} cannot be written as Python")
        inner = ", ".join(f"{name}={self.literal(getattr(value, name))}" for name in fields)
        return f"{self.named(type(value))}({inner})"

    def condition(self, condition: where.Condition) -> str:
        """``where.group("a") & ~where.gpu``; its text if there is nothing else."""
        try:
            where.parse(condition.text)
        except PolicyError:
            return _quoted(condition.text)
        self.where = True
        text = condition.text
        while _wrapped(text):
            text = text[1:-1]
        parts: list[str] = []
        for token in _WHERE_TOKEN.finditer(text):
            if token["word"]:
                parts.append(_quoted(re.sub(r"\\(.)", r"\1", token["word"][1:-1], flags=re.DOTALL)))
            elif token["name"]:
                parts.append(f"where.{token['name']}")
            else:
                parts.append(token[0])
        return "".join(parts)


def _public(cls: type) -> str:
    """The module to import a class from: the package that exports it, else its own."""
    module = cls.__module__
    package = module.rpartition(".")[0]
    if package.startswith("gpustate.states.") or package == "gpustate":
        import importlib

        if getattr(importlib.import_module(package), cls.__name__, None) is cls:
            return package
    return module


def _wrapped(text: str) -> bool:
    """Whether one pair of parentheses holds everything."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depth = 0
    for token in _WHERE_TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 and token.end() < len(text):
            return False
    return True


def _quoted(text: str) -> str:
    """A text in Python with double quotes."""
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else repr(text)


def _call(name: str, arguments: list[str], indent: int, always: bool = False) -> str:
    """A call on one line, or with one line per argument."""
    line = f"{name}({', '.join(arguments)})"
    if not arguments or (not always and indent + len(line) < _WIDTH and "\n" not in line):
        return line
    space = " " * (indent + 4)
    rows = "".join(f"{space}{argument},\n" for argument in arguments)
    return f"{name}(\n{rows}{' ' * indent})"
