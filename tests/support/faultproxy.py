"""A relay between gpustate and sshd that breaks the connection at one chosen SSH packet.

A message is an SSH packet: the banner is number 0, and every packet after it counts, for each
direction of a connection on its own. With an encrypt-then-MAC cipher, which the sshd of the tests
insists on, a packet's length travels in the clear, so that packets can be told apart without being
read. TCP's own cuts never show: what is broken is the same packet every time.

Runs as a process of its own and takes one JSON command a line; :class:`Proxy` is its handle.

Sources:
    RFC 4253 section 6 (binary packets), PROTOCOL of OpenSSH (encrypt-then-MAC modes).
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: The only cipher and code whose packets can be told apart from outside.
CIPHER, MAC = "aes128-ctr", "hmac-sha2-256-etm@openssh.com"
_MAC_BYTES = 32
_NEWKEYS = 21

C2S, S2C = "c2s", "s2c"

#: What can be done at a packet, and what it is.
KINDS = {
    "cut": "reset to both sides; the packet is lost",
    "torn": "half of the packet arrives, then both sides see the end",
    "close": "both sides see a clean end; the packet is lost",
    "half-close": "the receiver sees the end, the sender may go on listening",
    "half-close-back": "the packet arrives; its sender sees the end, the receiver may go on listening",
    "half-open": "the receiver gets nothing any more and no end; the other direction works",
    "dead": "nothing gets through any more, in neither direction, and nobody is told",
    "stall": "nothing gets through for a while, then everything does",
    "late": "nothing gets through until long after everybody gave up, then everything does",
    "ghost": "nothing gets through, nobody can connect, and all of it arrives after the next run",
    "delay": "this direction is held up for a moment",
    "corrupt": "one bit of the packet is another",
    "offline": "reset, and for a few seconds nobody can connect",
    "gone": "reset, and nobody can connect any more",
}
_FOREVER = float("inf")
STALL_S, LATE_S, DELAY_S, OFFLINE_S = 1.5, 14.0, 0.2, 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to go wrong.

    Args:
        connection: which of the connections made from now on, from 0.
        direction: ``c2s`` (towards the node) or ``s2c``.
        packet: at which packet of it.
        kind: see :data:`KINDS`.
    """

    connection: int
    direction: str
    packet: int
    kind: str


class Cutter:
    """Cuts one direction of an SSH connection into its packets; pure.

    Bytes given out again, put together, are always the bytes taken in.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._banner = False
        self._encrypted = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; give the packets that are whole now."""
        self._buffer += data
        packets: list[bytes] = []
        while (size := self._size()) and len(self._buffer) >= size:
            packet, self._buffer = self._buffer[:size], self._buffer[size:]
            packets.append(packet)
            if not self._banner:
                self._banner = packet.startswith(b"SSH-")
            elif not self._encrypted:
                self._encrypted = packet[5] == _NEWKEYS
        return packets

    def _size(self) -> int:
        """Bytes of the packet at the front; 0 while that cannot be told."""
        if not self._banner:
            return self._buffer.find(b"\n") + 1
        if len(self._buffer) < 4:
            return 0
        (length,) = struct.unpack(">I", self._buffer[:4])
        return 4 + int(length) + (_MAC_BYTES if self._encrypted else 0)


