"""Find the cluster of a node: a kubeconfig, and the context in it."""

from __future__ import annotations

from dataclasses import dataclass

from gpustate.core.inventory import InventoryNode

#: Inventory variables.
PATH, CONTEXT = "gpustate_kubeconfig", "gpustate_kube_context"


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """How a cluster is reached; false if no file is named.

    Args:
        path: the file; ``~`` is expanded. ``in-cluster``: the service account of the pod that gpustate runs in.
        context: in the file; empty: the current one.
    """

    path: str = ""
    context: str = ""

    def __bool__(self) -> bool:
        return bool(self.path)

    def __str__(self) -> str:
        return f"{self.path}, context {self.context}" if self.context else self.path


def kubeconfig_of(node: InventoryNode, option: str) -> Kubeconfig:
    """Return the kubeconfig of a node's cluster.

    Args:
        node: of the inventory.
        option: path of the command line, which takes precedence over the variable.

    Raises:
        InventoryError: a variable is not a text.
    """
    path = option or node.text(PATH, "a path", "set it to the path of a kubeconfig")
    context = node.text(CONTEXT, "a name", "set it to a context of the kubeconfig")
    return Kubeconfig(path, context if path else "")
