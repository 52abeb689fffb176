"""Find the kubeconfig of a node's cluster."""

from __future__ import annotations

from typing import Any

from gpustate.core.inventory import InventoryNode
from gpustate.errors import InventoryError

#: Inventory variable with the path of a kubeconfig.
VARIABLE = "gpustate_kubeconfig"


def kubeconfig_of(node: InventoryNode, option: str) -> str:
    """Return the path of the kubeconfig of a node's cluster; empty if none is set.

    Raises:
        InventoryError: the variable is not a path.
    """
    if option:
        return option
    value: Any = node.vars.get(VARIABLE, "")
    if not isinstance(value, str):
        raise InventoryError(
            f"{VARIABLE} of {node.name} is not a path",
            place=node.origins.get(VARIABLE),
            fix="set it to the path of a kubeconfig",
        )
    return value
