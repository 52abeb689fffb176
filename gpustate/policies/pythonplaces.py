"""Find the places of values in a Python policy from its text, for ``resolve`` and for errors.

Explicit values (``Policy(Driver(branch=580))``, a state in a variable, a preset with overrides) have their own
line. Computed values get the nearest known line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gpustate.core.layers import Path
from gpustate.core.policy import Policy
from gpustate.formats.words import at


def places(text: str, file: str, policy: Policy) -> dict[Path, str]:
    """Return the places of a policy's values by path, at least those of whole states.

    Args:
        text: the file's text, which was run already.
        file: its path.
        policy: the resulting policy.
    """
    tree = ast.parse(text)
    assigned = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    value = assigned.get("policy")
    lines: dict[Path, int] = {}
    if value is not None:
        lines[("states",)] = value.lineno
    if isinstance(value, ast.Call):
        finder = _Finder(assigned, policy)
        lines.update(finder.call(value))
    lines.update(
        {
            ("states", state.name): lines[("states",)]
            for state in policy.states
            if ("states",) in lines and ("states", state.name) not in lines
        }
    )
    return {path: at(file, line) for path, line in lines.items()}


class _Finder:
    """Visits the call that builds a policy."""

    def __init__(self, assigned: dict[str, ast.expr], policy: Policy) -> None:
        self.assigned = assigned
        self.names = [state.name for state in policy.states]
        self.by_class = {type(state).__name__: state.name for state in policy.states}

    def call(self, node: ast.Call) -> Iterator[tuple[Path, int]]:
        for argument in node.args:
            yield from self.state(argument)
        for keyword in node.keywords:
            if keyword.arg in {"groups", "nodes", "allow"}:
                yield (keyword.arg,), keyword.lineno
                yield from self.mapping((keyword.arg,), keyword.value)
            elif keyword.arg is not None and keyword.arg.replace("_", "-") in self.names:
                # A preset: the parameters of a state by its name.
                path = ("states", keyword.arg.replace("_", "-"))
                yield path, keyword.lineno
                yield from self.mapping(path, keyword.value)

    def state(self, argument: ast.expr) -> Iterator[tuple[Path, int]]:
        if isinstance(argument, ast.Starred):
            # States of another policy, such as a preset's.
            inner = argument.value
            if isinstance(inner, ast.Attribute):
                inner = inner.value
            inner = self.followed(inner)
            if isinstance(inner, ast.Call):
                yield from self.call(inner)
            return
        node = self.followed(argument)
        if not isinstance(node, ast.Call):
            return
        title = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        name = self.by_class.get(str(title))
        if name is None:
            return
        yield ("states", name), node.lineno
        for keyword in node.keywords:
            if keyword.arg is not None:
                path = ("states", name, keyword.arg)
                yield path, keyword.lineno
                yield from self.mapping(path, keyword.value)

    def mapping(self, above: Path, value: ast.expr) -> Iterator[tuple[Path, int]]:
        value = self.followed(value)
        if isinstance(value, ast.Dict):
            for key, below in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    path = (*above, str(key.value))
                    yield path, key.lineno
                    yield from self.mapping(path, below)

    def followed(self, value: ast.expr) -> ast.expr:
        """The value assigned to a name."""
        for _ in range(10):
            if not isinstance(value, ast.Name) or value.id not in self.assigned:
                break
            value = self.assigned[value.id]
        return value
