"""Keys that people expect, that earlier releases had, or that have another name in another kind of file.

Sources:
    NVIDIA/gpu-operator, tags 1.3.0 to v26.7.0: config/crd/bases, deployments/gpu-operator.
"""

from __future__ import annotations

from dataclasses import dataclass

BOTH = ("clusterpolicy", "helm")


@dataclass(frozen=True, slots=True)
class Expected:
    """A key that people expect, and what to write instead."""

    path: str
    why: str
    instead: str = ""
    kinds: tuple[str, ...] = BOTH


_LABELS = "node labels nvidia.com/gpu.deploy.* select its nodes"
_COMPONENTS = (
    *(
        "driver",
        "toolkit",
        "devicePlugin",
        "dcgm",
        "dcgmExporter",
        "gfd",
        "migManager",
        "validator",
    ),
    "nodeStatusExporter",
)
_OF_ALL = ("tolerations", "priorityClassName", "podSecurityContext")
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
    *(
        Expected(f"{name}.{key}", f"use daemonsets.{key}, for all components", f"daemonsets.{key}")
        for name in _COMPONENTS
        for key in _OF_ALL
    ),
    *(
        Expected(f"{name}.{key}", why)
        for name in _COMPONENTS
        for key, why in (
            ("nodeSelector", _LABELS),
            ("affinity", _LABELS),
            ("securityContext", "the Operator sets what each component needs"),
        )
        if (name, key) != ("driver", "nodeSelector")
    ),
    Expected(
        "dcgmExporter.serviceMonitor.metricRelabelings",
        "no release has it; write a ServiceMonitor or a PodMonitor of your own",
    ),
    Expected("driver.rollingUpdate", "use driver.upgradePolicy", "driver.upgradePolicy"),
    Expected("gfd.migStrategy", "use mig.strategy", "mig.strategy"),
    Expected("operator.migStrategy", "use mig.strategy", "mig.strategy"),
    Expected("operator.deployGFD", "use gfd.enabled", "gfd.enabled"),
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
