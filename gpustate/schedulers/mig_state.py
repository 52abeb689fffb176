"""What labels say about the MIG layout of a Node, and who changes it. Pure.

``nvidia.com/mig.config`` selects a layout; ``nvidia.com/mig.config.state`` is ``pending``, ``rebooting``, ``success`` or
``failed``. An annotation says that a change is gpustate's: without it, ``pending`` is that of NVIDIA's MIG manager.

Sources:
    NVIDIA/mig-parted v0.15: cmd/nvidia-mig-manager, pkg/mig/reconfigure/reconfigure.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpustate.documents import Json
from gpustate.manifests.ownership import written_labels

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
PENDING, REBOOTING, SUCCESS, FAILED = "pending", "rebooting", "success", "failed"
#: Annotation of a Node whose MIG layout gpustate changes: the run.
RUN_ANNOTATION = "gpustate.io/mig"
_MANAGER = "nvidia-mig-manager"


def labels_of(node: Json) -> Mapping[str, str]:
    """The labels of a Node."""
    values: Mapping[str, str] = node["metadata"].get("labels") or {}
    return values


def is_ours(node: Json) -> bool:
    """Whether a change of its MIG devices is gpustate's, of this run or one that did not end it."""
    return bool((node["metadata"].get("annotations") or {}).get(RUN_ANNOTATION))


def is_stale(node: Json) -> bool:
    """Whether a run has written the state of a layout whose label was removed since."""
    return not labels_of(node).get(CONFIG) and STATE in written_labels(node)


def manager_of(node: Json, daemon_sets: Iterable[Json]) -> str:
    """The DaemonSet of NVIDIA's MIG manager that has a pod on a Node, ``namespace/name``; empty: there is none."""
    labels = labels_of(node)
    for daemon_set in daemon_sets:
        meta = daemon_set["metadata"]
        template = (daemon_set.get("spec") or {}).get("template") or {}
        app = ((template.get("metadata") or {}).get("labels") or {}).get("app")
        selector = (template.get("spec") or {}).get("nodeSelector") or {}
        if _MANAGER in (meta["name"], app) and selector.items() <= labels.items():
            return f"{meta.get('namespace', '')}/{meta['name']}"
    return ""
