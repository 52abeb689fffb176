"""Changes of a policy on the command line: ``--values``, ``--set``, ``--patch``.

The order is Helm's, later ones taking precedence: values files in order, ``--set``; then the patches. They apply to the policy's own document in its format, before states are built.
A patch may refer to values that the document leaves at their defaults.

Sources:
    helm/helm, pkg/cli/values/options.go (the order).
    kubectl patch: a patch is YAML or JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.formats.words import kind_of, quote
from gpustate.policies import files, jsonpatch, strvals, trees
from gpustate.policies.strvals import Assignment
from gpustate.policies.trees import Path, Steps, Tree

#: Sections of every policy, whatever its format; those of an Operator file, which has no other place for them.
SECTIONS = ("rollout", "drain")
OPERATOR_SECTIONS = (*SECTIONS, "cluster")

#: Maps the first key of a path to the path of its parent: ``driver`` is below ``states``.
Home = Callable[[str], Path]


def at_top(_: str) -> Path:
    """All paths begin at the top."""
    return ()


@dataclass(frozen=True, slots=True)
class Format:
    """How changes apply to the documents of a format.

    Args:
        home: maps paths of ``--values`` and ``--set`` to their parents.
        patch_home: maps those of patches.
        expand: completes a document for the patches.
        default: of values that a document does not set.
        removed: ``null`` stays in the document, since it removes a default: as in Helm values.
        wrappers: keys around such a document elsewhere, which a patch may begin with.
    """

    home: Home = at_top
    patch_home: Home = at_top
    expand: Callable[[Tree], Tree] = lambda tree: tree
    default: jsonpatch.Default = jsonpatch.no_defaults
    removed: bool = False
    wrappers: Path = ()


_PLAIN = Format()


@dataclass(frozen=True, slots=True)
class Changes:
    """The options in order.

    Args:
        values: paths of values files; ``-`` is standard input.
        set_typed: texts of ``--set``.
        patches: texts of patches; ``@FILE`` is the file's text.
        beside: sections that the document does not have.
    """

    values: tuple[str, ...] = ()
    set_typed: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    beside: tuple[str, ...] = SECTIONS

    def __bool__(self) -> bool:
        return any((self.values, self.set_typed, self.patches))

    def sections(self) -> tuple[Json, Mapping[Path, str]]:
        """What ``--set`` says of sections that the document does not have, and its places."""
        tree, touched = Tree({}, ""), dict[Path, str]()
        for assignment in self._assignments():
            if assignment.steps[0] in self.beside:
                tree = _assigned(tree, assignment, at_top, touched)
        for path, place in touched.items():
            tree = _with_null(tree, path, place)
        return trees.plain(tree), touched

    @property
    def beyond_sections(self) -> str:
        """The first option that changes the document, as written; empty: there is none."""
        options = (("--values", self.values), ("--patch", self.patches))
        beyond = [f"{name} {texts[0]}" for name, texts in options if texts]
        beyond += [
            assignment.place
            for assignment in self._assignments()
            if assignment.steps[0] not in self.beside
        ]
        return beyond[0] if beyond else ""

    def _assignments(self) -> Iterator[Assignment]:
        for text in self.set_typed:
            yield from strvals.assignments(text)

    def on(self, tree: Tree, format: Format = _PLAIN) -> Changed:
        """Apply all changes of the document.

        Args:
            tree: the policy's document.
            format: of the document.

        Raises:
            PolicyError: with the option, or the line of its file.
        """
        touched: dict[Path, str] = {}
        for file in self.values:
            tree = jsonpatch.merge(tree, trees.housed(_values(file), format.home), touched)
        for assignment in self._assignments():
            if assignment.steps[0] not in self.beside:
                tree = _assigned(tree, assignment, format.home, touched)
        tree = format.expand(tree)
        for number, text in enumerate(self.patches, 1):
            patch = _patch(text, number if len(self.patches) > 1 else 0)
            for name in format.wrappers:
                patch = _unwrapped(patch, name)
            if isinstance(patch.value, list):
                tree = jsonpatch.apply(tree, patch, touched, format.default, format.patch_home)
            else:
                tree = jsonpatch.merge(tree, trees.housed(patch, format.patch_home), touched)
        if format.removed:
            for path, place in touched.items():
                tree = _with_null(tree, path, place)
        return Changed(tree, touched)


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed document, and the changed paths with the places of the changes."""

    tree: Tree
    touched: Mapping[Path, str] = field(default_factory=dict[Path, str])


def _values(file: str) -> Tree:
    path = "/dev/stdin" if file == "-" else file
    text = files.text_of(path)
    items = [tree for tree in trees.documents(text, file) if tree.value is not None]
    if not items:
        return Tree({}, file)
    if not isinstance(items[0].value, dict):
        kind = kind_of(items[0].value)
        raise PolicyError(f"is {kind}, wanted a mapping of values", place=items[0].place)
    return items[0]


