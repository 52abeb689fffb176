"""The floor: one connection, one exec and one script a node, in one process, through asyncssh.

    python -m bench.floor WORK PORT NODES FOLDER

FOLDER holds a script for each node: ``scripts`` those that gpustate sends, byte for byte (see
:mod:`bench.scripts`), ``by-hand`` one that somebody would write.
"""

from __future__ import annotations

import asyncio
import gzip
import sys
from pathlib import Path

import asyncssh  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

from bench import workload

FORKS = 50


def complete(said: bytes) -> bool:
    """The node's answer is there to its end."""
    if said.endswith(b"@end\n"):
        return True
    mark = said.find(b" answer\n")
    return mark >= 0 and gzip.decompress(said[mark + 8 :]).endswith(b" end\n")


async def main(work: Path, port: int, count: int, folder: str) -> bool:
    """Ask all nodes; tell whether all of them answered."""
    gate = asyncio.Semaphore(FORKS)
    key = asyncssh.read_private_key(str(work / "bed/user"))
    known = asyncssh.read_known_hosts(str(work / "bed/known_hosts"))

    async def one(host: str) -> bool:
        command, _, data = (work / folder / host).read_bytes().partition(b"\n")
        async with (
            gate,
            asyncssh.connect(
                host,
                port,
                username="root",
                client_keys=[key],
                known_hosts=known,
                agent_path=None,
                config=None,
            ) as connection,
        ):
            done = await connection.run(command.decode(), input=data, encoding=None)
        return complete(done.stdout)

    answers = await asyncio.gather(*(one(host) for host in workload.hosts(count)))
    print(f"{sum(answers)} of {len(answers)} nodes answered")
    return all(answers)


if __name__ == "__main__":
    ended = asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
    sys.exit(not ended)
