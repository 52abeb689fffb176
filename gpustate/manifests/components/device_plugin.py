"""What a policy decides for the device plugin and the MPS daemon."""

from __future__ import annotations

import yaml

from gpustate import shell
from gpustate.documents import Json
from gpustate.manifests import workloads
from gpustate.manifests.components.part import Part
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import ClusterSettings


def _values(settings: ClusterSettings) -> Json:
    return {
        "entrypoint": workloads.entrypoint("exec nvidia-device-plugin\n"),
        "mps_shm": f"{settings.mps_root}/shm",
        "shares_by_mps": _shares_by_mps(settings),
        "without_quarantined": shell.load(
            "without_quarantined", "gpustate.manifests", HOST="/host"
        ),
    }


def _shares_by_mps(settings: ClusterSettings) -> bool:
    """Whether a configuration shares GPUs by MPS, which needs a daemon on the nodes."""
    data = settings.config.data if settings.config is not None else None
    for text in (data or {}).values():
        try:
            parsed = yaml.safe_load(text)
        except yaml.YAMLError:
            continue  # the reader of the policy reports it
        sharing = parsed.get("sharing") if isinstance(parsed, dict) else None
        if isinstance(sharing, dict) and sharing.get("mps"):
            return True
    return False


PART = Part("devicePlugin", "device_plugin", f"{DEPLOY}device-plugin", values=_values)
