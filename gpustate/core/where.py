"""Conditions on nodes: ``only=where.group("inference") & where.mig_capable``.

A condition says in words what it asks for, so that a state that does not apply is listed with the
reason. Conditions are plain data: they compare, and survive a saved plan as their text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gpustate.core.facts import NodeView
from gpustate.core.inventory import labels_of
from gpustate.errors import PolicyError
from gpustate.formats import node_labels
from gpustate.formats.node_programs import RUNTIMES
from gpustate.formats.pci_gpus import ARCHITECTURES
from gpustate.formats.words import quote

#: On no node, unless a narrower layer overrides it.
NOWHERE = "~node('*')"


@dataclass(frozen=True, slots=True)
class Condition:
    """A question about one node with a yes or no; combine with ``&``, ``|`` and ``~``."""

    text: str
    test: Callable[[NodeView], bool] = field(compare=False, repr=False)

    def holds(self, view: NodeView) -> bool:
        """Answer for one node."""
        return self.test(view)

    def __and__(self, right: Condition) -> Condition:
        return Condition(f"({self.text} & {right.text})", lambda v: self.test(v) and right.test(v))

    def __or__(self, right: Condition) -> Condition:
        return Condition(f"({self.text} | {right.text})", lambda v: self.test(v) or right.test(v))

    def __invert__(self) -> Condition:
        return Condition(f"~{self.text}", lambda v: not self.test(v))


def _quoted(value: object) -> str:
    """A value as it stands in a condition's text."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if value is None or isinstance(value, bool | int):
        return repr(value)
    raise PolicyError(
        f"a condition compares with text, whole numbers, True, False or None, not {quote(value)}"
    )


def _unquoted(word: str) -> object:
    """The value of a word that is none of the names."""
    if word[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL)
    constants: dict[str, object] = {"True": True, "False": False, "None": None}
    return constants[word] if word in constants else int(word)


def group(name: str) -> Condition:
    """The node is in this inventory group; shell patterns are allowed."""
    return Condition(
        f"group({_quoted(name)})", lambda v: any(fnmatchcase(g, name) for g in (*v.groups, "all"))
    )


def node(name: str) -> Condition:
    """The node's inventory name matches this shell pattern."""
    return Condition(f"node({_quoted(name)})", lambda v: fnmatchcase(v.name, name))


def var(name: str, value: object = True) -> Condition:
    """An inventory variable has this value."""
    return Condition(f"var({_quoted(name)}, {_quoted(value)})", lambda v: v.vars.get(name) == value)


def label(name: str, value: str) -> Condition:
    """The node has this label in Kubernetes: by the inventory, or by what the label is made of."""
    return Condition(
        f"label({_quoted(name)}, {_quoted(value)})", lambda v: _label(v, name) == value
    )


def _label(view: NodeView, name: str) -> str | None:
    value = labels_of(view.vars).get(name)
    if value is not None:
        return value
    facts = view.facts
    family = facts.gpus[0].architecture if facts.gpus else None
    system = (facts.os_id, facts.os_version)
    of_machine = node_labels.of_machine(
        view.name, facts.machine, system, facts.kernel, family, bool(facts.gpus)
    )
    return of_machine.get(name)


def distribution(code: str) -> Condition:
    """NVIDIA's distribution code matches this shell pattern: ``debian12``, ``ubuntu*``."""
    return Condition(
        f"distribution({_quoted(code)})", lambda v: fnmatchcase(v.facts.distribution, code)
    )


def runtime(name: str) -> Condition:
    """This container runtime is installed: containerd, crio, docker, k3s, podman.

    Raises:
        PolicyError: there is no such runtime.
    """
    _one_of("container runtime", name, RUNTIMES)
    return Condition(f"runtime({_quoted(name)})", lambda v: name in v.facts.runtimes)


def architecture(name: str) -> Condition:
    """Some GPU is of this architecture: ampere, ada, hopper, blackwell ...

    Raises:
        PolicyError: there is no such architecture.
    """
    _one_of("GPU architecture", name, ARCHITECTURES)
    return Condition(
        f"architecture({_quoted(name)})",
        lambda v: any(g.architecture == name for g in v.facts.gpus),
    )


def _one_of(kind: str, name: str, candidates: Sequence[str]) -> None:
    if name in candidates:
        return
    from difflib import get_close_matches  # hardly ever, and it takes a while to import

    near = get_close_matches(str(name), candidates, 1)
    hint = f"did you mean {near[0]!r}" if near else f"there are {', '.join(candidates)}"
    raise PolicyError(
        f"a condition asks for the {kind} {quote(name)}, which there is not", fix=hint
    )


