"""Many queries in one exec: build the script and parse its answer.

The script is sent on standard input, compressed; the command line has its length, so that more data
can follow. The answer is framed by a nonce that is new for every exec: output of the login shell around
it is ignored, and no file content can be mistaken for a frame. Files that queries need
(``ShippedFile``) are sent within the same exec, only if the node lacks them.

Pure; the caller supplies the nonce.
"""

from __future__ import annotations

import gzip
import re
import shlex
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpustate import shell
from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer, Query, SharedQuery, Shell, ShippedFile
from gpustate.core.shared_probes import VARIABLES, early, prelude, refers
from gpustate.errors import ProbeError
from gpustate.ops.upload import ONLY_BUNDLE
from gpustate.probes import module_files

#: Minimum number of fragments that makes two lanes worth their start-up cost.
_WORTH_LANES = 8
#: After the nonce: the number of a part at its start; ``=``, number and exit status at its end.
_TAIL_BYTES = 4096
_FRAME = re.compile(rb"(\d{1,6})|= (\d{1,6}) (\d{1,3})")


@dataclass(frozen=True, slots=True)
class Batch:
    """The queries of one exec.

    Args:
        script: sh, uncompressed.
        nonce: frames the answer.
        queries: the queries that are sent, in the order of their numbers.
        numbers: for each requested query, the number of the one that is sent for it.
        shipped: files that a query needs, by digest.
    """

    script: str
    nonce: str
    queries: tuple[Query[Any], ...]
    numbers: tuple[int, ...]
    shipped: dict[str, ShippedFile]

    @property
    def packed(self) -> bytes:
        """The script as it is sent, compressed."""
        return gzip.compress(self.script.encode(), 6, mtime=0)


def command_line(length: int, ready: str = "", limit_s: float = 0) -> str:
    """Return the command that reads ``length`` compressed bytes from its input and runs them.

    Args:
        length: in bytes.
        ready: printed on standard error before anything is read.
        limit_s: whatever still runs then is ended, also where nobody waits for it any more; 0: no limit. The script
            hears of it by SIGURG, which ends no program, and has ten seconds.
    """
    # Single quotes all around, no variables outside: csh and fish take it as sh does. What arrived
    # in part is not run at all: the front half of a line may be a command of another kind.
    first = f"echo {ready} >&2; " if ready else ""
    limit = f"timeout -s URG -k 10 {limit_s:g} " if limit_s else ""
    return f"{limit}sh -c '{first}x=$(head -c {length} | gzip -dc) && eval \"$x\"'"


def prologue(node: InventoryNode) -> str:
    """Environment of everything that runs on a node."""
    folder = node.state_folder
    above = [folder[:at] for at, letter in enumerate(folder) if letter == "/" and at]
    filled = shell.fill(
        shell.load("prologue", "gpustate.remote"),
        SHARED=" ".join((*VARIABLES, *module_files.SHARED.variables)),
        PROC=shlex.quote(node.proc_root),
        SYS=shlex.quote(node.sys_root),
        FOLDER=shlex.quote(folder),
        FOLDERS=shlex.join(["/", *above, folder, f"{folder}/."]),
        BACK="1" if node.goes_back else "",
    )
    return filled + ONLY_BUNDLE


def make_batch(
    node: InventoryNode, queries: Sequence[Query[Any]], nonce: str, *, before: str = ""
) -> Batch:
    """Combine queries into one script; ``before`` is sh that runs first, its output discarded."""
    shipped: dict[str, ShippedFile] = {}
    queries, numbers = _joined(queries)
    for query in queries:
        for file in getattr(query, "ships", ()):
            shipped[file.digest] = file
    parts = [prologue(node)]
    if before:
        parts.append(f"{{ {before}\n}} >/dev/null </dev/null\n")
    parts.append(f"printf '\\n%s begin\\n' {nonce}\n")
    for digest, file in shipped.items():
        parts.append(
            shell.load(
                "shipped",
                "gpustate.remote",
                NONCE=nonce,
                DIGEST=digest,
                NAME=file.name,
                LENGTH=str(len(file.packed)),
            )
        )
    parts.append(f"printf '%s answer\\n' {nonce}\n{{\n")
    scripts = [query.script() for query in queries]
    waiting = [
        number for number, query in enumerate(queries) if isinstance(query, Shell) and query.waits
    ]
    parallel = [number for number in range(len(queries)) if number not in waiting]
    parts += [_part(number, scripts[number], nonce) for number in waiting]
    parts.append(_side_by_side({number: scripts[number] for number in parallel}, nonce))
    parts.append(f"printf '\\n%s end\\n' {nonce}\n}} | gzip -1 -c &\n")
    parts.append(shell.fill(shell.load("hung", "gpustate.remote"), NONCE=nonce))
    return Batch("".join(parts), nonce, tuple(queries), numbers, shipped)


def _part(number: int, script: str, nonce: str) -> str:
    return (
        f"printf '\\n%s %d\\n' {nonce} {number}\n(\n{script}\n) </dev/null\n"
        f"printf '\\n%s = %d %d\\n' {nonce} {number} $?\n"
    )


