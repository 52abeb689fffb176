"""The node status exporter: metrics of what the validator has found on a node.

It reads the status files that the state ``validator`` writes, runs ``nvidia-smi`` in the root of the node, and
counts the GPUs of its Node.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-node-status-exporter, controllers/object_controls.go
    (TransformNodeStatusExporter), cmd/nvidia-validator/metrics.go (it gets its Node, and with a driver of the host
    nothing else).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import monitoring, rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import host_path, mount
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects, Monitor

NODE_LABEL = "nvidia.com/gpu.deploy.node-status-exporter"
NAME = "nvidia-node-status-exporter"
_PORT, _PORT_NAME = 8000, "node-status"
_RULES = (rbac.rule("", "nodes", "get"),)
#: Whether a driver container is ready.
_DRIVER_RULES = (
    rbac.rule("", "pods", "get list"),
    rbac.rule("apps", "daemonsets", "get list watch"),
)


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    namespace = settings.namespace
    monitors = settings.dcgm_exporter.monitor
    monitor = Monitor(enabled=monitors.enabled, labels=monitors.labels)
    yield rbac.account(NAME, namespace)
    yield from rbac.grant(NAME, namespace, _RULES, cluster=True)
    if settings.validator.enabled:
        yield from rbac.grant(NAME, namespace, _DRIVER_RULES, cluster=False)
    yield monitoring.scraped(monitoring.service(NAME, namespace, _PORT_NAME, _PORT))
    if monitor.enabled:
        yield monitoring.service_monitor(NAME, namespace, _PORT_NAME, monitor, _PORT_NAME)
    program = Program(
        name=NAME,
        container=NAME,
        command=["nvidia-validator"],
        account=NAME,
        nodes={NODE_LABEL: "true"},
        env={
            "NVIDIA_VISIBLE_DEVICES": "void",
            "COMPONENT": "metrics",
            "METRICS_PORT": str(_PORT),
        },
        fields={"NODE_NAME": "spec.nodeName", "OPERATOR_NAMESPACE": "metadata.namespace"},
        mounts=[
            mount("run-nvidia", "/run/nvidia", mountPropagation="HostToContainer"),
            mount("host-root", "/host", readOnly=True, mountPropagation="HostToContainer"),
        ],
        volumes=[
            host_path("run-nvidia", "/run/nvidia", "DirectoryOrCreate"),
            host_path("host-root", "/"),
        ],
        ports=[{"name": _PORT_NAME, "containerPort": _PORT}],
        # It changes its root to that of the node.
        security={"privileged": True, "runAsUser": 0},
        api=True,
        gpus=False,
    )
    yield daemon_set(settings, settings.node_status_exporter, image, program)


PART = Part("nodeStatusExporter", "node_status_exporter", _objects, NODE_LABEL)
