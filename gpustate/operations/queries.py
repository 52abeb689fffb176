"""What pyinfra's facts run on a node, as queries that travel with all others."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpustate.core.queries import Answer, Query

#: Between standard output and the end of standard error, which is sent only where a command failed.
_ERRORS = "=stderr "
#: Bytes of standard error that are sent.
_LAST = 2000


@dataclass(frozen=True, slots=True)
class Output:
    """What a command printed and how it ended."""

    status: int
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandOutput(Query[Output | None]):
    """One command of a fact.

    ``eval`` in the subshell of the fragment saves a process for each, and a command that sh does not
    accept fails alone.

    Args:
        text: sh; it only reads.
        timeout_s: seconds; 0 leaves it to the deadline of the whole batch.
    """

    text: str
    timeout_s: int = 0

    def script(self) -> str:
        text = shlex.quote(self.text)
        run = f"timeout -k 2 {self.timeout_s} sh -c {text}" if self.timeout_s else f"eval {text}"
        return (
            f"{{ e=$({{ {run}; }} 2>&1 >&3 3>&-); s=$?; }} 3>&1\n"
            f'[ $s = 0 ] || printf \'\\n{_ERRORS}%s\' "$(printf %s "$e" | tail -c {_LAST})"\n'
            "exit $s"
        )

    def parse(self, answer: Answer) -> Output:
        out, _, errors = answer.text.partition(f"\n{_ERRORS}")
        return Output(answer.status, _lines(out), _lines(errors))

    def placeholder(self) -> None:
        """Nothing is known: which placeholder a fact gives is the operation's to try."""
        return


def _lines(text: str) -> tuple[str, ...]:
    """Lines as pyinfra reads them: of a file, so only newlines end one."""
    if not text:
        return ()
    return tuple(line.rstrip("\n") for line in text.removesuffix("\n").split("\n"))
