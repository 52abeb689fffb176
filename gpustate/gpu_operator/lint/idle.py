"""Settings that nothing looks at while another one stands as it does.

Surprising: upstream's own sample and chart switch on components for virtual machines and leave
``sandboxWorkloads`` off. Where a file says both, that is a note and no accusation.

Sources:
    NVIDIA/gpu-operator v26.7.0: controllers/state_manager.go (isStateEnabled),
    controllers/object_controls.go (applyUpdateStrategyConfig), internal/image/image.go,
    deployments/gpu-operator (its templates; of ``global`` only node feature discovery's read
    something, ``imagePullSecrets``).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding
from gpustate.gpu_operator.records import records

_SANDBOX = "sandboxWorkloads.enabled"
#: On nodes for virtual machines only.
_OF_MACHINES = ("vgpuManager", "vgpuDeviceManager", "vfioManager", "ccManager")
_GLOBAL_READ = "imagePullSecrets"


def machines(context: Context) -> Iterator[Finding]:
    """Components for virtual machines, without nodes for them."""
    if context.kind not in ("clusterpolicy", "helm") or context.on("sandboxWorkloads"):
        return
    for section in _OF_MACHINES:
        path = f"{section}.enabled"
        record = records(context.kind).get(path)
        if record is None or context.given(path) is not True or record.default is True:
            continue
        said = context.given(_SANDBOX) is False
        yield context.find(
            "idle" if said else "without-effect",
            path,
            f"{path} does nothing while {_SANDBOX} is not true",
            f"set {_SANDBOX} to true, or {path} to false",
        )


def vgpu_image(context: Context) -> Iterator[Finding]:
    """Nobody publishes an image of the vGPU manager: the file has to name one."""
    if context.kind not in ("clusterpolicy", "helm"):
        return
    if not (context.on("sandboxWorkloads") and context.on("vgpuManager")):
        return
    image = context.value("vgpuManager.image")
    whole = isinstance(image, str) and "/" in image
    if whole or any(context.value(f"vgpuManager.{part}") for part in ("repository", "version")):
        return  # an image by itself, or one of which the check of images says what is missing
    yield context.find(
        "image",
        "vgpuManager.enabled",
        "vgpuManager.enabled is true and there is no image: neither vgpuManager.repository nor "
        "vgpuManager.version is given, and the Operator brings none",
        "build the image and give vgpuManager.repository, image and version",
    )


def toolkit_off(context: Context) -> Iterator[Finding]:
    """The version of a toolkit that is not installed."""
    if context.kind not in ("clusterpolicy", "helm") or context.on("toolkit"):
        return
    if context.given("toolkit.version"):
        yield context.find(
            "without-effect",
            "toolkit.version",
            "toolkit.version does nothing while toolkit.enabled is false",
            "set toolkit.enabled to true, or remove the version",
        )


def rolling(context: Context) -> Iterator[Finding]:
    """A pace for updates that wait until somebody deletes the pods."""
    path = "daemonsets.rollingUpdate.maxUnavailable"
    strategy = context.given("daemonsets.updateStrategy")
    if strategy == "OnDelete" and context.given(path):
        yield context.find(
            "without-effect",
            path,
            f"{path} does nothing while daemonsets.updateStrategy is OnDelete",
            "set daemonsets.updateStrategy to RollingUpdate, or remove it",
        )


def globals_(context: Context) -> Iterator[Finding]:
    """``global`` of values: charts share it, and this one reads next to nothing of it."""
    found = context.item_at("global") if context.kind == "helm" else None
    for key in found.value if found is not None and isinstance(found.value, dict) else ():
        if key != _GLOBAL_READ:
            yield context.find(
                "ignored-key",
                f"global.{key}",
                f"global.{key} is ignored: of global the chart reads only {_GLOBAL_READ}, and that "
                "for node feature discovery",
            )


CHECKS = (machines, vgpu_image, toolkit_off, rolling, globals_)
