"""A link that breaks: what is done again, what is followed, and when it is given up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpustate import ops
from gpustate.engine import journal
from gpustate.engine.reconnect import Link
from gpustate.errors import ConnectionFailed, StepFailed
from gpustate.ops.program import Entry
from gpustate.remote.nodeprogram import LockInfo
from gpustate.remote.session import Silence, longest_silence_s

PROGRAM = ops.compile_program((ops.Block("s", (), (ops.Run("true", "do it"),)),))
ENTRIES = [Entry(e=e, i=1, rc=0, bytes=10) for e in ("start", "intent", "result", "end")]
LOCK = LockInfo(run="r", holder="me@here", pid=1, reason="apply", since=0, expires=600)


class Session:
    """A node whose connection breaks as told.

    Args:
        breaks: for each attempt, how many entries come before it breaks; ``None``: it holds.
        has_it: the program reached the node.
    """

    def __init__(self, *breaks: int | None, has_it: bool = True) -> None:
        self.breaks = list(breaks)
        self.has_it = has_it
        self.connected = True
        self.starts = 0
        self.offsets: list[int] = []

    def connect(self) -> None:
        self.connected = True

    def close(self) -> None:
        self.connected = False

    def still_connected(self) -> bool:
        return self.connected

    def entries(self, skip: int) -> Iterator[Entry]:
        count = self.breaks.pop(0) if self.breaks else 0
        yield from ENTRIES[skip:][:count]
        if count is not None:
            self.connected = False
            raise ConnectionFailed("it broke")

    def run_program(self, *_: object, **__: object) -> Iterator[Entry]:
        self.starts += 1
        self.has_it = self.has_it or self.starts > 1
        return self.entries(0)

    def follow(self, run: str, offset: int, **_: object) -> Iterator[Entry]:
        self.offsets.append(offset)
        if not self.has_it:
            raise StepFailed("no-run")
        yield from self.entries(offset // 10)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    # Only that module's time: threads of other tests may sleep, too.
    clock = SimpleNamespace(sleep=waited.append, monotonic=lambda: sum(waited))
    monkeypatch.setattr("gpustate.engine.reconnect.time", clock)
    return waited


def made(session: Session) -> Link:
    return Link(session, lambda kind, text="", state="": None, lambda: False)  # type: ignore[arg-type]


def run(session: Session) -> journal.Record:
    record = journal.Record()
    made(session).run(
        "r-1", PROGRAM, record, lock=LOCK, keep_lock=False, take_over=None, after="none"
    )
    return record


def test_a_program_is_followed_from_the_last_entry_that_came() -> None:
    session = Session(2, 1, None)
    record = run(session)
    assert record.ended
    assert (session.starts, session.offsets) == (1, [20, 30])


def test_a_program_that_never_arrived_is_started_again() -> None:
    session = Session(0, None, has_it=False)
    assert run(session).ended
    assert (session.starts, session.offsets) == (2, [0])


def test_it_is_given_up_after_some_attempts_without_news(no_waiting: list[float]) -> None:
    session = Session(1)
    with pytest.raises(
        ConnectionFailed, match=r"^it broke; steps that the node has received run"
    ) as caught:
        run(session)
    assert "if it is up, but nothing validates it or returns it to service" in str(caught.value)
    assert "once it answers, run the same command again" in str(caught.value)
    assert no_waiting == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_news_begin_the_attempts_anew() -> None:
    session = Session(0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, None)
    assert run(session).ended


def test_a_look_is_made_again_only_when_the_connection_broke() -> None:
    session, looks = Session(), []

    def look() -> str:
        looks.append(1)
        if len(looks) < 3:
            session.connected = False
            raise ConnectionFailed("it broke")
        return "seen"

    assert made(session).repeat(look) == "seen"

    def slow() -> str:
        looks.append(1)
        raise ConnectionFailed("no answer in time")

    session.connected, looks[:] = True, []
    with pytest.raises(ConnectionFailed, match="in time"):
        made(session).repeat(slow)
    assert len(looks) == 1


def test_a_node_that_stalls_each_time_is_given_up_after_two_minutes(
    no_waiting: list[float],
) -> None:
    session, looks = Session(), []

    def stalls() -> str:
        looks.append(1)
        no_waiting.append(60.0)  # until the keepalive gives the connection up
        session.connected = False
        raise ConnectionFailed("no answer to keepalives")

    with pytest.raises(ConnectionFailed, match="keepalives"):
        made(session).repeat(stalls)
    assert len(looks) == 3


def test_a_program_that_is_silent_for_longer_than_its_steps_is_given_up_at_once() -> None:
    session = Session(1)
    entries = session.entries

    def silent(skip: int) -> Iterator[Entry]:
        try:
            yield from entries(skip)
        except ConnectionFailed:
            session.connected = True
            raise Silence("timed out: the program reported nothing for 960 s") from None

    session.entries = silent  # type: ignore[method-assign]
    with pytest.raises(
        ConnectionFailed, match=r"nothing for 960 s; steps that the node has received"
    ):
        run(session)
    assert (session.starts, session.offsets) == (1, [])


def test_the_longest_step_of_a_program_may_be_silent() -> None:
    def limit(*timeouts: int) -> float:
        steps = tuple(ops.Run("true", "do it", timeout) for timeout in timeouts)
        return longest_silence_s(ops.compile_program((ops.Block("s", (), steps),)))

    assert (limit(20), limit(20, 3600, 30)) == (960, 3660)
    assert longest_silence_s(ops.Program("", {})) == 3660, "that of an earlier run is not known"