gpu = Condition("gpu", lambda v: bool(v.facts.gpus))
mig_capable = Condition("mig_capable", lambda v: v.facts.mig_capable)
nvswitch = Condition("nvswitch", lambda v: v.facts.has_nvswitch)

_CALLS: dict[str, Callable[..., Condition]] = {
    "group": group,
    "node": node,
    "distribution": distribution,
    "runtime": runtime,
    "architecture": architecture,
    "var": var,
    "label": label,
}
_NAMES = {"gpu": gpu, "mig_capable": mig_capable, "nvswitch": nvswitch}
_TOKEN = re.compile(
    r"""\s*(?:(?P<op>[()&|~,])|(?P<name>[a-z_]+)
    |(?P<word>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|True|False|None|-?[0-9]{1,18}))""",
    re.VERBOSE | re.DOTALL,
)
#: More than anybody writes; less than what Python could not nest.
_MOST_TOKENS = 150


def parse(text: str) -> Condition:
    """Read a condition from its text; raise ``PolicyError`` showing where it stops making sense."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise PolicyError(
                f"condition {quote(text)} is not understood at {quote(text[position:])}"
            )
        tokens.append((match.lastgroup or "", match.group(match.lastgroup or "op")))
        position = match.end()
        if len(tokens) > _MOST_TOKENS:
            raise PolicyError(
                f"condition {quote(text[:40])}... is too long", fix="use fewer groups"
            )
    condition = _either(tokens, text)
    if tokens:
        raise PolicyError(f"condition {quote(text)} goes on with {tokens[0][1]!r} after its end")
    return condition


def _next(tokens: list[tuple[str, str]], text: str) -> tuple[str, str]:
    if not tokens:
        raise PolicyError(f"condition {quote(text)} ends too early")
    return tokens.pop(0)


def _either(tokens: list[tuple[str, str]], text: str) -> Condition:
    condition = _both(tokens, text)
    while tokens and tokens[0] == ("op", "|"):
        tokens.pop(0)
        condition = condition | _both(tokens, text)
    return condition


def _both(tokens: list[tuple[str, str]], text: str) -> Condition:
    condition = _single(tokens, text)
    while tokens and tokens[0] == ("op", "&"):
        tokens.pop(0)
        condition = condition & _single(tokens, text)
    return condition


def _single(tokens: list[tuple[str, str]], text: str) -> Condition:
    kind, word = _next(tokens, text)
    if (kind, word) == ("op", "~"):
        return ~_single(tokens, text)
    if (kind, word) == ("op", "("):
        inner = _either(tokens, text)
        if _next(tokens, text) != ("op", ")"):
            raise PolicyError(f"condition {quote(text)} lacks a closing parenthesis")
        return inner
    if kind == "name" and word in _NAMES:
        return _NAMES[word]
    if kind == "name" and word in _CALLS:
        return _call(word, tokens, text)
    names = ", ".join(sorted((*_NAMES, *(f"{name}(...)" for name in _CALLS))))
    raise PolicyError(
        f"condition {quote(text)} has no meaning at {quote(word)}", fix=f"known: {names}"
    )


def _call(name: str, tokens: list[tuple[str, str]], text: str) -> Condition:
    if _next(tokens, text) != ("op", "("):
        raise PolicyError(f"condition {quote(text)}: {name} wants an argument in parentheses")
    arguments: list[object] = []
    while True:
        kind, word = _next(tokens, text)
        if kind != "word":
            raise PolicyError(f"condition {quote(text)}: {quote(word)} is not a value")
        arguments.append(_unquoted(word))
        kind, word = _next(tokens, text)
        if (kind, word) == ("op", ")"):
            break
        if (kind, word) != ("op", ","):
            raise PolicyError(f"condition {quote(text)}: expected a comma or a closing parenthesis")
    if not all(isinstance(argument, str) for argument in arguments[: 1 if name == "var" else None]):
        expected = "a name" if name == "var" else "its value"
        raise PolicyError(f"condition {quote(text)}: {name} wants {expected} in quotes")
    try:
        return _CALLS[name](*arguments)
    except TypeError:
        raise PolicyError(f"condition {quote(text)}: wrong number of values for {name}") from None
