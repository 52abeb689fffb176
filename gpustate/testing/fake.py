"""An in-memory node: it answers queries from a small model, and steps change the model.

It models files, packages, units and modules for the typed queries and steps. Fragments of sh (``node.shell``,
``ops.Run``) belong to a state: its author defines their answers and effects.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gpustate import ops
from gpustate.core import file_queries, queries
from gpustate.core.change import Plan
from gpustate.core.facts import FactsQuery, NodeFacts
from gpustate.core.node import Node
from gpustate.core.state import AnyState
from gpustate.core.step import Step
from gpustate.formats import dpkg, systemd
from gpustate.operations.queries import CommandOutput, Output
from gpustate.ops.library import original_path
from gpustate.ops.package_steps import Hold, Install, Remove
from gpustate.probes.excluded_gpus import ExcludedGpusQuery
from gpustate.probes.package_files import PackageFiles
from gpustate.probes.repository_preview import Previewed
from gpustate.probes.required_programs import MissingProgramsQuery, ReferringFilesQuery

T = TypeVar("T")
ShellAnswer = tuple[int, str]


class FakeNode(Node):
    """A node made of dictionaries.

    Args:
        name: of the node.
        vars: inventory variables.
        facts: of the node.
        files: text by path.
        packages: installed version by name.
        candidates: ``(version, origin)`` pairs by name, best first.
        units: names of units that exist, with their active state (``active``, ``inactive``).
        modules: loaded kernel modules.
        shell: part of a fragment's text, or of a command that a fact of pyinfra runs, to ``(status, output)``, or to a function of the node
            that returns it. The first part found in a fragment answers it.
        runs: part of a ``Run`` step's label to a function of the node that does its work.
        answers: answers to other kinds of queries, by class name or by the query itself.
    """

    def __init__(
        self,
        name: str = "node-1",
        *,
        vars: Mapping[str, object] | None = None,
        facts: NodeFacts | None = None,
        files: Mapping[str, str] | None = None,
        packages: Mapping[str, str] | None = None,
        candidates: Mapping[str, Sequence[tuple[str, str]]] | None = None,
        units: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
        shell: Mapping[str, ShellAnswer | Callable[[FakeNode], ShellAnswer]] | None = None,
        runs: Mapping[str, Callable[[FakeNode], None]] | None = None,
        answers: Mapping[Any, Any] | None = None,
    ) -> None:
        self.name = name
        self.vars = dict(vars or {})
        self.node_facts = facts if facts is not None else FactsQuery().placeholder()
        self.files = dict(files or {})
        self.modes: dict[str, int] = {}  # of files that are not 0644
        self.originals: dict[str, str | None] = {}
        self.installed = dict(packages or {})
        self.held: set[str] = set()
        self.offered = {
            key: tuple(dpkg.Candidate(*pair) for pair in value)
            for key, value in (candidates or {}).items()
        }
        self.unit_states = dict(units or {})
        self.enabled: set[str] = set()
        self.loaded = {module.replace("-", "_") for module in modules}
        self.shells = dict(shell or {})
        self.runs = dict(runs or {})
        self.answers = dict(answers or {})
        self.queries: list[queries.Query[Any]] = []
        self.done: list[Step] = []
        self.reboots = 0

    def query(self, query: queries.Query[T]) -> T:
        """Answer from the model; other kinds of queries are answered from ``answers`` or are an error."""
        self.queries.append(query)
        answer: T = self._answer(query)
        return answer

    def _answer(self, query: queries.Query[Any]) -> Any:
        for key in (query, type(query).__name__):
            if key in self.answers:
                value = self.answers[key]
                return value(self) if callable(value) else value
        match query:
            case FactsQuery():
                return self.node_facts
            case file_queries.FileText(path=path):
                return self.files.get(path)
            case file_queries.FileTexts(pattern=pattern):
                globs = pattern.split()
                return {
                    path: text
                    for path, text in sorted(self.files.items())
                    if any(fnmatch.fnmatchcase(path, glob) for glob in globs)
                }
            case file_queries.FileStats(patterns=patterns):
                return {
                    path: file_queries.FileStat(
                        "file", self.modes.get(path, 0o644), 0, 0, len(text.encode())
                    )
                    for path, text in sorted({**self.files, **self._original_paths()}.items())
                    if any(fnmatch.fnmatchcase(path, glob) for glob in patterns)
                }
            case queries.Packages(patterns=patterns):
                return {
                    name: dpkg.Package(name, version, "amd64", "hi" if name in self.held else "ii")
                    for name, version in sorted(self.installed.items())
                    if any(fnmatch.fnmatchcase(name, glob) for glob in patterns)
                }
            case queries.Candidates(names=names):
                return {name: self.offered[name] for name in names if name in self.offered}
            case queries.Units(names=names):
                return {name: self._unit(name) for name in names}
            case (
                ExcludedGpusQuery()
                | MissingProgramsQuery()
                | ReferringFilesQuery()
                | PackageFiles()
            ):
                # No GPU is excluded, no program missing, no file damaged or naming a program of another state.
                return query.placeholder()
            case Previewed(query=inner):
                return self._answer(inner)
            case queries.LoadedModules():
                return frozenset(self.loaded)
            case queries.Shell(text=text):
                for part, answer in self.shells.items():
                    if part in text:
                        status, out = answer(self) if callable(answer) else answer
                        return queries.CommandResult(status, out)
                raise AssertionError(f"FakeNode has no answer to the fragment: {text}")
            case CommandOutput(text=text):
                for part, answer in self.shells.items():
                    if part in text:
                        status, out = answer(self) if callable(answer) else answer
                        return Output(status, out)
                raise AssertionError(f"FakeNode has no answer to the command of a fact: {text}")
            case _:
                raise AssertionError(f"FakeNode has no answer to {query!r}: pass it in answers=")

    def _original_paths(self) -> dict[str, str]:
        """The paths of files whose originals are kept, where a node has them."""
        return {f"{original_path(path)}.path": path for path in self.originals}

    def _unit(self, name: str) -> systemd.Unit:
        exists = name in self.unit_states
        return systemd.Unit(
            name=name,
            load_state="loaded" if exists else "not-found",
            active_state=self.unit_states.get(name, "inactive"),
            unit_file_state="enabled" if name in self.enabled else "disabled" if exists else "",
        )

    def carry_out(self, step: Step) -> None:
        """Apply one step to the model; in an image, only the part that can be baked."""
        baked = step.in_image if self.node_facts.image else step
        if baked is None:
            return
        step = baked
        self.done.append(step)
        match step:
            case ops.PutText(path=path, text=text, mode=mode):
                self.originals.setdefault(path, self.files.get(path))
                if mode is not None:
                    self.modes[path] = mode
                self.files[path] = text
                if path.startswith(("/etc/systemd/system/", "/usr/lib/systemd/system/")):
                    self.unit_states.setdefault(path.rsplit("/", 1)[1], "inactive")
            case ops.RemoveFile(path=path):
                self.originals.setdefault(path, self.files.get(path))
                if isinstance(step, ops.RemoveOwn):
                    del self.originals[path]
                self.files.pop(path, None)
                if path.startswith("/etc/systemd/system/"):
                    self.unit_states.pop(path.rsplit("/", 1)[1], None)
            case ops.KeepOriginal(path=path):
                self.originals.setdefault(path, self.files.get(path))
            case ops.RestoreOriginal(path=path, own=removes_own):
                if removes_own and path not in self.originals:
                    self.files.pop(path, None)
                if path in self.originals:
                    original = self.originals.pop(path)
                    if original is None:
                        self.files.pop(path, None)
                    else:
                        self.files[path] = original
            case ops.ForgetOriginal(path=path):
                self.originals.pop(path, None)
            case Install(packages=packages, hold=hold, remove=remove):
                for name in remove:
                    self.installed.pop(name, None)
                for name, version in packages:
                    offered = self.offered.get(name, ())
                    self.installed[name] = version or (offered[0].version if offered else "1.0")
                    if hold:
                        self.held.add(name)
            case Remove(packages=packages):
                for name in packages:
                    self.installed.pop(name, None)
                    self.held.discard(name)
            case Hold(packages=packages, hold=hold):
                (self.held.update if hold else self.held.difference_update)(packages)
            case ops.LoadModules(modules=modules):
                self.loaded.update(module.replace("-", "_") for module in modules)
            case ops.UnloadModules(modules=modules):
                self.loaded.difference_update(module.replace("-", "_") for module in modules)
            case ops.EnableUnit(unit=unit, now=starts):
                self.enabled.add(unit)
                if starts:
                    self.unit_states[unit] = "active"
            case ops.DisableUnit(unit=unit):
                self.enabled.discard(unit)
                if unit in self.unit_states:
                    self.unit_states[unit] = "inactive"
            case ops.RestartUnit(unit=unit) | ops.StartUnit(unit=unit):
                self.unit_states[unit] = "active"
            case ops.Reboot():
                self.reboots += 1
            case ops.Run(what=action):
                for part, act in self.runs.items():
                    if part in action:
                        act(self)
                        return
                raise AssertionError(
                    f"FakeNode has no effect for this Run: {action}; pass it in runs="
                )
            case _:
                pass


def converge(state: AnyState, node: FakeNode, *, rounds: int = 1) -> Iterator[Plan]:
    """Probe, plan and carry out like the engine; yield each plan, the last one after the last round."""
    for _ in range(rounds):
        observed = state.probe(node)
        plan = state.plan(observed)
        yield plan
        for step in state.apply(observed, plan):
            node.carry_out(step)
    yield state.plan(state.probe(node))
