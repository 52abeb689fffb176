"""Which kubeconfig an inventory names for a node."""

from __future__ import annotations

from typing import Any

from gpustate.core.inventory import InventoryNode
from gpustate.errors import InventoryError

#: Inventory variable with the path of a kubeconfig.
VARIABLE = "gpustate_kubeconfig"


def kubeconfig_of(node: InventoryNode, option: str) -> str:
    """Path of the kubeconfig of a node's cluster; empty where none is named.

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
            fix="name the file of a kubeconfig",
        )
    return value
