"""Noticing that the other side of a connection is no longer there.

TCP alone does not tell: a node that lost its power, or a firewall that forgot the connection, leaves
it open for hours. So the node's sshd is asked for a sign of life whenever nothing came for a while,
and a connection on which nothing comes after several such questions is closed, which wakes whoever
waits for it. Names and meaning are OpenSSH's: ``ServerAliveInterval`` and ``ServerAliveCountMax``.

One thread watches over all connections. It never sends: a connection that takes no more bytes would
hold it up, and with it the watch over all others. Each connection's own thread asks.

Sources:
    ssh_config(5); RFC 4254 section 4 (global requests: an unknown one is answered with a refusal).
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST


class HeardSocket:
    """A socket that remembers when something came last.

    Args:
        sock: a socket, or whatever paramiko takes for one.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.heard_at = time.monotonic()

    def recv(self, size: int) -> bytes:
        data: bytes = self._sock.recv(size)
        self.heard_at = time.monotonic()
        return data

    def close(self) -> None:
        """Close it, whatever it goes through: a channel of a jump host that has hung up says so by an error."""
        with suppress(EOFError, OSError, paramiko.SSHException):
            self._sock.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@dataclass(slots=True, eq=False)
class Watch:
    """One connection under watch; ``lost`` says why it was closed, if it was."""

    transport: paramiko.Transport
    sock: HeardSocket
    patience_s: float
    lost: str = ""

    def look(self, now: float) -> float | None:
        """Close the connection if nothing came for too long.

        Returns:
            When to look again; ``None`` when there is nothing left to watch.
        """
        if not self.transport.is_active():
            return None
        due = self.sock.heard_at + self.patience_s
        if now < due:
            return due
        self.lost = f"no sign of life for {self.patience_s:g} s"
        self.transport.close()
        return None


class _Watcher:
    """The thread that looks at all of them; there while there is one to look at."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._running = False

    def add(self, watch: Watch) -> None:
        with self._changed:
            self._watches.add(watch)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="alive", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            next_s = 3600.0
            with self._changed:
                watches = list(self._watches)
            over: set[Watch] = set()
            for watch in watches:
                due = watch.look(now)
                if due is None:
                    over.add(watch)
                else:
                    next_s = min(next_s, due - now)
            with self._changed:
                self._watches -= over
                if not self._watches:
                    self._running = False
                    return
                # A connection that was closed is let go of soon, not only when it would be due.
                self._changed.wait(min(next_s, 5.0))


_WATCHER = _Watcher()


def watch(
    transport: paramiko.Transport, sock: HeardSocket, interval_s: float, count: int
) -> Watch | None:
    """Ask for signs of life from now on, and close the connection when none comes.

    Args:
        transport: logged in.
        sock: what it was made with.
        interval_s: ask when nothing came for so long; 0 never asks and never closes.
        count: questions without an answer, after which it counts as dead.
    """
    if interval_s <= 0:
        return None
    # OpenSSH sends so many questions and gives up when the next would be due.
    watched = Watch(transport, sock, interval_s * (count + 1))

    def query() -> None:
        question = paramiko.Message()
        question.add_byte(cMSG_GLOBAL_REQUEST)
        question.add_string("keepalive@openssh.com")
        question.add_boolean(True)
        transport._send_user_message(question)  # type: ignore[attr-defined]

    transport.packetizer.set_keepalive(interval_s, query)
    _WATCHER.add(watched)
    return watched
