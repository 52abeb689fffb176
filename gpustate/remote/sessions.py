"""Which session a node of an inventory gets."""

from __future__ import annotations

from gpustate.model.inventory import InventoryNode
from gpustate.remote.chroot import ChrootSession
from gpustate.remote.session import Session


def session_of(node: InventoryNode) -> Session:
    """The session for a node, by its kind of connection."""
    return ChrootSession(node) if node.connection.kind == "chroot" else Session(node)
