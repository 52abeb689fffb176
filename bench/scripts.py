"""Writes down, for each node, the command and the bytes that gpustate sends to look at it.

python -m bench.scripts INVENTORY POLICY FOLDER
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpustate import inventory, policies
from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Query
from gpustate.engine.ledger import LedgerQuery
from gpustate.engine.probing import probe_states
from gpustate.remote import batch


class _WrittenError(Exception):
    """The script is written; nothing is sent."""


def write(node: InventoryNode, states: Sequence[Any], file: Path) -> None:
    """Write what one node would be sent first."""

    def answer(queries: Sequence[Query[Any]]) -> NoReturn:
        packed = batch.make_batch(node, queries, "gpustate-" + secrets.token_hex(16)).packed
        file.write_bytes(batch.command_line(len(packed)).encode() + b"\n" + packed)
        raise _WrittenError

    try:
        probe_states(node, states, answer, (LedgerQuery(),))
    except _WrittenError:
        return


def main(source: str, policy: str, folder: Path) -> None:
    """Write all of them."""
    states = policies.load(policy).states
    folder.mkdir(exist_ok=True)
    for node in inventory.load(source):
        write(node, states, folder / node.name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
