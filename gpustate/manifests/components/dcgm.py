"""The DCGM host engine as pods, for exporters that do not embed one.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-dcgm, controllers/object_controls.go (TransformDCGM).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import monitoring, rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.dcgm"
NAME, PORT = "nvidia-dcgm", 5555


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    yield rbac.account(NAME, settings.namespace)
    # Each exporter uses the host engine of its own node.
    local = {"type": "ClusterIP", "internalTrafficPolicy": "Local"}
    yield monitoring.service(NAME, settings.namespace, "dcgm", PORT, **local)
    program = Program(
        name=NAME,
        container="nvidia-dcgm-ctr",
        account=NAME,
        nodes={NODE_LABEL: "true"},
        ports=[{"name": "dcgm", "containerPort": PORT}],
        more={"livenessProbe": _probe(), "readinessProbe": _probe()},
    )
    yield daemon_set(settings, settings.dcgm, image, program)


def _probe() -> Json:
    return {"tcpSocket": {"port": PORT}, "initialDelaySeconds": 15}


PART = Part("dcgm", lambda settings: settings.dcgm, _objects, NODE_LABEL, "dcgm")
