"""Find the kubeconfig of a node's cluster."""

from __future__ import annotations

from gpustate.core.inventory import InventoryNode

#: Inventory variable with the path of a kubeconfig.
VARIABLE = "gpustate_kubeconfig"


def kubeconfig_of(node: InventoryNode, option: str) -> str:
    """Return the path of the kubeconfig of a node's cluster; empty if none is set.

    Raises:
        InventoryError: the variable is not a path.
    """
    if option:
        return option
    return node.text(VARIABLE, "a path", "set it to the path of a kubeconfig")
