"""Settings that contradict one another, or that another setting switches off.

Each check is a function of one document; what two documents say of one another is in
:mod:`gpustate.gpu_operator.lint.between`.

Sources:
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/templates (validations.yaml,
    nvidiadriver.yaml), controllers (state_manager.go, nvidiadriver_controller.go,
    object_controls.go). NVIDIA/gpu-operator issues 933, 1795, 2382; pull requests 2384, 2582.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gpustate.formats.words import shown
from gpustate.gpu_operator import history
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding

Check = Callable[[Context], Iterator[Finding]]
_BRANCH = re.compile(r"\d{3,4}")
#: The first nvidia-fs that is built for the open modules only, and the first release with one.
_GDS_OPEN, _GDS_IS_OPEN_SINCE = (2, 17, 5), "v23.9.1"
#: Release since which the device plugin gets them as GDS_ENABLED and GDRCOPY_ENABLED, whoever installed their modules.
_OF_PLUGIN = {"gds": "v22.9.0", "gdrcopy": "v25.10.0"}


def _driver(context: Context) -> str:
    """Prefix of the driver's keys."""
    return "" if context.kind == "nvidiadriver" else "driver."


def nri(context: Context) -> Iterator[Finding]:
    """The NRI plugin needs CDI and the toolkit."""
    if not context.value("cdi.nriPluginEnabled"):
        return
    path = "cdi.nriPluginEnabled"
    for section, what in (("cdi", "CDI"), ("toolkit", "the container toolkit")):
        if not context.on(section):
            yield context.find(
                "contradiction",
                path,
                f"{path} is true and {section}.enabled is false: the NRI plugin is a part of {what}",
                f"set {section}.enabled to true, or {path} to false",
            )


def precompiled(context: Context) -> Iterator[Finding]:
    """Precompiled modules: a branch, and nothing that is built on the node."""
    prefix = _driver(context)
    path = f"{prefix}usePrecompiled"
    if context.value(path) is not True or (prefix and not context.on("driver")):
        return
    for section in ("gds", "gdrcopy"):
        if context.on(section):
            yield context.find(
                "contradiction",
                f"{section}.enabled",
                f"{section}.enabled and {path} are both true, which the Operator refuses",
                f"set {path} to false, or {section}.enabled to false",
            )
    version = str(context.value(f"{prefix}version") or "")
    if not version or version.startswith("sha256:") or _BRANCH.fullmatch(version):
        return
    if not context.of_nvidia(prefix):
        return  # who builds images tags them as they like
    given = context.given(f"{prefix}version") is not None
    what = f"is {shown(version)}" if given else f"is not given, and {shown(version)} then"
    yield context.find(
        "contradiction",
        f"{prefix}version" if given else path,
        f"{prefix}version {what}, and images of precompiled drivers are tagged by branch",
        f'write a branch, such as {prefix}version: "{version.split(".")[0]}"',
    )


def storage(context: Context) -> Iterator[Finding]:
    """nvidia-fs 2.17.5 and later are built for the open modules only."""
    path = f"{_driver(context)}kernelModuleType"
    if context.before(_GDS_IS_OPEN_SINCE) or (_driver(context) and not context.on("driver")):
        return
    version = history.number(str(context.given("gds.version") or ""))
    if version is not None and version < _GDS_OPEN:
        return
    if context.on("gds") and context.given(path) == "proprietary":
        yield context.find(
            "contradiction",
            path,
            f"{path} is proprietary and gds.enabled is true: nvidia-fs needs the open modules",
            f"set {path} to open",
        )


def rdma(context: Context) -> Iterator[Finding]:
    """The host's network driver is waited for only when RDMA is on."""
    prefix = _driver(context)
    if context.given(f"{prefix}rdma.useHostMofed") and not context.value(f"{prefix}rdma.enabled"):
        yield context.find(
            "without-effect",
            f"{prefix}rdma.useHostMofed",
            f"{prefix}rdma.useHostMofed does nothing while {prefix}rdma.enabled is not true",
            f"set {prefix}rdma.enabled to true",
        )


