"""Settings that have no effect because of another setting.

Surprising: upstream's own sample and chart enable components for virtual machines with
``sandboxWorkloads`` disabled. So a file that sets both gets a note, not a warning.

Sources:
    NVIDIA/gpu-operator v26.7.0: controllers/state_manager.go (isStateEnabled),
    controllers/object_controls.go (applyUpdateStrategyConfig), internal/image/image.go,
    deployments/gpu-operator (templates; only node feature discovery's read
    ``global``, its ``imagePullSecrets``).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.gpu_operator.keys import records
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding

_SANDBOX = "sandboxWorkloads.enabled"
#: Components that run only on nodes for virtual machines.
_OF_MACHINES = ("vgpuManager", "vgpuDeviceManager", "vfioManager", "ccManager")
_GLOBAL_READ = "imagePullSecrets"


def machines(context: Context) -> Iterator[Finding]:
    """Components for virtual machines without nodes for them."""
    if context.kind not in ("clusterpolicy", "helm") or context.on("sandboxWorkloads"):
        return
    for section in _OF_MACHINES:
        path = f"{section}.enabled"
        record = records(context.kind).get(path)
        if record is None or context.own_value(path) is not True or record.default is True:
            continue
        set_to_false = context.own_value(_SANDBOX) is False
        yield context.find(
            "idle" if set_to_false else "without-effect",
            path,
            f"{path} has no effect while {_SANDBOX} is not true",
            f"set {_SANDBOX} to true, or {path} to false",
        )


def vgpu_image(context: Context) -> Iterator[Finding]:
    """No image of the vGPU manager is published: the file must name one."""
    if context.kind not in ("clusterpolicy", "helm"):
        return
    if not (context.on("sandboxWorkloads") and context.on("vgpuManager")):
        return
    image = context.value("vgpuManager.image")
    complete = isinstance(image, str) and "/" in image
    if complete or any(context.value(f"vgpuManager.{part}") for part in ("repository", "version")):
        return  # a complete image, or one that the check of images reports
    yield context.find(
        "image",
        "vgpuManager.enabled",
        "vgpuManager.enabled is true and there is no image: neither vgpuManager.repository nor "
        "vgpuManager.version is set, and the Operator has no default",
        "build the image and set vgpuManager.repository, image and version",
    )


def toolkit_off(context: Context) -> Iterator[Finding]:
    """A version of the toolkit although it is disabled."""
    if context.kind not in ("clusterpolicy", "helm") or context.on("toolkit"):
        return
    if context.own_value("toolkit.version"):
        yield context.find(
            "without-effect",
            "toolkit.version",
            "toolkit.version has no effect while toolkit.enabled is false",
            "set toolkit.enabled to true, or remove the version",
        )


def rolling(context: Context) -> Iterator[Finding]:
    """A rolling update's limits although updates wait until pods are deleted."""
    path = "daemonsets.rollingUpdate.maxUnavailable"
    strategy = context.own_value("daemonsets.updateStrategy")
    if strategy == "OnDelete" and context.own_value(path):
        yield context.find(
            "without-effect",
            path,
            f"{path} has no effect while daemonsets.updateStrategy is OnDelete",
            "set daemonsets.updateStrategy to RollingUpdate, or remove it",
        )


def globals_(context: Context) -> Iterator[Finding]:
    """``global`` of values: shared by charts, and nearly unused by this one."""
    section = context.item_at("global") if context.kind == "helm" else None
    for key in section.value if section is not None and isinstance(section.value, dict) else ():
        if key != _GLOBAL_READ:
            yield context.find(
                "ignored-key",
                f"global.{key}",
                f"global.{key} is ignored: the chart reads only global.{_GLOBAL_READ}, for node feature "
                "discovery",
            )


CHECKS = (machines, vgpu_image, toolkit_off, rolling, globals_)
