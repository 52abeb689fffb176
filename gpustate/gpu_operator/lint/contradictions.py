"""Settings that contradict one another, or that another setting disables.

Each check is a function of one document. Checks across documents are in
:mod:`gpustate.gpu_operator.lint.between`.

Sources:
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/templates (validations.yaml,
    nvidiadriver.yaml), controllers (state_manager.go, nvidiadriver_controller.go,
    object_controls.go). NVIDIA/gpu-operator issues 933, 1795, 2382; pull requests 2384, 2582.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gpustate.formats.words import quote
from gpustate.gpu_operator import history
from gpustate.gpu_operator.keys import fields
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding
from gpustate.gpu_operator.tables import expanded

Check = Callable[[Context], Iterator[Finding]]
_BRANCH = re.compile(r"\d{3,4}")
#: The first nvidia-fs that supports only the open modules, and the first release with it.
_GDS_OPEN, _GDS_IS_OPEN_SINCE = (2, 17, 5), "v23.9.1"
#: Since this release the device plugin reads GDS_ENABLED and GDRCOPY_ENABLED, whoever installed the modules.
_OF_PLUGIN = {"gds": "v22.9.0", "gdrcopy": "v25.10.0"}

_ONLY_TRUE = "true"
_UPGRADES, _DRAIN = "driver.upgradePolicy.autoUpgrade", "driver.upgradePolicy.drain"
_DELETION = "driver.upgradePolicy.{podDeletion,gpuPodDeletion}.{force,deleteEmptyDir}"
#: Keys, the key that has to be true for them, a value that is harmless, and what else has to be true.
_NEEDS = (
    ("driver.rdma.useHostMofed", "driver.rdma.enabled"),
    (f"{_DRAIN}.enable", _UPGRADES, _ONLY_TRUE),
    (_DELETION, _UPGRADES, _ONLY_TRUE),
    (f"{_DRAIN}.{{force,deleteEmptyDir,podSelector}}", f"{_DRAIN}.enable", "", _UPGRADES),
    ("sandboxWorkloads.defaultWorkload", "sandboxWorkloads.enabled", "container"),
    ("sandboxWorkloads.mode", "sandboxWorkloads.enabled", "kubevirt"),
    *(
        (f"{section}.config.data", f"{section}.config.create")
        for section in ("devicePlugin", "migManager", "dcgmExporter")
    ),
)


def _driver(context: Context) -> str:
    """Prefix of the driver's keys."""
    return "" if context.kind == "nvidiadriver" else "driver."


def nri(context: Context) -> Iterator[Finding]:
    """The NRI plugin needs CDI and the toolkit."""
    if not context.value("cdi.nriPluginEnabled"):
        return
    path = "cdi.nriPluginEnabled"
    for section, component in (("cdi", "CDI"), ("toolkit", "the container toolkit")):
        if not context.on(section):
            yield context.find(
                "contradiction",
                path,
                f"{path} is true and {section}.enabled is false: the NRI plugin needs {component}",
                f"set {section}.enabled to true, or {path} to false",
            )


def precompiled(context: Context) -> Iterator[Finding]:
    """Precompiled modules need a branch, and exclude modules built on the node."""
    prefix = _driver(context)
    path = f"{prefix}usePrecompiled"
    if context.value(path) is not True or (prefix and not context.on("driver")):
        return
    for section in ("gds", "gdrcopy"):
        if context.on(section):
            yield context.find(
                "contradiction",
                f"{section}.enabled",
                f"{section}.enabled and {path} are mutually exclusive, and both are true",
                f"set {path} to false, or {section}.enabled to false",
            )
    version = str(context.value(f"{prefix}version") or "")
    if not version or version.startswith("sha256:") or _BRANCH.fullmatch(version):
        return
    if not context.is_nvidia_image(prefix):
        return  # custom images may have any tag
    is_set = context.own_value(f"{prefix}version") is not None
    problem = f"is {quote(version)}" if is_set else f"is not given, and {quote(version)} then"
    yield context.find(
        "contradiction",
        f"{prefix}version" if is_set else path,
        f"{prefix}version {problem}, and images of precompiled drivers are tagged by branch",
        f'write a branch, such as {prefix}version: "{version.split(".")[0]}"',
    )


def storage(context: Context) -> Iterator[Finding]:
    """nvidia-fs 2.17.5 and later support the open modules only."""
    path = f"{_driver(context)}kernelModuleType"
    if context.before(_GDS_IS_OPEN_SINCE) or (_driver(context) and not context.on("driver")):
        return
    version = history.number(str(context.own_value("gds.version") or ""))
    if version is not None and version < _GDS_OPEN:
        return
    if context.on("gds") and context.own_value(path) == "proprietary":
        yield context.find(
            "contradiction",
            path,
            f"{path} is proprietary and gds.enabled is true: nvidia-fs needs the open modules",
            f"set {path} to open",
        )