def driver_off(context: Context) -> Iterator[Finding]:
    """What belongs to the driver is off with it; the device plugin goes by two of them too."""
    if context.kind == "nvidiadriver" or context.on("driver"):
        return
    switches = ["driver.rdma.enabled", "driver.useNvidiaDriverCRD", "driver.usePrecompiled"]
    switches += ["driver.nvidiaDriverCRD.enabled"]
    plugin = context.kind != "gpucluster" and context.on("devicePlugin")
    for section, since in _OF_PLUGIN.items():
        if not plugin or context.before(since):
            switches.append(f"{section}.enabled")
    for path in switches:
        if context.given(path) is True:
            yield context.find(
                "without-effect",
                path,
                f"{path} is true and driver.enabled is false: without a driver of the Operator's "
                "it does nothing",
                "set driver.enabled to true, or remove it",
            )


def upgrades(context: Context) -> Iterator[Finding]:
    """Without autoUpgrade, and without drain, the rest says nothing."""
    prefix = f"{_driver(context)}upgradePolicy"
    if context.item_at(prefix) is None:
        return
    deletion = "gpuPodDeletion" if context.kind == "helm" else "podDeletion"
    if not context.value(f"{prefix}.autoUpgrade"):
        for path in ("drain.enable", f"{deletion}.force", f"{deletion}.deleteEmptyDir"):
            if context.given(f"{prefix}.{path}") is True:
                yield context.find(
                    "without-effect",
                    f"{prefix}.{path}",
                    f"{prefix}.{path} does nothing while {prefix}.autoUpgrade is not true",
                    f"set {prefix}.autoUpgrade to true",
                )
        return
    if not context.value(f"{prefix}.drain.enable"):
        for path in ("drain.force", "drain.deleteEmptyDir", "drain.podSelector"):
            if context.given(f"{prefix}.{path}"):
                yield context.find(
                    "without-effect",
                    f"{prefix}.{path}",
                    f"{prefix}.{path} does nothing while {prefix}.drain.enable is not true",
                    f"set {prefix}.drain.enable to true",
                )


def machines(context: Context) -> Iterator[Finding]:
    """Nodes for virtual machines."""
    if context.on("sandboxWorkloads"):
        workload = context.value("sandboxWorkloads.defaultWorkload")
        if workload == "vm-vgpu" and not context.on("vgpuManager"):
            yield context.find(
                "without-effect",
                "sandboxWorkloads.defaultWorkload",
                "sandboxWorkloads.defaultWorkload is vm-vgpu and vgpuManager.enabled is not true: "
                "nothing makes vGPUs",
                "set vgpuManager.enabled to true",
            )
        return
    for path, harmless in (
        ("sandboxWorkloads.defaultWorkload", "container"),
        ("sandboxWorkloads.mode", "kubevirt"),
    ):
        given = context.given(path)
        if given is not None and given != harmless:
            yield context.find(
                "without-effect",
                path,
                f"{path} does nothing while sandboxWorkloads.enabled is not true",
                "set sandboxWorkloads.enabled to true",
            )


def licenses(context: Context) -> Iterator[Finding]:
    """Of a Secret and a ConfigMap the Secret is taken; and what the chart makes of ``false``."""
    prefix = f"{_driver(context)}licensingConfig"
    other = "name" if context.kind == "nvidiadriver" else "configMapName"
    if context.given(f"{prefix}.secretName") and context.given(f"{prefix}.{other}"):
        yield context.find(
            "without-effect",
            f"{prefix}.{other}",
            f"{prefix}.{other} does nothing beside {prefix}.secretName",
            "keep the Secret",
        )
    named = context.given(f"{prefix}.secretName") or context.given(f"{prefix}.{other}")
    of_crd = context.kind == "helm" and context.value("driver.nvidiaDriverCRD.enabled")
    if of_crd and named and context.given(f"{prefix}.nlsEnabled") is False:
        yield context.find(
            "without-effect",
            f"{prefix}.nlsEnabled",
            f"{prefix}.nlsEnabled false becomes true: the chart takes false for nothing said when it "
            "makes an NVIDIADriver",
            "make the NVIDIADriver yourself: driver.nvidiaDriverCRD.deployDefaultCR: false",
        )


def fallback(context: Context) -> Iterator[Finding]:
    """The default NVIDIADriver is for all nodes that no other wants."""
    if context.kind != "nvidiadriver":
        return
    selector = context.given("nodeSelector")
    if context.given("default") is True and selector:
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
    """Which object the chart makes."""
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
            "gpuCluster.deployCR wants driver.nvidiaDriverCRD.enabled, which is not true",
            "set driver.nvidiaDriverCRD.enabled to true, or driver.enabled to false",
        )


CHECKS: tuple[Check, ...] = (
    *(nri, precompiled, storage, rdma, driver_off, upgrades, machines, licenses, fallback),
    chart_switches,
)