@dataclass(slots=True)
class _Way:
    """One direction of a relayed connection."""

    name: str
    sender: asyncio.StreamReader
    receiver: asyncio.StreamWriter
    cutter: Cutter = field(default_factory=Cutter)
    count: int = 0
    held: int = 0  # how many faults hold it up
    queue: deque[bytes | None] = field(default_factory=deque[bytes | None])
    swallow: bool = False
    over: bool = False

    def give(self, item: bytes | None) -> None:
        """Pass on a packet, or the end (``None``), as far as nothing holds it up."""
        self.queue.append(item)
        self.flow()

    def flow(self) -> None:
        while self.queue and not self.held:
            item = self.queue.popleft()
            if self.swallow or self.over or self.receiver.is_closing():
                continue
            if item is not None:
                self.receiver.write(item)
                continue
            self.over = True
            try:
                self.receiver.write_eof()
            except OSError:
                pass


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class _Pair:
    """A relayed connection."""

    def __init__(
        self,
        line: _Line,
        number: int,
        front: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        back: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.line = line
        self.number = number
        self.ways = {C2S: _Way(C2S, front[0], back[1]), S2C: _Way(S2C, back[0], front[1])}
        self.trace: list[tuple[float, str, int]] = []

    def other(self, way: _Way) -> _Way:
        return self.ways[S2C if way.name == C2S else C2S]

    async def run(self) -> None:
        await asyncio.gather(*(self._pump(way) for way in self.ways.values()))
        if not any(way.swallow for way in self.ways.values()):
            await self._drained()
            self.end()

    async def _drained(self) -> None:
        while any(way.queue for way in self.ways.values()):
            await asyncio.sleep(0.05)

    async def _pump(self, way: _Way) -> None:
        try:
            while data := await way.sender.read(65536):
                for packet in way.cutter.feed(data):
                    self._packet(way, packet)
            way.give(None)
        except OSError:
            # A side that resets is gone for both.
            if not way.swallow and not self.other(way).swallow and not way.held:
                self.end(reset=True)
            else:
                way.give(None)

    def _packet(self, way: _Way, packet: bytes) -> None:
        number, way.count = way.count, way.count + 1
        self.trace.append((time.monotonic(), way.name, len(packet)))
        fault = self.line.waiting.pop((self.number, way.name, number), None)
        if fault is None:
            way.give(packet)
        else:
            self._break(way, packet, fault.kind)

    def _break(self, way: _Way, packet: bytes, kind: str) -> None:
        other = self.other(way)
        if kind in ("cut", "offline", "gone"):
            self.line.refuse_until = (
                time.monotonic() + {"cut": 0.0, "offline": OFFLINE_S, "gone": _FOREVER}[kind]
            )
            self.end(reset=True)
        elif kind == "torn":
            way.give(packet[: len(packet) // 2])
            self.end()
        elif kind == "close":
            self.end()
        elif kind == "half-close":
            way.give(None)
        elif kind == "half-close-back":
            way.give(packet)
            other.give(None)
        elif kind == "half-open":
            way.swallow = True
        elif kind == "dead":
            way.swallow = other.swallow = True
        elif kind == "corrupt":
            middle = len(packet) // 2
            way.give(packet[:middle] + bytes([packet[middle] ^ 4]) + packet[middle + 1 :])
        elif kind in ("stall", "late", "ghost"):
            for_s = {"stall": STALL_S, "late": LATE_S, "ghost": None}[kind]
            self._hold((way, other), for_s)
            way.give(packet)
            if kind == "ghost":
                self.line.refuse_until = _FOREVER
        else:
            self._hold((way,), DELAY_S)
            way.give(packet)

    def _hold(self, ways: Sequence[_Way], seconds: float | None) -> None:
        def resume() -> None:
            for way in ways:
                way.held = max(0, way.held - 1)
                way.flow()

        for way in ways:
            way.held += 1
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, resume)

    def end(self, *, reset: bool = False) -> None:
        """Close both sides."""
        for way in self.ways.values():
            way.over = True
            if reset:
                _reset(way.receiver)
            elif not way.receiver.is_closing():
                way.receiver.close()


class _Line:
    """One node's port."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.arm(())

    def arm(self, faults: Sequence[Fault]) -> None:
        self.waiting = {(f.connection, f.direction, f.packet): f for f in faults}
        self.refuse_until = 0.0
        self.pairs: list[_Pair] = []

    async def serve(self) -> int:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=64)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self.refuse_until:
            _reset(writer)
            return
        try:
            back = await asyncio.open_connection(*self.target)
        except OSError:
            _reset(writer)
            return
        for one in (writer, back[1]):
            sock = one.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = _Pair(self, len(self.pairs), (reader, writer), back)
        self.pairs.append(pair)
        await pair.run()

    def state(self, trace: bool) -> dict[str, Any]:
        return {
            "fired": not self.waiting,
            "connections": [
                {name: way.count for name, way in pair.ways.items()} for pair in self.pairs
            ],
            "trace": [pair.trace for pair in self.pairs] if trace else [],
        }

    def allow(self) -> None:
        self.waiting = {}
        self.refuse_until = 0.0

    def thaw(self) -> None:
        for pair in self.pairs:
            for way in pair.ways.values():
                way.held = 0
                way.flow()

    def release(self) -> None:
        """Let go of everything that hangs; both sides see the end."""
        for pair in self.pairs:
            pair.end()
        self.arm(())


async def _serve(targets: list[tuple[str, int]]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # peers that are cut off complain
    lines = [_Line(target) for target in targets]
    print(json.dumps([await line.serve() for line in lines]), flush=True)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while text := await commands.readline():
        command = json.loads(text)
        reply: Any = None
        if command["do"] == "arm":
            lines[command["line"]].arm([Fault(**fault) for fault in command["faults"]])
        elif command["do"] == "state":
            reply = [line.state(command["trace"]) for line in lines]
        elif command["do"] == "allow":
            lines[command["line"]].allow()
        elif command["do"] == "thaw":
            for line in lines:
                line.thaw()
        elif command["do"] == "release":
            for line in lines:
                line.release()
        print(json.dumps(reply), flush=True)


class Proxy:
    """The relay's process.

    Args:
        targets: address and port of each node's sshd.
    """

    def __init__(self, targets: Sequence[tuple[str, int]]) -> None:
        words = [sys.executable, str(Path(__file__)), json.dumps([*targets])]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ports: list[int] = self._reply()

    def _reply(self) -> Any:
        text = self._process.stdout.readline() if self._process.stdout else ""
        if not text:
            raise RuntimeError("the proxy has ended")
        return json.loads(text)

    def _ask(self, **command: Any) -> Any:
        if self._process.stdin is None:
            raise RuntimeError("the proxy has no input")
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def arm(self, line: int, faults: Sequence[Fault] = ()) -> None:
        """Count a node's connections from 0 again, and break some of them."""
        self._ask(do="arm", line=line, faults=[asdict(fault) for fault in faults])

    def state(self, *, trace: bool = False) -> list[dict[str, Any]]:
        """For each node: whether all its faults came about, packets of each connection, their trace."""
        result: list[dict[str, Any]] = self._ask(do="state", trace=trace)
        return result

    def allow(self, line: int) -> None:
        """No more faults for a node, and it can be connected to; what hangs goes on hanging."""
        self._ask(do="allow", line=line)

    def thaw(self) -> None:
        """Let everything arrive that is held up."""
        self._ask(do="thaw")

    def release(self) -> None:
        """End all connections, and all faults."""
        self._ask(do="release")

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        self._process.wait(timeout=10)


if __name__ == "__main__":
    asyncio.run(_serve([(host, port) for host, port in json.loads(sys.argv[1])]))
