"""GPU feature discovery.

Sources:
    NVIDIA/gpu-operator v26.7: assets/gpu-feature-discovery, controllers/object_controls.go (TransformGPUDiscoveryPlugin);
    NVIDIA/k8s-device-plugin v0.20.0: internal/lm/output.go (reads, creates and updates the NodeFeature of its Node, and
    reads its own pod for the owner references).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import host_path, mount
from gpustate.manifests.pods import Program, daemon_set, mig_variables
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.gpu-feature-discovery"
_ACCOUNT = "nvidia-gpu-feature-discovery"
_RULES = (
    rbac.rule("nfd.k8s-sigs.io", "nodefeatures", "get create update"),
    rbac.rule("", "pods", "get"),
)


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    yield rbac.account(_ACCOUNT, settings.namespace)
    yield from rbac.grant(_ACCOUNT, settings.namespace, _RULES, cluster=False)
    if settings.config is not None:
        yield from rbac.grant(_ACCOUNT, settings.namespace, (rbac.READ_NODES,), cluster=True)
    program = Program(
        name="gpu-feature-discovery",
        container="gpu-feature-discovery",
        command=["gpu-feature-discovery"],
        account=_ACCOUNT,
        nodes={NODE_LABEL: "true"},
        env={
            "GFD_SLEEP_INTERVAL": "60s",
            "GFD_FAIL_ON_INIT_ERROR": "true",
            "GFD_USE_NODE_FEATURE_API": "true",
            **mig_variables(settings),
        },
        fields={
            "NAMESPACE": "metadata.namespace",
            "NODE_NAME": "spec.nodeName",
            "POD_NAME": "metadata.name",
        },
        mounts=[mount("host-sys", "/sys", readOnly=True)],
        volumes=[host_path("host-sys", "/sys")],
        labels={"app.kubernetes.io/part-of": "nvidia-gpu"},
        waits=True,
        reloads="gpu-feature-discovery",
        api=True,
    )
    yield daemon_set(settings, settings.feature_discovery, image, program)


PART = Part("gfd", "feature_discovery", _objects, NODE_LABEL)
