"""The commands of pyinfra's facts as queries."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpustate.core.queries import Answer, Query

#: Separates standard output from the end of standard error, which is sent only if a command failed.
_ERRORS = "=stderr "
#: Bytes of standard error to send.
_LAST = 2000


@dataclass(frozen=True, slots=True)
class Output:
    """The output and exit status of a command.

    Args:
        status: exit status.
        text: standard output.
        errors: the end of standard error, of a command that failed.
    """

    status: int
    text: str = ""
    errors: str = ""

    @property
    def stdout(self) -> tuple[str, ...]:
        """The lines of standard output."""
        return _lines(self.text)

    @property
    def stderr(self) -> tuple[str, ...]:
        """The lines of standard error."""
        return _lines(self.errors)


@dataclass(frozen=True, slots=True)
class CommandOutput(Query[Output | None]):
    """A command of a fact.

    ``eval`` in the subshell of the fragment saves a process per command, and a syntax error fails only
    its own command.

    Args:
        text: sh that only reads.
        timeout_s: seconds; 0: the timeout of the whole batch.
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
        if answer.status == 0:
            return Output(0, answer.text)
        out, _, errors = answer.text.partition(f"\n{_ERRORS}")
        return Output(answer.status, out, errors)

    def placeholder(self) -> None:
        """Return nothing; the caller chooses a placeholder for the fact."""
        return


def _lines(text: str) -> tuple[str, ...]:
    """Split into lines as pyinfra does, at newlines only."""
    if not text:
        return ()
    return tuple(text.removesuffix("\n").split("\n"))
