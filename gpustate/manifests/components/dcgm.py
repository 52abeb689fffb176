"""The DCGM host engine as pods, for exporters that do not embed one.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-dcgm, controllers/object_controls.go (TransformDCGM).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import monitoring, rbac
from gpustate.manifests.components.part import Json, Part, by_claim
from gpustate.manifests.pods import Program, claim_template, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.dcgm"
NAME, PORT = "nvidia-dcgm", 5555


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    name = by_claim(settings, NAME)
    claim = "nvidia-dcgm-admin" if settings.dra_driver.enabled else ""
    yield rbac.account(name, settings.namespace)
    if claim:
        yield claim_template(claim, settings.namespace)
    # Each exporter uses the host engine of its own node.
    local = {"type": "ClusterIP", "internalTrafficPolicy": "Local"}
    yield monitoring.service(name, settings.namespace, "dcgm", PORT, **local)
    program = Program(
        name=name,
        container="nvidia-dcgm-ctr",
        account=name,
        nodes={by_claim(settings, NODE_LABEL): "true"},
        ports=[{"name": "dcgm", "containerPort": PORT}],
        more={"livenessProbe": _probe(), "readinessProbe": _probe()},
        waits=not claim,
        claim=claim,
    )
    yield daemon_set(settings, settings.dcgm, image, program)


def _probe() -> Json:
    return {"tcpSocket": {"port": PORT}, "initialDelaySeconds": 15}


PART = Part("dcgm", "dcgm", _objects, NODE_LABEL, "dcgm", claims=True)
