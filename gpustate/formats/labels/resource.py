"""The labels of every advertised resource: product, count, replicas, sharing."""

from __future__ import annotations

from gpustate.formats.deviceplugin.model import Sharing
from gpustate.formats.labels.names import product


def base_labels(
    resource: str, count: int, sharing: Sharing | None, *, product_parts: tuple[str, ...]
) -> dict[str, str]:
    """Labels of one resource.

    Args:
        resource: ``nvidia.com/gpu`` or ``nvidia.com/mig-1g.10gb``.
        count: devices of it.
        sharing: of the resource; ``None`` if it cannot be shared (a GPU partitioned by MIG).
        product_parts: of its product's name.
    """
    replicas = 0 if sharing is None else sharing.replicas(resource)
    shared = sharing is not None and replicas > 1
    return {
        f"{resource}.product": product(
            *product_parts, shared=sharing is not None and shared and not sharing.renamed
        ),
        f"{resource}.count": str(count),
        f"{resource}.replicas": str(replicas),
        f"{resource}.sharing-strategy": sharing.strategy if sharing and shared else "none",
    }