def needs(context: Context) -> Iterator[Finding]:
    """Settings without effect while the key that they need is not true."""
    for keys, needed, *more in _NEEDS:
        harmless, also = (*more, "", "")[:2]
        schema = fields(context.kind)
        of_driver = context.kind == "nvidiadriver"
        for key in expanded(keys):
            path, required = (
                name.removeprefix("driver.") if of_driver else name for name in (key, needed)
            )
            value = context.own_value(path) if path in schema else None
            asks = value is True if harmless == _ONLY_TRUE else value and value != harmless
            if also and not context.value(also.removeprefix("driver.") if of_driver else also):
                continue
            if asks and not context.value(required):
                problem = f"{path} has no effect while {required} is not true"
                yield context.find("without-effect", path, problem, f"set {required} to true")


def driver_off(context: Context) -> Iterator[Finding]:
    """Modules that need the driver; the device plugin reads two of these settings too."""
    if context.kind == "nvidiadriver" or context.on("driver"):
        return
    switches = ["driver.rdma.enabled", "driver.useNvidiaDriverCRD", "driver.usePrecompiled"]
    switches += ["driver.nvidiaDriverCRD.enabled"]
    plugin = context.kind != "gpucluster" and context.on("devicePlugin")
    for section, since in _OF_PLUGIN.items():
        if not plugin or context.before(since):
            switches.append(f"{section}.enabled")
    for path in switches:
        if context.own_value(path) is True:
            yield context.find(
                "without-effect",
                path,
                f"{path} is true and driver.enabled is false: it has no effect without a driver "
                "from the Operator",
                "set driver.enabled to true, or remove it",
            )


def machines(context: Context) -> Iterator[Finding]:
    """Nodes for virtual machines."""
    path = "sandboxWorkloads.defaultWorkload"
    if not context.on("sandboxWorkloads") or context.on("vgpuManager"):
        return
    if context.value(path) == "vm-vgpu":
        yield context.find(
            "without-effect",
            path,
            f"{path} is vm-vgpu and vgpuManager.enabled is not true: nothing creates vGPUs",
            "set vgpuManager.enabled to true",
        )


def licenses(context: Context) -> Iterator[Finding]:
    """A Secret takes precedence over a ConfigMap; and the chart's handling of ``false``."""
    prefix = f"{_driver(context)}licensingConfig"
    map_key = "name" if context.kind == "nvidiadriver" else "configMapName"
    if context.own_value(f"{prefix}.secretName") and context.own_value(f"{prefix}.{map_key}"):
        yield context.find(
            "without-effect",
            f"{prefix}.{map_key}",
            f"{prefix}.{map_key} has no effect together with {prefix}.secretName",
            "keep the Secret",
        )
    named = context.own_value(f"{prefix}.secretName") or context.own_value(f"{prefix}.{map_key}")
    of_crd = context.kind == "helm" and context.value("driver.nvidiaDriverCRD.enabled")
    if of_crd and named and context.own_value(f"{prefix}.nlsEnabled") is False:
        yield context.find(
            "without-effect",
            f"{prefix}.nlsEnabled",
            f"{prefix}.nlsEnabled false becomes true: the chart treats false as not set when it "
            "creates an NVIDIADriver",
            "set driver.nvidiaDriverCRD.deployDefaultCR to false and create the NVIDIADriver yourself",
        )


def fallback(context: Context) -> Iterator[Finding]:
    """The default NVIDIADriver is for all nodes that no other one selects."""
    if context.kind != "nvidiadriver":
        return
    selector = context.own_value("nodeSelector")
    if context.own_value("default") is True and selector:
        yield context.find(
            "contradiction",
            "nodeSelector",
            "nodeSelector in the default NVIDIADriver, which the API server refuses",
            "remove it, or set default to false",
        )
    if isinstance(selector, dict) and _OWNER in selector:
        yield context.find(
            "contradiction", "nodeSelector", f"nodeSelector uses the Operator's own label {_OWNER}"
        )


_OWNER = "nvidia.com/gpu-operator.driver.owner"


def chart_switches(context: Context) -> Iterator[Finding]:
    """Switches that select the object the chart creates."""
    if context.kind != "helm" or not context.value("gpuCluster.deployCR"):
        return
    if context.value("clusterPolicy.deployCR"):
        yield context.find(
            "contradiction",
            "gpuCluster.deployCR",
            "gpuCluster.deployCR and clusterPolicy.deployCR are both true, which the chart refuses",
            "set clusterPolicy.deployCR to false",
        )
    if context.on("driver") and not context.value("driver.nvidiaDriverCRD.enabled"):
        yield context.find(
            "contradiction",
            "gpuCluster.deployCR",
            "gpuCluster.deployCR requires driver.nvidiaDriverCRD.enabled, which is not true",
            "set driver.nvidiaDriverCRD.enabled to true, or driver.enabled to false",
        )


CHECKS: tuple[Check, ...] = (
    *(nri, precompiled, storage, needs, driver_off, machines, licenses, fallback, chart_switches),
)
