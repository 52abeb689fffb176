"""What package managers get from repositories that are not on a node yet, read in temporary folders of theirs.

Apart from these folders, which are removed, nothing on the node is changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import KEPT
from gpustate.errors import ProbeError
from gpustate.formats import package_errors, rpm
from gpustate.formats.words import shorten

T = TypeVar("T")

#: Begins the reason of a node that cannot be asked.
NO_ROOM = "no room"
_MARK = re.compile(r"\b[EW]: ")
#: Of what could not be fetched, apt also says that it is not signed.
_UNANSWERED = re.compile(f"{package_errors.UNREACHABLE}|{package_errors.LOGIN_REFUSED}")
_FOLLOWS = re.compile(r"^Failed to fetch |Some index files failed")
_HEAD = re.compile(r"(the repository (key )?|a source of the node )cannot be \w+: ")
_OTHER_SOURCE = "a source of the node "
#: Address, entries and error of a source of the node that could not be read.
_SOURCE = re.compile(r"^=source ([^|\n]+)\|([^|\n]+)\|(.*)\n?", re.MULTILINE)
_FAILED = "=preview failed "


def script(preview: str, pin: str = "") -> str:
    """Sh that adds repositories below ``$T`` and makes the package manager read them.

    Args:
        preview: sh that adds them.
        pin: a file in /etc/apt/preferences.d that is left out.
    """
    begin = shell.load("repository_preview", "gpustate.probes", PIN=pin)
    return f"{rpm.FAMILY}{begin}{preview}\n{shell.load('repository_read', 'gpustate.probes')}"


def failure(output: str) -> str:
    """Why repositories cannot be read, in one line; empty if they can be."""
    _, failed, reason = output.partition(_FAILED)
    match = _HEAD.match(reason)
    head = match[0] if match else ""
    words = (_MARK.sub("", line).strip().rstrip(".") for line in reason[len(head) :].splitlines())
    lines = [line for line in dict.fromkeys(words) if line]
    # apt goes on with what follows from the lines before.
    causes = [line for line in lines if not _FOLLOWS.search(line)] or lines[:1]
    unanswered = [line for line in lines if _UNANSWERED.search(line)]
    return head + "; ".join(unanswered or causes) if failed else ""


def next_step(output: str) -> str | None:
    """What helps against a failure of the node's other sources; ``None`` for that of the repository itself."""
    if not failure(output).startswith(_OTHER_SOURCE):
        return None
    return "correct or remove its entry (apt-get update on the node shows it), then plan again"


def unread(output: str) -> dict[str, str]:
    """Addresses of the node's other sources that could not be read, each with a note."""
    if failure(output):
        return {}
    return {source[1]: _note(*source.groups()) for source in _SOURCE.finditer(output)}


def _note(address: str, entries: str, reason: str) -> str:
    places = ", ".join(entries.split())
    why = shorten(" ".join(reason.split()), 200).rstrip(".")
    is_unreachable = re.search(package_errors.UNREACHABLE, reason)
    verb = "did not answer" if is_unreachable else "cannot be read"
    move = f"; {package_errors.CLOCK}" if re.search(package_errors.TOO_EARLY, reason) else ""
    return f"{places}: {address} {verb} ({why}); planned without its packages{move}"


def leave_out(addresses: Iterable[str]) -> str:
    """Sh that has following queries leave out sources of the node, each of which they would wait for."""
    return f"UNREAD={shlex.quote(' '.join(addresses))}" if addresses else ""


def without_sources(answer: Answer) -> Answer:
    """An answer without what it says of the node's other sources."""
    return replace(answer, out=_SOURCE.sub("", answer.text).encode())


@dataclass(frozen=True, slots=True)
class Previewed(Query[T]):
    """A query about packages, with those of repositories that are not there yet.

    Args:
        query: its script has what it keeps from one run to the next by ``kept``.
        preview: sh that adds the repositories below ``$T``.
        pin: a file in /etc/apt/preferences.d that is left out.
    """

    query: Query[T]
    preview: str
    pin: str = ""

    def script(self) -> str:
        # What is kept depends on the node's own lists.
        fragment = self.query.script().replace(KEPT, 'kept() { shift 2; "$@"; }\n')
        return script(self.preview, self.pin) + fragment

    def parse(self, answer: Answer) -> T:
        if reason := failure(answer.text):
            raise ProbeError(reason, fix=next_step(answer.text))
        return self.query.parse(without_sources(answer))

    def placeholder(self) -> T:
        return self.query.placeholder()


def previewed(query: Query[T], preview: str, pin: str = "") -> Query[T]:
    """The query with a preview, itself if that is empty."""
    return Previewed(query, preview, pin) if preview else query


@dataclass(frozen=True, slots=True)
class RepositoryQuery(Query[tuple[str, str]]):
    """Why a repository cannot be read, empty if it can be, and the key that it was read with.

    Args:
        preview: sh that adds it below ``$T``.
    """

    preview: str

    def script(self) -> str:
        return script(f"{self.preview}\nONLY_ADDED=1")

    def parse(self, answer: Answer) -> tuple[str, str]:
        return failure(answer.text), answer.text.partition(_FAILED)[0]

    def placeholder(self) -> tuple[str, str]:
        return "", ""
