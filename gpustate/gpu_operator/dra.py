"""The settings of the DRA driver in a GPUCluster or in Helm values.

Sources:
    NVIDIA/gpu-operator v26.7: internal/state/dra_driver.go (defaults of ports and gates), manifests/state-dra-driver.
"""

from __future__ import annotations

from typing import Any

from gpustate.gpu_operator.components import component, value
from gpustate.gpu_operator.desired import Source
from gpustate.manifests.settings import Container, DraDriver

_PORTS = {"gpus": 51516, "computeDomains": 51515}


def driver(source: Source) -> DraDriver:
    """The DRA driver.

    Raises:
        PolicyError: an image that is set in part only.
    """
    shared = component(source, "draDriver", enabled=True)
    gates: dict[str, Any] = value(source, "draDriver.featureGates") or {}
    domains = value(source, "draDriver.computeDomains.enabled")
    return DraDriver(
        image=shared.image,
        image_pull_policy=shared.image_pull_policy,
        image_pull_secrets=shared.image_pull_secrets,
        feature_gates={name: bool(on) for name, on in gates.items()},
        compute_domains=domains is not False,
        gpus=_plugin(source, "gpus"),
        compute_domain_plugin=_plugin(source, "computeDomains"),
        controller=_container(source, "draDriver.computeDomains.controller"),
    )


def _plugin(source: Source, name: str) -> Container:
    path = f"draDriver.{name}.kubeletPlugin"
    enabled = value(source, f"{path}.healthcheck.enabled") is not False
    port = int(value(source, f"{path}.healthcheck.port") or _PORTS[name]) if enabled else 0
    return _container(source, path, port)


def _container(source: Source, path: str, port: int = 0) -> Container:
    variables = value(source, f"{path}.env") or []
    return Container(
        env={str(one["name"]): str(one.get("value") or "") for one in variables},
        resources=value(source, f"{path}.resources") or {},
        healthcheck_port=port,
    )
