"""Programs that what a state writes refers to, and that another state of the policy may bring first."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import ORIGINALS


def _not_of_its_own(name: str) -> str:
    if name in ("runc", "crun", "kata", "youki", "runsc"):
        raise ValueError(
            f"{name} is the name of another runtime; name NVIDIA's otherwise, such as nvidia"
        )
    return name


#: What a container runtime calls NVIDIA's runtime.
HandlerName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"), AfterValidator(_not_of_its_own)
]


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


def relied_on(referring: Mapping[str, str], program: str, going: Collection[str]) -> str | None:
    """Why a program must not go yet, and the next move; ``None`` where what names it goes before it.

    Args:
        referring: path of a file that names it, to the state that wrote the file.
        program: what goes.
        going: names of the states that are taken away here.
    """
    for path, state in referring.items():
        if state not in going:
            return (
                f"{path} still names programs of {program}: take {state} away with it "
                "(both in one policy), or before it"
            )
    return None


def lacking(
    uses: Mapping[str, str], missing: Collection[str], coming: Collection[str]
) -> str | None:
    """Why a state must not refer to its programs, and the next move; ``None`` where they are there or will be.

    Args:
        uses: path to the name of the state that brings it; empty where none does.
        missing: paths that are not there.
        coming: names of the states that are applied here.
    """
    for path, state in uses.items():
        if path in missing and state not in coming:
            move = f"put {state} into the policy" if state else "install it, or name the right one"
            return f"{path} is not there: {move}"
    return None


__all__ = ["HandlerName", "MissingProgramsQuery", "ReferringFilesQuery", "lacking", "relied_on"]
