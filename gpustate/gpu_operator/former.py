"""Keys that were removed, never existed, or have another name in another kind of file.

First and last releases are extracted from the schemas and templates of the releases, like the data of
:mod:`gpustate.gpu_operator.history`.

Sources:
    NVIDIA/gpu-operator, tags 1.3.0 to v26.7.0: config/crd/bases, deployments/gpu-operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_OLD = ("driver", "toolkit", "devicePlugin", "dcgmExporter", "gfd", "migManager", "validator")
_PRIVILEGED = (*_OLD, "dcgm", "nodeStatusExporter")
_ENVIRONMENTS = (
    *(f"{name}.env[]" for name in ("devicePlugin", "toolkit", "driver", "dcgmExporter", "gfd")),
    *(f"{name}.env[]" for name in ("dcgm", "gds", "migManager", "nodeStatusExporter", "validator")),
    *("sandboxDevicePlugin.env[]", "vfioManager.env[]", "vgpuDeviceManager.env[]"),
    *("vgpuManager.env[]", "driver.manager.env[]", "vgpuManager.driverManager.env[]"),
    "vfioManager.driverManager.env[]",
    *(
        f"validator.{part}.env[]"
        for part in ("cuda", "driver", "plugin", "toolkit", "vfioPCI", "vgpuDevices", "vgpuManager")
    ),
)
_LABELS = "node labels nvidia.com/gpu.deploy.* select its nodes"
BOTH = ("clusterpolicy", "helm")


@dataclass(frozen=True, slots=True)
class Former:
    """A key of earlier releases, with all keys below it.

    Args:
        path: as in the tables.
        first, last: releases.
        why: what to do about it, half a sentence.
        instead: the path to use, if any.
        kinds: of files it applies to.
    """

    path: str
    first: str
    last: str
    why: str
    instead: str = ""
    kinds: tuple[str, ...] = BOTH

    def covers(self, path: str, kind: str) -> bool:
        """Whether a path of a file is this one or below it."""
        mine = path == self.path or path.startswith((f"{self.path}.", f"{self.path}[]"))
        return mine and kind in self.kinds


def _moved(path: str, first: str, last: str, instead: str) -> Former:
    return Former(path, first, last, f"use {instead}", instead)


def _formers() -> Iterator[Former]:
    for name in _OLD:
        first = "v1.7.0" if name in ("migManager", "validator") else "1.3.0"
        yield Former(f"{name}.nodeSelector", first, "v1.7.1", _LABELS)
        yield Former(f"{name}.affinity", first, "v1.7.1", _LABELS)
        yield _moved(f"{name}.tolerations", first, "v1.7.1", "daemonsets.tolerations")
        yield _moved(
            f"{name}.priorityClassName", "v1.7.0", "v1.7.1", "daemonsets.priorityClassName"
        )
        yield Former(
            f"{name}.podSecurityContext",
            first,
            "v1.7.1",
            "a ClusterPolicy has daemonsets.podSecurityContext for all",
            "daemonsets.podSecurityContext",
        )
    for name in _PRIVILEGED:
        yield Former(
            f"{name}.securityContext", "1.3.0", "v1.10.1", "the Operator sets what each needs"
        )
    for path in _ENVIRONMENTS:
        yield Former(
            f"{path}.valueFrom",
            "1.4.0",
            "v23.3.2",
            "driver.secretEnv takes variables of the driver from a Secret, nothing else does",
        )
    for name in ("devicePlugin", "dcgmExporter", "toolkit"):
        yield _moved(f"{name}.repoConfig", "1.4.0", "1.6.2", "driver.repoConfig")
        yield _moved(f"{name}.licensingConfig", "1.6.0", "1.6.2", "driver.licensingConfig")
    yield Former(
        "driver.repoConfig.destinationDir",
        "1.4.0",
        "v1.8.2",
        "the folder depends on the distribution; set only driver.repoConfig.configMapName",
        "driver.repoConfig.configMapName",
    )
    yield _moved("driver.rollingUpdate", "v1.11.1", "v22.9.0", "driver.upgradePolicy")
    yield _moved(
        "driver.use_ocp_driver_toolkit", "v1.9.0", "v1.10.1", "operator.use_ocp_driver_toolkit"
    )
    yield _moved("gfd.migStrategy", "1.3.0", "1.6.2", "mig.strategy")
    yield _moved("operator.migStrategy", "v1.7.0", "v22.9.0", "mig.strategy")
    yield Former("gfd.discoveryIntervalSeconds", "1.3.0", "1.6.2", "GFD runs every 60 seconds")
    yield _moved("operator.deployGFD", "1.3.0", "1.4.0", "gfd.enabled")
    yield _moved("operator.validator", "1.3.0", "1.6.2", "validator")
    yield Former(
        "operator.defaultGPUMode",
        "1.5.0",
        "1.5.1",
        "use sandboxWorkloads.defaultWorkload",
        "sandboxWorkloads.defaultWorkload",
        kinds=("clusterpolicy",),
    )


FORMER = tuple(_formers())


@dataclass(frozen=True, slots=True)
class Expected:
    """A key that people expect but no release ever had."""

    path: str
    why: str
    instead: str = ""
    kinds: tuple[str, ...] = BOTH


_ALL = ("clusterpolicy", "helm", "nvidiadriver", "gpucluster")
_OBJECTS = ("clusterpolicy", "nvidiadriver", "gpucluster")
_PARAMETERS = "set them in a ConfigMap named by kernelModuleConfig.name"
_OPEN = 'write kernelModuleType: "open"'
_SHARING = "configure sharing in the ConfigMap named by devicePlugin.config.name"
_LICENSE = "use {0}secretName, the name of a Secret; {0}{1}, of a ConfigMap, is deprecated"
#: Sections that only the chart has.
CHART_VALUES = (
    *("nfd", "platform", "node-feature-discovery", "clusterPolicy", "gpuCluster", "extraObjects"),
    *("global", "nameOverride", "fullnameOverride", "operator.cleanupCRD", "operator.upgradeCRD"),
    *("operator.logging", "devicePlugin.config.create", "devicePlugin.config.data"),
    *("migManager.config.create", "migManager.config.data", "dcgmExporter.config.create"),
    "dcgmExporter.config.data",
)
_CHART_OF_EXPORTER = "a value of the dcgm-exporter chart; the Operator has dcgmExporter.{}"
EXPECTED = (
    Expected("daemonsets.nodeSelector", _LABELS),
    Expected("daemonsets.affinity", _LABELS),
    Expected("daemonsets.env", "set env per component"),
    Expected("daemonsets.resources", "set resources per component"),
    Expected("extraEnv", _CHART_OF_EXPORTER.format("env"), "dcgmExporter.env", ("helm",)),
    Expected(
        "extraConfigMapVolumes",
        _CHART_OF_EXPORTER.format("config.name"),
        "dcgmExporter.config.name",
        ("helm",),
    ),
    Expected("customMetrics", _CHART_OF_EXPORTER.format("config.data"), "", ("helm",)),
    Expected(
        "cuda", "the Operator installs no CUDA toolkit; it comes with the images of applications"
    ),
    Expected("driver.branch", 'write the branch as driver.version: "580"', "driver.version"),
    Expected("driver.tag", "the tag of the image is driver.version", "driver.version"),
    Expected("driver.imageTag", "the tag of the image is driver.version", "driver.version"),
    Expected("driver.toolkit", "use the section toolkit", "toolkit"),
    Expected("migManager.strategy", "use mig.strategy", "mig.strategy"),
    Expected("devicePlugin.migStrategy", "use mig.strategy", "mig.strategy"),
    Expected("devicePlugin.timeSlicing", "use a ConfigMap", "devicePlugin.config.name"),
    Expected("timeSlicing", "use a ConfigMap", "devicePlugin.config.name"),
    Expected("sharing", "use a ConfigMap", "devicePlugin.config.name"),
    Expected("devicePlugin.mps.enabled", _SHARING, "devicePlugin.config.name"),
    Expected("driver.openKernelModules", _OPEN, "driver.kernelModuleType"),
    Expected("openKernelModules", _OPEN, "kernelModuleType", ("nvidiadriver",)),
    Expected("driver.kernelModuleParams", _PARAMETERS, "driver.kernelModuleConfig.name"),
    Expected("kernelModuleParams", _PARAMETERS, "kernelModuleConfig.name", ("nvidiadriver",)),
    Expected("gpuFeatureDiscovery", "did you mean gfd", "gfd"),
    Expected(
        "dcgmExporter.service.nodePort",
        "the Operator sets the port of the Service; only its type can be chosen",
    ),
    Expected(
        "enabled",
        "create or delete the NVIDIADriver itself to enable or disable the driver",
        "",
        ("nvidiadriver",),
    ),
    Expected(
        "licensingConfig.configMapName",
        _LICENSE.format("licensingConfig.", "name"),
        "licensingConfig.secretName",
        ("nvidiadriver",),
    ),
    Expected(
        "driver.licensingConfig.name",
        _LICENSE.format("driver.licensingConfig.", "configMapName"),
        "driver.licensingConfig.secretName",
    ),
    Expected("driver", "use an object of kind NVIDIADriver", "", ("gpucluster",)),
    Expected(
        "draDriver.enabled", "enable it with gpuCluster.deployCR", "gpuCluster.deployCR", ("helm",)
    ),
    Expected(
        "draDriver.enabled",
        "create or delete the GPUCluster itself to enable or disable it",
        "",
        ("gpucluster",),
    ),
    Expected("spec", "one level too deep: move its keys directly below spec", "", _OBJECTS),
    *(
        Expected(path, "a value of the Helm chart, which an object does not have", "", _OBJECTS)
        for path in CHART_VALUES
    ),
)

#: Keys with another name elsewhere: path in another kind, kinds it is wrong in, the path there.
RENAMED: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("driver.useNvidiaDriverCRD", ("helm",), "driver.nvidiaDriverCRD.enabled"),
    ("driver.nvidiaDriverCRD.enabled", ("clusterpolicy",), "driver.useNvidiaDriverCRD"),
    ("driver.nvidiaDriverCRD", ("clusterpolicy",), "driver.useNvidiaDriverCRD"),
    ("driver.upgradePolicy.podDeletion", ("helm",), "driver.upgradePolicy.gpuPodDeletion"),
    ("upgradePolicy.gpuPodDeletion", ("nvidiadriver",), "upgradePolicy.podDeletion"),
    ("repoConfig.configMapName", ("nvidiadriver",), "repoConfig.name"),
    ("repoConfig.destinationDir", ("nvidiadriver",), "repoConfig.name"),
    ("driver.repoConfig.name", BOTH, "driver.repoConfig.configMapName"),
    ("licensingConfig.configMapName", ("nvidiadriver",), "licensingConfig.name"),
    ("driver.licensingConfig.name", BOTH, "driver.licensingConfig.configMapName"),
    ("virtualTopology.config", ("nvidiadriver",), "virtualTopologyConfig.name"),
    ("virtualTopology", ("nvidiadriver",), "virtualTopologyConfig"),
    ("driver.virtualTopologyConfig.name", BOTH, "driver.virtualTopology.config"),
    ("driver.virtualTopologyConfig", BOTH, "driver.virtualTopology"),
    ("driver.gds", BOTH, "gds"),
    ("driver.gdrcopy", BOTH, "gdrcopy"),
    ("driver.driverType", ("helm",), "driver.nvidiaDriverCRD.driverType"),
    ("driver.nodeSelector", ("helm",), "driver.nvidiaDriverCRD.nodeSelector"),
    ("driver.rdma.useHostMOFED", BOTH, "driver.rdma.useHostMofed"),
    ("driver.gpuDirectRDMA", BOTH, "driver.rdma"),
    ("node-feature-discovery.enabled", ("helm",), "nfd.enabled"),
)
