"""What a policy decides for NVIDIA's driver for dynamic resource allocation (DRA)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpustate.documents import Json
from gpustate.manifests import workloads
from gpustate.manifests.components.part import Part
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import ClusterSettings, Container

GPU = "gpu.nvidia.com"


def _objects(settings: ClusterSettings, image: str) -> Iterator[Json]:
    driver, root = settings.dra_driver, settings.kubelet_root
    gates = sorted(driver.feature_gates.items())
    plugin = f"system:serviceaccount:{settings.namespace}:nvidia-dra-driver-kubeletplugin"
    values = {
        "feature_gates": ",".join(f"{name}={str(on).lower()}" for name, on in gates),
        "shares_by_mps": driver.feature_gates.get("MPSSupport"),
        "passes_through": driver.feature_gates.get("PassthroughSupport"),
        "is_plugin": f'request.userInfo.username == "{plugin}"',
        "registry": f"{root}/plugins_registry",
        "plugins": f"{root}/plugins",
        "gpus": _container(driver.gpus),
        "domains": _container(driver.compute_domain_plugin),
        "controller": _container(driver.controller),
        "pull_secrets": ",".join(driver.image_pull_secrets),
    }
    # Its containers have resources and arguments of their own.
    component = replace(driver, resources={})
    yield from workloads.objects("dra-driver", settings, component, image, values)


def _container(container: Container) -> Json:
    return {
        "port": str(container.healthcheck_port),
        "env": workloads.variables(container.env),
        "resources": container.resources or None,
    }


PART = Part("draDriver", "dra_driver", f"{DEPLOY}dra-driver", build=_objects)
