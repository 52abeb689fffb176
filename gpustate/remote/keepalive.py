"""Detect dead SSH connections with keepalive requests.

TCP alone does not: after a power loss, or behind a firewall that dropped the connection, it stays open
for hours. A keepalive request goes to sshd after each interval without data. When several of them get
no reply, the connection is closed, which wakes every thread that waits for it. Names and meaning are
OpenSSH's: ``ServerAliveInterval`` and ``ServerAliveCountMax``.

One thread checks all connections. It never sends: a connection that accepts no more bytes would block
it, and with it the checks of all others. Each connection's own thread sends the requests.

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


class TimedSocket:
    """A socket that records whether and when it last received data.

    Args:
        sock: a socket, or any object that paramiko accepts as one.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self.received = False
        self.received_at = time.monotonic()

    def recv(self, size: int) -> bytes:
        data: bytes = self._sock.recv(size)
        self.received_at = time.monotonic()
        self.received |= bool(data)
        return data

    def close(self) -> None:
        """Close it; a channel through a jump host that has disconnected raises here, which is ignored."""
        with suppress(EOFError, OSError, paramiko.SSHException):
            self._sock.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@dataclass(slots=True, eq=False)
class Keepalive:
    """One monitored connection; ``lost`` is the reason if it was closed as dead."""

    transport: paramiko.Transport
    sock: TimedSocket
    timeout_s: float
    lost: str = ""

    def check(self, time_s: float) -> float | None:
        """Close the connection if it received nothing within the timeout.

        Returns:
            When to check again; ``None`` once the connection is closed.
        """
        if not self.transport.is_active():
            return None
        due = self.sock.received_at + self.timeout_s
        if time_s < due:
            return due
        self.lost = f"no reply to keepalive requests for {self.timeout_s:g} s"
        self.transport.close()
        return None


class _Monitor:
    """The thread that checks all connections; it runs while there is one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._connections: set[Keepalive] = set()
        self._running = False

    def add(self, connection: Keepalive) -> None:
        with self._changed:
            self._connections.add(connection)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="keepalive", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            time_s = time.monotonic()
            next_s = 3600.0
            with self._changed:
                connections = list(self._connections)
            closed: set[Keepalive] = set()
            for connection in connections:
                due = connection.check(time_s)
                if due is None:
                    closed.add(connection)
                else:
                    next_s = min(next_s, due - time_s)
            with self._changed:
                self._connections -= closed
                if not self._connections:
                    self._running = False
                    return
                # Drop closed connections soon, not only when their next check is due.
                self._changed.wait(min(next_s, 5.0))


_MONITOR = _Monitor()


def monitor(
    transport: paramiko.Transport, sock: TimedSocket, interval_s: float, count: int
) -> Keepalive | None:
    """Send keepalive requests from now on, and close the connection when they get no reply.

    Args:
        transport: logged in.
        sock: the socket below it.
        interval_s: seconds without data before a request; 0: no requests, never closed.
        count: requests without a reply after which the connection is closed.
    """
    if interval_s <= 0:
        return None
    # OpenSSH sends ``count`` requests and gives up when the next one is due.
    keepalive = Keepalive(transport, sock, interval_s * (count + 1))

    def send() -> None:
        request = paramiko.Message()
        request.add_byte(cMSG_GLOBAL_REQUEST)
        request.add_string("keepalive@openssh.com")
        request.add_boolean(True)
        transport._send_user_message(request)  # type: ignore[attr-defined]

    transport.packetizer.set_keepalive(interval_s, send)
    _MONITOR.add(keepalive)
    return keepalive