def _side_by_side(scripts: dict[int, str], nonce: str) -> str:
    """Run independent fragments in two parallel lanes, while the shared prelude of the others runs.

    A lane writes into an unlinked file, so that nothing is left behind. An image is probed in one lane,
    since its root must not be written to.
    """
    text = "\n".join(scripts.values())
    before = prelude(text)
    free = [n for n, script in scripts.items() if not (before and refers(script))]
    if len(free) < _WORTH_LANES:
        free = []
    lanes = ["".join(_part(n, scripts[n], nonce) for n in free[lane::2]) for lane in (0, 1)]
    sequential = before + "".join(_part(n, scripts[n], nonce) for n in scripts if n not in free)
    if not free:
        return early(text, module_files.SHARED) + sequential
    return early(text, module_files.SHARED) + shell.fill(
        shell.load("lanes", "gpustate.remote"),
        LANE_A=lanes[0],
        LANE_B=lanes[1],
        NONCE=nonce,
        REST=sequential,
    )


def _joined(queries: Sequence[Query[Any]]) -> tuple[Sequence[Query[Any]], tuple[int, ...]]:
    """Merge shared queries of one kind into one, at the place of the last of them."""
    kinds: dict[type, list[int]] = {}
    for place, query in enumerate(queries):
        if isinstance(query, SharedQuery):
            kinds.setdefault(type(query), []).append(place)
    sent: dict[int, Query[Any]] = {}
    stands = {place: places[-1] for places in kinds.values() for place in places}
    for place, query in enumerate(queries):
        if stands.get(place, place) != place:
            continue
        earlier = [queries[place_of_kind] for place_of_kind in kinds.get(type(query), ())[:-1]]
        sent[place] = query.joined(earlier) if isinstance(query, SharedQuery) and earlier else query
    order = {place: number for number, place in enumerate(sent)}
    return tuple(sent.values()), tuple(order[stands.get(n, n)] for n in range(len(queries)))


class AnswerReader:
    """Parse an answer incrementally.

    After each ``feed``: ``needed`` holds the digests of files to send, and ``done`` is true once the
    answer is complete.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.needed: list[str] = []
        self.began = False
        self.done = False
        self._lacking = set(batch.shipped)
        self._head = b""
        self._unpack: Any = None
        self._body = bytearray()
        self.limit = 64 * 1024 * 1024
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Add output; raise ``ProbeError`` when it is not an answer."""
        if self._unpack is not None:
            self._inflate(data)
            return
        self._head += data
        nonce = self.batch.nonce.encode()
        while self._unpack is None:
            mark = self._head.find(nonce + b" ")
            end = self._head.find(b"\n", mark) if mark >= 0 else -1
            if end < 0:
                if len(self._head) > 1_000_000:
                    raise ProbeError(
                        "the login shell prints more than 1 MB before the probe starts",
                        fix="check the user's shell start-up files",
                    )
                return
            words = self._head[mark:end].decode("ascii", "replace").split()
            self._head = self._head[end + 1 :]
            if words[1:] == ["begin"]:
                self.began = True
            elif len(words) == 3 and words[1] == "need" and words[2] in self._lacking:
                # The script requests each file once; a second request is not from it.
                self._lacking.remove(words[2])
                self.needed.append(words[2])
            elif words[1:] == ["answer"]:
                self._unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
                compressed, self._head = self._head, b""
                self._inflate(compressed)
            else:
                raise ProbeError(f"invalid answer, unknown frame: {' '.join(words[1:])[:80]!r}")

    def _inflate(self, data: bytes) -> None:
        if self.done:
            self._tail = (self._tail + data)[:_TAIL_BYTES]
            return
        try:
            self._body += self._unpack.decompress(data, self.limit + 1 - len(self._body))
        except zlib.error as error:
            raise ProbeError(
                f"invalid answer ({error})", fix="check that gzip is installed on the node"
            ) from error
        if len(self._body) > self.limit:
            raise ProbeError("the answer is larger than 64 MiB")
        self.done = self._unpack.eof
        self._tail = self._unpack.unused_data[:_TAIL_BYTES]

    @property
    def cut(self) -> bool:
        """Whether the answer ends before its end: the node ended it, and says why after it."""
        return self.done and not self._body.rstrip().endswith(f"{self.batch.nonce} end".encode())

    def hung(self) -> str:
        """The programs that the node ended because they ran for too long; empty if it ended none."""
        _, marked, names = self._tail.partition(f"{self.batch.nonce} hung ".encode())
        return names.split(b"\n")[0].decode("ascii", "replace") if marked else ""

    def answers(self) -> tuple[Answer, ...]:
        """Return an answer for each requested query; raise ``ProbeError`` when one is missing."""
        answers = split_answers(bytes(self._body), self.batch.nonce, len(self.batch.queries))
        return tuple(answers[number] for number in self.batch.numbers)


def split_answers(body: bytes, nonce: str, count: int) -> tuple[Answer, ...]:
    """Split a decompressed answer into its parts, in one pass; incomplete parts are left out."""
    mark = b"\n" + nonce.encode() + b" "
    answers_by_number: dict[int, Answer] = {}
    number, start = b"", 0
    at = body.find(mark)
    while at >= 0 and (end := body.find(b"\n", at + len(mark))) >= 0:
        line = body[at + len(mark) : end]
        frame = _FRAME.fullmatch(line)
        if frame and frame[1]:
            number, start = frame[1], end + 1
        elif frame and frame[2] == number and at >= start:
            answers_by_number[int(number)] = Answer(int(frame[3]), body[start:at])
            number = b""
        at = body.find(mark, end)
    missing = [number for number in range(count) if number not in answers_by_number]
    if missing:
        raise ProbeError(
            f"incomplete answer: {len(missing)} of {count} queries have no result",
            fix="check free memory, and space in /tmp and /run (df /tmp /run), then try again",
        )
    return tuple(answers_by_number[number] for number in range(count))