def _patch(text: str, number: int) -> Tree:
    place = "--patch" if not number else f"--patch {number}"
    file = text.removeprefix("@") if text.startswith("@") else None
    if file is not None:
        place = file
        text = files.text_of("/dev/stdin" if file == "-" else file)
    if not text.strip():
        raise PolicyError("is empty, wanted a patch", place=place)
    patches = [tree for tree in _patches(text, place, file) if tree.value is not None]
    if not patches or not isinstance(patches[0].value, dict | list):
        kind = kind_of(patches[0].value) if patches else "nothing"
        raise PolicyError(
            f"is {kind}, wanted a patch",
            place=place,
            fix="a list is a JSON patch (RFC 6902), a mapping a merge patch (RFC 7386)",
        )
    return patches[0]


def _unwrapped(patch: Tree, name: str) -> Tree:
    """A patch of the document in another one, below a key of that, as one of the document itself."""
    if isinstance(patch.value, dict):
        below = patch.value.get(name, patch)
        return below if isinstance(below.value, dict) else patch

    def inner(operation: Tree) -> Tree:
        members = dict(operation.value) if isinstance(operation.value, dict) else {}
        for key in ("path", "from"):
            pointer = members.get(key)
            if pointer is not None and isinstance(pointer.value, str):
                text = pointer.value
                members[key] = replace(
                    pointer,
                    value=text.removeprefix(f"/{name}") if text.startswith(f"/{name}/") else text,
                )
        return replace(operation, value=members) if members else operation

    return replace(patch, value=[inner(operation) for operation in patch.value])


def _with_null(tree: Tree, path: Path, place: str) -> Tree:
    """The tree with ``null`` at a path of mappings that ends at no value."""
    if not isinstance(tree.value, dict) or not path:
        return tree
    child = tree.value.get(path[0])
    if child is None:
        child = Tree({}, place) if path[1:] else Tree(None, place)
    return Tree({**tree.value, path[0]: _with_null(child, path[1:], place)}, tree.place)


def _patches(text: str, place: str, file: str | None) -> list[Tree]:
    if file is not None:
        return trees.documents(text, place)
    # A value on the command line has no line numbers.
    try:
        return [trees.from_data(trees.from_json(text, place), place)]
    except PolicyError:
        parsed = trees.documents(text, place)
        return [trees.from_data(trees.plain(tree), place) for tree in parsed]


def _assigned(tree: Tree, assignment: Assignment, home: Home, touched: dict[Path, str]) -> Tree:
    steps: Steps = (*home(str(assignment.steps[0])), *assignment.steps)
    keys: list[str] = []
    for step in steps:
        if isinstance(step, int):
            break
        keys.append(step)
    touched[tuple(keys)] = assignment.place
    return _put(tree, steps, assignment, 0)


def _put(tree: Tree | None, steps: Steps, assignment: Assignment, depth: int) -> Tree:
    """Set a value at a path; missing parents are created."""
    if depth == len(steps):
        return trees.from_data(assignment.value, assignment.place)
    step, last = steps[depth], depth + 1 == len(steps)
    if tree is None or tree.value is None:
        tree = Tree({} if isinstance(step, str) else [], assignment.place)
    content: Any
    if isinstance(step, str):
        if not isinstance(tree.value, dict):
            raise _in_the_way(tree, steps[:depth], assignment, "a mapping")
        content = dict(tree.value)
        if last and assignment.value is None:
            content.pop(step, None)
        else:
            content[step] = _put(content.get(step), steps, assignment, depth + 1)
            if not last:
                content[step] = Tree(content[step].value, _place(tree.value.get(step), assignment))
        return Tree(content, tree.place)
    if not isinstance(tree.value, list):
        raise _in_the_way(tree, steps[:depth], assignment, "a list")
    content = list(tree.value)
    content += [Tree(None, assignment.place)] * (step + 1 - len(content))
    content[step] = _put(content[step], steps, assignment, depth + 1)
    return Tree(content, tree.place)


def _place(tree: Tree | None, assignment: Assignment) -> str:
    return tree.place if tree is not None else assignment.place


def _in_the_way(tree: Tree, steps: Steps, assignment: Assignment, expected: str) -> PolicyError:
    path = ".".join(map(str, steps))
    return PolicyError(
        f"{quote(path)} is {kind_of(tree.value)} ({tree.place}), wanted {expected}",
        place=assignment.place,
    )


def quoting(place: str | None, fix: str | None) -> str | None:
    """The remedy where text is needed: a shell takes quotes away."""
    quotes = fix is not None and "in quotes" in fix and (place or "").startswith("--set ")
    return "quote the value twice: --set 'PATH=\"VALUE\"'" if quotes else fix
