"""NVIDIA's validator as containers: it checks driver, toolkit, CUDA and device plugin of a node, one after the other.

Other components wait for the files that it writes. Nodes for virtual machines have a validator of their own.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-operator-validation, assets/state-sandbox-validation,
    controllers/object_controls.go (TransformValidator, TransformSandboxValidator), cmd/nvidia-validator (its requests).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.manifests import rbac
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import (
    DRIVER,
    check,
    driver_check,
    driver_volumes,
    host_path,
    image_of,
    mount,
    validations,
    validations_mount,
)
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import ClusterObjects

NODE_LABEL = "nvidia.com/gpu.deploy.operator-validator"
MACHINE_LABEL = "nvidia.com/gpu.deploy.sandbox-validator"
NAME, _SANDBOX = "nvidia-operator-validator", "nvidia-sandbox-validator"
_PART_OF = {"app.kubernetes.io/part-of": "gpu-operator"}
_LOCAL = (
    rbac.rule("", "pods", "create get list watch update patch delete"),
    rbac.rule("apps", "daemonsets", "get list watch"),
)
_NODES = (rbac.rule("", "nodes", "get list watch"),)
_NODE = (rbac.rule("", "nodes", "get"),)
_SCRIPT = "echo all validations are successful; while true; do sleep 86400; done"
_BOTH = "Bidirectional"
_NODE_NAME = {"NODE_NAME": "spec.nodeName"}
_NAMES = {**_NODE_NAME, "OPERATOR_NAMESPACE": "metadata.namespace"}


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    namespace = settings.namespace
    yield rbac.account(NAME, namespace)
    yield from rbac.grant(NAME, namespace, _LOCAL, cluster=False)
    yield from rbac.grant(NAME, namespace, _NODES, cluster=True)
    yield daemon_set(settings, settings.validator, image, _containers(settings))
    if settings.validator.machines:
        yield rbac.account(_SANDBOX, namespace)
        yield from rbac.grant(_SANDBOX, namespace, _NODE, cluster=True)
        yield daemon_set(settings, settings.validator, image, _machines(settings))


def _containers(settings: ClusterObjects) -> Program:
    mounts = [validations_mount(_BOTH)]
    pods = _of_pods(settings)
    checks = [
        driver_check(settings),
        check(
            settings,
            "toolkit",
            env={"NVIDIA_VISIBLE_DEVICES": "all", "WITH_WAIT": "false"},
            mounts=mounts,
            level=False,
        ),
        check(
            settings,
            "cuda",
            env={"WITH_WAIT": "false", **pods},
            fields=_NAMES,
            mounts=mounts,
            level=False,
        ),
    ]
    if settings.device_plugin.enabled:
        env = {"WITH_WAIT": "false", "WITH_WORKLOAD": "false"}
        strategy = {"MIG_STRATEGY": settings.mig_strategy}
        checks.append(
            check(
                settings,
                "plugin",
                env={**env, **strategy, **pods},
                fields=_NAMES,
                mounts=mounts,
                level=False,
            )
        )
    return Program(
        name=NAME,
        container=NAME,
        account=NAME,
        nodes={NODE_LABEL: "true"},
        labels=_PART_OF,
        command=["sh", "-c"],
        args=[_SCRIPT],
        more=_stop("*-ready"),
        mounts=mounts,
        volumes=driver_volumes(),
        security={"privileged": True, "runAsUser": 0},
        first=checks,
        injected="toolkit-validation",
        api=True,
    )


def _of_pods(settings: ClusterObjects) -> dict[str, str]:
    """Variables of the pods that a check runs."""
    validator = settings.validator
    found = {
        "VALIDATOR_IMAGE": image_of(settings, validator, "validator"),
        "VALIDATOR_IMAGE_PULL_POLICY": validator.image_pull_policy,
    }
    if validator.image_pull_secrets:
        found["VALIDATOR_IMAGE_PULL_SECRETS"] = ",".join(validator.image_pull_secrets)
    if settings.runtime_class:
        found["VALIDATOR_RUNTIME_CLASS"] = settings.runtime_class
    return found


def _machines(settings: ClusterObjects) -> Program:
    mounts = [validations_mount(_BOTH)]
    host = mount("host-root", "/host", readOnly=True, mountPropagation="HostToContainer")
    driver = mount("driver-install-path", DRIVER, mountPropagation="HostToContainer")
    wait = {"WITH_WAIT": "true"}
    workload = {**wait, "DEFAULT_GPU_WORKLOAD_CONFIG": settings.validator.workload}
    checks: list[Json] = []
    if settings.cc_manager.enabled:
        checks.append(check(settings, "cc-manager", env=wait, fields=_NODE_NAME, mounts=mounts))
    checks += [
        check(settings, "vfio-pci", env=workload, fields=_NODE_NAME, mounts=[host, *mounts]),
        check(
            settings,
            "vgpu-manager",
            env=workload,
            fields=_NODE_NAME,
            mounts=[host, driver, *mounts],
        ),
        check(
            settings, "vgpu-devices", env=workload, fields=_NODE_NAME, mounts=mounts, level=False
        ),
    ]
    return Program(
        name=_SANDBOX,
        container=_SANDBOX,
        account=_SANDBOX,
        nodes={MACHINE_LABEL: "true"},
        labels=_PART_OF,
        command=["sh", "-c"],
        args=[_SCRIPT],
        more=_stop("*"),
        mounts=mounts,
        volumes=[
            validations(),
            host_path("driver-install-path", DRIVER),
            host_path("host-root", "/"),
        ],
        security={"privileged": True, "runAsUser": 0},
        first=checks,
        api=True,
        gpus=False,
    )


def _stop(pattern: str) -> dict[str, Json]:
    command = ["sh", "-c", f"rm -f /run/nvidia/validations/{pattern}"]
    return {"lifecycle": {"preStop": {"exec": {"command": command}}}}


PART = Part("validator", "validator", NODE_LABEL, build=_objects)
