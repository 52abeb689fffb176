"""Programs that what a state writes refers to, and that another state of the policy may bring first."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import ORIGINALS
from gpustate.core.state import AnyState, Conflict
from gpustate.errors import ProbeError
from gpustate.formats.containerd.marks import strip


@dataclass(frozen=True, slots=True)
class MissingProgramsQuery(Query[frozenset[str]]):
    """Which of some programs are not there, or can be executed by nobody; starts no program.

    Args:
        paths: absolute.
    """

    paths: tuple[str, ...]

    def script(self) -> str:
        return f'for f in {shlex.join(self.paths)}; do [ -x "$f" ] || echo "$f"; done; :'

    def parse(self, answer: Answer) -> frozenset[str]:
        return frozenset(answer.text.splitlines())

    def placeholder(self) -> frozenset[str]:
        return frozenset()


@dataclass(frozen=True, slots=True)
class ReferringFilesQuery(Query[tuple[str, ...]]):
    """Which files that gpustate changed or made name one of some programs.

    Args:
        programs: as the files have them; a part of a path will do.
    """

    programs: tuple[str, ...]

    def script(self) -> str:
        named = " ".join(f"-e {shlex.quote(program)}" for program in self.programs)
        return f"""while IFS='|' read -r k f; do
[ ! -f "$f" ] || ! grep -qF {named} -- "$f" 2>/dev/null || printf '%s\\n' "$f"
done <<END
{ORIGINALS}
END
:"""

    def parse(self, answer: Answer) -> tuple[str, ...]:
        return tuple(sorted(answer.text.splitlines()))

    def placeholder(self) -> tuple[str, ...]:
        return ()


#: Files of containerd, docker and CRI-O that may name a default runtime, as shell patterns.
RUNTIME_FILES = (
    *("/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml", "/etc/docker/daemon.json"),
    *("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*.conf"),
)
_KEYS = ("default_runtime_name", "default_runtime", "default-runtime")


def foreign_default(path: str, text: str, programs: Collection[str]) -> str:
    """``KEY = NAME`` of a default runtime that runs one of some programs; empty if none is, or gpustate wrote it.

    Args:
        path: the file; one that is not readable sets nothing.
        text: of it.
        programs: parts of their paths.
    """
    try:
        if path.endswith(".json"):
            return _default(json.loads(text), programs)
        return _default(tomllib.loads(strip(text, path, pattern="", name="").text or ""), programs)
    except (ValueError, RecursionError, ProbeError):
        return ""


def _default(table: Any, programs: Collection[str]) -> str:
    if not isinstance(table, dict):
        return ""
    runtimes_value = table.get("runtimes")
    runtimes = runtimes_value if isinstance(runtimes_value, dict) else {}
    for key in _KEYS:
        name = table.get(key)
        runtime = json.dumps(runtimes.get(name), default=str) if isinstance(name, str) else ""
        if any(program in runtime for program in programs):
            return f"{key} = {name}"
    return next(filter(None, (_default(value, programs) for value in table.values())), "")


def still_referenced(
    referring: Mapping[str, str], program: str, policy: Mapping[str, AnyState]
) -> Iterator[Conflict]:
    """Why a program must not be removed yet: files that gpustate wrote still name it.

    Args:
        referring: path of such a file, to the state that wrote it.
        program: the state that is removed.
        policy: the states that apply to the node.
    """
    for path, state in referring.items():
        if state not in policy or not policy[state].absent:
            yield Conflict(
                f"{path} still names programs of {program}: remove {state} together with it, or before it",
                with_changes=True,
            )


def missing_program(
    path: str,
    provider: str,
    missing: Collection[str],
    policy: Mapping[str, AnyState],
    *,
    with_changes: bool,
) -> Iterator[Conflict]:
    """Why a state must not refer to a program: it is missing, and no state of the policy installs it.

    Args:
        path: the program.
        provider: the state that installs it; empty where none does.
        missing: paths that are not on the node.
        policy: the states that apply to the node.
        with_changes: nothing on the node refers to it yet.
    """
    if path in missing and (provider not in policy or policy[provider].absent):
        fix = f"add {provider} to the policy" if provider else "install it, or name the right one"
        yield Conflict(f"{path} does not exist: {fix}", with_changes=with_changes)


__all__ = [
    "RUNTIME_FILES",
    "MissingProgramsQuery",
    "ReferringFilesQuery",
    "foreign_default",
    "missing_program",
    "still_referenced",
]
