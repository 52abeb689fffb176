"""A loopback link with latency, where the kernel has no netem.

Every node's address listens on one port more and relays to sshd, holding each chunk for half the
round trip in each direction. The TCP handshake costs one round trip as well. The acknowledgements
stay local, which hides part of what small packets cost on a real link.

    python -m bench.delay NODES PORT SSHD_PORT SECONDS_EACH_WAY
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from bench import workload


class Half(asyncio.Protocol):
    """One side of a relayed connection."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.loop = asyncio.get_running_loop()
        self.peer: Half | None = None
        self.early: list[bytes] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's: connected."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Asyncio's: a chunk."""
        self.loop.call_later(self.delay_s, self._forward, data)

    def _forward(self, data: bytes) -> None:
        if self.peer is None:
            self.early.append(data)
        elif self.peer.transport and not self.peer.transport.is_closing():
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        """Asyncio's: half closed."""
        self.loop.call_later(self.delay_s, self._shut)
        return True

    def _shut(self) -> None:
        if self.peer and self.peer.transport and not self.peer.transport.is_closing():
            try:
                self.peer.transport.write_eof()
            except OSError:
                pass

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio's: closed."""
        if self.peer and self.peer.transport:
            self.loop.call_later(self.delay_s, self.peer.transport.close)


class Front(Half):
    """The side towards the controller; dials the node."""

    def __init__(self, delay_s: float, host: str, port: int) -> None:
        super().__init__(delay_s)
        self.host = host
        self.port = port
        self.dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio's: connected; one round trip stands in for the handshake, answered locally."""
        super().connection_made(transport)
        self.loop.call_later(2 * self.delay_s, self._begin)

    def _begin(self) -> None:
        self.dialling = self.loop.create_task(self._dial())

    async def _dial(self) -> None:
        back = Half(self.delay_s)
        try:
            await self.loop.create_connection(lambda: back, self.host, self.port)
        except OSError:
            if self.transport:
                self.transport.close()
            return
        back.peer, self.peer = self, back
        for data in self.early:
            self._forward(data)
        self.early.clear()


async def main(count: int, port: int, sshd_port: int, delay_s: float) -> None:
    """Serve until terminated."""
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(partial(Front, delay_s, host, sshd_port), host, port, backlog=256)
        for host in workload.hosts(count)
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
