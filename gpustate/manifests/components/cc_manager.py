"""The confidential computing manager: sets the mode of GPUs by the label ``nvidia.com/cc.mode`` of their Node.

Surprising: the states of a node only prepare its host. Setting the mode resets the GPUs, and is left to this program.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-cc-manager, controllers/object_controls.go (TransformCCManager).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import host_path, mount
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.cc-manager"
_NAME = "nvidia-cc-manager"
_NODES = (rbac.rule("", "nodes", "get list patch watch"),)
_PODS = (rbac.rule("", "pods", "get list watch"),)
_STOP = ["/bin/rm", "-f", "/run/nvidia/validations/.cc-manager-ctr-ready"]


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    yield rbac.account(_NAME, settings.namespace)
    yield from rbac.grant(_NAME, settings.namespace, _PODS, cluster=False)
    yield from rbac.grant(_NAME, settings.namespace, _NODES, cluster=True)
    mode = {"DEFAULT_CC_MODE": settings.cc_mode} if settings.cc_mode else {}
    program = Program(
        name=_NAME,
        container=_NAME,
        account=_NAME,
        nodes={NODE_LABEL: "true"},
        env={"NVIDIA_VISIBLE_DEVICES": "void", **mode},
        fields={"NODE_NAME": "spec.nodeName"},
        mounts=[mount("host-sys", "/sys"), mount("run-nvidia", "/run/nvidia")],
        volumes=[
            host_path("host-sys", "/sys", "Directory"),
            host_path("run-nvidia", "/run/nvidia", "DirectoryOrCreate"),
        ],
        more={
            "resources": {
                "limits": {"memory": "200Mi"},
                "requests": {"cpu": "100m", "memory": "200Mi"},
            },
            "lifecycle": {"preStop": {"exec": {"command": list(_STOP)}}},
        },
        security={"privileged": True, "seLinuxOptions": {"level": "s0"}},
        selected_by="name",
        api=True,
        gpus=False,
    )
    yield daemon_set(settings, settings.cc_manager, image, program)


PART = Part("ccManager", "cc_manager", _objects, NODE_LABEL, machines=True)
