"""Type and support of every field of ClusterPolicy and NVIDIADriver.

``[]`` in a path is any element of a list. A test compares paths, types, choices, defaults and
minima with the custom resource definitions, so that a field added upstream is noticed.

Sources:
    NVIDIA/gpu-operator v26.7: config/crd/bases.
"""

from __future__ import annotations

from gpustate.gpu_operator.blocks import (
    COMPONENT,
    ENV,
    IMAGE,
    IMAGE_WHY,
    POD_WHY,
    PROBE,
    SECURITY,
    SERVICE_MONITOR,
    TOLERATIONS,
    Field,
    Fields,
    Support,
    as_objects,
    dead,
    deprecated,
    env,
    honoured,
    in_containers,
    in_objects,
    kubernetes,
    later,
    no_meaning,
    under,
    with_support,
)

_WAVES = "size of the waves, with autoUpgrade; --serial takes precedence"
_OUT = "nodes out of service at a time, with autoUpgrade; --max-unavailable takes precedence"
_GPU_PODS = "{} pods with GPUs are evicted, with autoUpgrade; {} takes precedence"
_NODE = "{} all pods are evicted, with autoUpgrade and an enabled drain; {} takes precedence"


def _evicted(path: str, text: str) -> dict[str, Field]:
    """How pods are evicted."""
    return {
        f"{path}.force": honoured(
            "boolean", text.format("whether without a controller", "--drain-force"), default=False
        ),
        f"{path}.timeoutSeconds": honoured(
            "integer", text.format("how long", "--drain-timeout"), default=300, minimum=0
        ),
        f"{path}.deleteEmptyDir": honoured(
            "boolean",
            text.format("whether with emptyDir volumes", "--delete-emptydir-data"),
            default=False,
        ),
    }


def _upgrade_policy(auto_upgrade: bool) -> dict[str, Field]:
    return {
        "upgradePolicy.autoUpgrade": honoured(
            "boolean", "whether the settings below apply to gpustate apply", default=auto_upgrade
        ),
        "upgradePolicy.maxParallelUpgrades": honoured("integer", _WAVES, default=1, minimum=0),
        "upgradePolicy.maxUnavailable": honoured("int-or-string", _OUT, default="25%"),
        "upgradePolicy.waitForCompletion.podSelector": honoured(
            "string",
            "pods that complete before any is evicted, with autoUpgrade; --wait-selector takes precedence",
        ),
        "upgradePolicy.waitForCompletion.timeoutSeconds": honoured(
            "integer",
            "how long they are waited for, with autoUpgrade; --wait-timeout takes precedence",
            default=0,
            minimum=0,
        ),
        **_evicted("upgradePolicy.podDeletion", _GPU_PODS),
        "upgradePolicy.drain.enable": honoured(
            "boolean",
            "whether the whole node is drained if pods with GPUs do not leave, with autoUpgrade",
            default=False,
        ),
        **_evicted("upgradePolicy.drain", _NODE),
        "upgradePolicy.drain.podSelector": honoured(
            "string", _NODE.format("by which labels", "--pod-selector")
        ),
    }


#: In v26.7 only generated code mentions it, and no manifest.
_UNREAD = "nothing in the Operator reads it"
_PROXY = (
    "an environment variable of the driver container; the node's own proxy settings apply instead"
)
_SET = "the DaemonSets of the driver"
_GDS = under(
    "gds",
    in_containers("driver", {**IMAGE, **ENV}, _SET),
    {
        "enabled": honoured("boolean", "gds, when it is true"),
        "version": honoured("string", "gds.version"),
        "args": dead("list[string]", _UNREAD),
    },
)
_GDRCOPY = under(
    "gdrcopy",
    in_containers("driver", {**IMAGE, **ENV}, _SET),
    {
        "enabled": honoured("boolean", "gdrcopy, when it is true"),
        "version": honoured("string", "gdrcopy.version"),
        "args": dead("list[string]", _UNREAD),
    },
)
_MANAGER = "the driver manager is a container; gpustate unloads drivers itself"
_CERTIFICATES = (
    "certificates of a package mirror for the driver container; gpustate adds none to a node: use "
    "update-ca-certificates or update-ca-trust"
)
#: The Operator looks for these probes in its container, which has none.
_NO_PROBE = with_support(Support.KUBERNETES, "the driver container has no such probe", PROBE)
#: Fields that ClusterPolicy's ``driver`` and NVIDIADriver share.
_DRIVER: Fields = {
    **in_containers("driver", {**COMPONENT, **env(later("string", _PROXY))}, _SET),
    **in_containers("driver", under("startupProbe", PROBE), _SET),
    **under("livenessProbe", _NO_PROBE),
    **under("readinessProbe", _NO_PROBE),
    "version": honoured("string", "driver.version, or driver.branch if only a branch is set"),
    "kernelModuleType": honoured(
        "string", "driver.module_type", choices=("auto", "open", "proprietary"), default="auto"
    ),
    "kernelModuleConfig.name": honoured(
        "string", "driver.parameters, from the ConfigMap in the same file"
    ),
    "usePrecompiled": honoured("boolean", "driver.precompiled"),
    "useOpenKernelModules": dead(
        "boolean",
        "replaced by kernelModuleType",
        instead="kernelModuleType",
        until="v24.9.2",
    ),
    "rdma.enabled": honoured("boolean", "peermem, when it is true"),
    **in_containers(
        "driver",
        {
            "rdma.useHostMofed": no_meaning("boolean", "the host's network driver is always used"),
            "certConfig.name": later("string", _CERTIFICATES),
            "secretEnv": later("string", _PROXY),
        },
        _SET,
    ),
    "licensingConfig.secretName": honoured(
        "string",
        "vgpu-guest, from the Secret's configuration file, and its token in the folder next to the file",
    ),
    "licensingConfig.nlsEnabled": honoured("boolean", "vgpu-guest.token_file, when it is true"),
    **in_containers(
        "driver",
        under("manager", with_support(Support.NO_MEANING, _MANAGER, {**IMAGE, **ENV})),
        _SET,
    ),
}
_LICENSE_MAP = "vgpu-guest reads gridd.conf from it; put the token in a Secret named by licensingConfig.secretName"
_REPOSITORY_FILES = (
    "distribution packages of the driver container; a node uses its own package sources, and the states "
    "driver-repository and toolkit-repository (origin, url, key) configure NVIDIA's"
)
_TOPOLOGY = "the vGPU topology daemon has no state yet"


_VALIDATORS = "the DaemonSets of the validator"


def _simple(section: str, detail: str) -> dict[str, Field]:
    """A component that runs as a pod and has no state yet."""
    return under(
        section,
        COMPONENT,
        {"enabled": later("boolean", detail), "version": later("string", detail)},
    )


def _pods(section: str, detail: str) -> dict[str, Field]:
    """A component that runs as pods of a DaemonSet, and is off by default."""
    return under(section, as_objects(detail, {**COMPONENT, "enabled": later("boolean", detail)}))


def _validator() -> dict[str, Field]:
    fields = in_containers("validator", under("validator", COMPONENT), _VALIDATORS)
    fields.update(
        in_containers(
            "validator",
            under("validator.toolkit", env(later("string", "the validator has no such setting"))),
            _VALIDATORS,
        )
    )
    fields.update(
        under(
            "validator.driver",
            env(honoured("string", "dev-char, unless DISABLE_DEV_CHAR_SYMLINK_CREATION is true")),
        )
    )
    fields.update(
        under("validator.cuda", env(honoured("string", "validator.cuda, from WITH_WORKLOAD")))
    )
    fields.update(in_containers("validator", under("validator.plugin", ENV), _VALIDATORS))
    why = "the validator checks containers, not virtual machines"
    for part in ("vfioPCI", "vgpuManager", "vgpuDevices"):
        fields.update(
            in_containers(
                "validator",
                under(f"validator.{part}", env(later("string", why))),
                "the DaemonSet nvidia-sandbox-validator",
            )
        )
    return fields


_VGPU_HOST = "host vGPUs are unsupported; nodes with workload vm-vgpu are not changed"
_MACHINES = "vfio and kata instead of driver and toolkit, on nodes with workload vm-passthrough"
_SANDBOX_PLUGIN = "the DaemonSet nvidia-sandbox-device-plugin-daemonset, if mode is kubevirt"
_KATA_PLUGIN = "the DaemonSet nvidia-kata-sandbox-device-plugin-daemonset, if mode is kata"
_CC_MANAGER = "the DaemonSet nvidia-cc-manager, if mode is kata"
_CC = f"kata.runtime confidential, if mode is kata and both are set; {_CC_MANAGER}"
_KATA = "the Operator no longer runs the Kata manager"
_KATA_UNTIL = "v26.3.3"
_PLUGIN = "the DaemonSet nvidia-device-plugin-daemonset"
_DISCOVERY = "the DaemonSet gpu-feature-discovery"
_ENGINE = "the DaemonSet nvidia-dcgm"
_EXPORTER = "the DaemonSet nvidia-dcgm-exporter"
_EXPORTER_SERVICE = "the Service nvidia-dcgm-exporter"
_MONITORS = "the ServiceMonitors and the PrometheusRule of the exporters"
_STATUS = "the DaemonSet nvidia-node-status-exporter"
_DAEMON_SETS = "the DaemonSets of all components"
_TOOLKIT = "the DaemonSet nvidia-container-toolkit-daemonset"
_NRI = later(
    "boolean",
    "the NRI plugin runs inside the toolkit's container, not as a unit of the host; the runtimes "
    "are configured instead",
    default=False,
)
_DRIVER_MANAGER = with_support(Support.NO_MEANING, _MANAGER, {**IMAGE, **ENV})
_LABELLED = "on nodes with a label that names a configuration"
_MIG_DEFAULT = (
    "never: it may be just the API server's default, and would remove every MIG layout; the label "
    "nvidia.com/mig.config in a Node object beside the file is carried out"
)

CLUSTER_POLICY: Fields = {
    **under(
        "operator",
        {
            "runtimeClass": honoured("string", "handler of every runtime", default="nvidia"),
            # Unused after v1.8.2, and required by the schema long after that.
            "defaultRuntime": dead("string", "the runtime is detected", until="v24.9.2"),
            "labels": dead("map[string]", _UNREAD),
            "annotations": dead("map[string]", _UNREAD),
            "use_ocp_driver_toolkit": kubernetes("boolean", "about OpenShift only"),
        },
        under(
            "initContainer",
            with_support(
                Support.DEAD, "the Operator no longer has this container", IMAGE, until="v25.10.1"
            ),
        ),
        under("metrics.serviceMonitor", SERVICE_MONITOR),
    ),
    **under(
        "hostPaths",
        {
            "rootFS": in_objects("string", f"{_DAEMON_SETS}: where they mount the node's root"),
            **in_containers(
                "driver",
                {"driverInstallDir": no_meaning("string", "the root of the driver container")},
                f"{_DAEMON_SETS}: where they mount the driver's root",
            ),
            "kubeletRootDir": in_objects(
                "string", f"{_EXPORTER}: its mount of pod-resources", default="/var/lib/kubelet"
            ),
        },
    ),
    **under(
        "daemonsets",
        as_objects(_DAEMON_SETS, {**TOLERATIONS, **under("podSecurityContext", SECURITY)}),
        {
            "labels": in_objects("map[string]", _DAEMON_SETS),
            "annotations": in_objects("map[string]", _DAEMON_SETS),
            "priorityClassName": in_objects("string", _DAEMON_SETS),
            "updateStrategy": in_objects(
                "string",
                _DAEMON_SETS,
                choices=("RollingUpdate", "OnDelete"),
                default="RollingUpdate",
            ),
            "rollingUpdate.maxUnavailable": in_objects("string", _DAEMON_SETS),
        },
    ),
    **under(
        "driver",
        _DRIVER,
        _upgrade_policy(auto_upgrade=False),
        {
            "enabled": honoured(
                "boolean", "nouveau, driver-repository, driver, persistenced and fabric-manager"
            ),
            "useNvidiaDriverCRD": honoured("boolean", "read the NVIDIADriver in the same file"),
            **in_containers(
                "driver",
                {
                    "repoConfig.configMapName": later("string", _REPOSITORY_FILES),
                    "virtualTopology.config": later("string", _TOPOLOGY),
                },
                _SET,
            ),
            "licensingConfig.configMapName": deprecated(
                "string", _LICENSE_MAP, instead="licensingConfig.secretName"
            ),
        },
    ),
    **under(
        "toolkit",
        in_containers("toolkit", COMPONENT, _TOOLKIT),
        env(honoured("string", "container-toolkit and the runtimes, for supported names")),
        {
            "enabled": honoured(
                "boolean", "toolkit-repository, container-toolkit and the runtimes"
            ),
            "version": honoured("string", "container-toolkit.version"),
            "args": dead("list[string]", _UNREAD, until="v1.11.1"),
            **in_containers(
                "toolkit",
                {
                    "installDir": no_meaning(
                        "string", "packages install to /usr/bin", default="/usr/local/nvidia"
                    )
                },
                _TOOLKIT,
            ),
        },
    ),
    **under(
        "cdi",
        {
            "enabled": honoured("boolean", "cdi, and the default runtime", default=True),
            "default": dead(
                "boolean",
                "replaced by cdi.enabled",
                default=False,
                instead="enabled",
                until="v25.3.4",
            ),
            **in_containers("toolkit", {"nriPluginEnabled": _NRI}, _TOOLKIT),
        },
    ),
    **under(
        "devicePlugin",
        as_objects(_PLUGIN, COMPONENT),
        {
            "enabled": in_objects("boolean", _PLUGIN),
            "config.name": honoured(
                "string", "device-plugin-config.configs, from the ConfigMap in the same file"
            ),
            "config.default": honoured("string", "device-plugin-config.default"),
            "mps.root": in_objects(
                "string",
                "the DaemonSets of the device plugin and its MPS daemon",
                default="/run/nvidia/mps",
            ),
        },
    ),
    **under(
        "gfd",
        as_objects(_DISCOVERY, COMPONENT),
        {"enabled": honoured("boolean", f"gpu-labels, and {_DISCOVERY}")},
    ),
    "mig.strategy": honoured(
        "string", "gpu-labels.mig_strategy", choices=("none", "single", "mixed")
    ),
    **under(
        "migManager",
        in_containers("migManager", COMPONENT, "the DaemonSet nvidia-mig-manager"),
        env(honoured("string", f"mig.in_use, from WITH_REBOOT, {_LABELLED}")),
        {
            "enabled": honoured("boolean", f"mig, {_LABELLED}"),
            "config.name": honoured("string", f"mig.file, from the ConfigMap, {_LABELLED}"),
            "config.default": later(
                "string", _MIG_DEFAULT, choices=("all-disabled", ""), default="all-disabled"
            ),
            "gpuClientsConfig.name": honoured("string", f"mig.clients, {_LABELLED}"),
        },
    ),
    **under(
        "dcgm",
        as_objects(_ENGINE, COMPONENT),
        {
            "enabled": honoured("boolean", f"dcgm, when it is true; when it is not set, {_ENGINE}"),
            "version": honoured("string", f"dcgm.version, or the image of {_ENGINE}"),
        },
    ),
    "dcgm.hostPort": dead("integer", "the port is 5555", until="v24.3.0"),
    **under(
        "dcgmExporter",
        as_objects(_EXPORTER, COMPONENT),
        under("serviceMonitor", as_objects(_MONITORS, SERVICE_MONITOR)),
        {
            "enabled": honoured(
                "boolean", f"dcgm-exporter, when it is true; when it is not set, {_EXPORTER}"
            ),
            "version": honoured("string", f"dcgm-exporter.version, or the image of {_EXPORTER}"),
            "annotations": in_objects("map[string]", _EXPORTER),
            "config.name": honoured("string", "dcgm-exporter.counters, from the ConfigMap"),
            "enablePodLabels": in_objects("boolean", _EXPORTER),
            "enablePodUID": in_objects("boolean", _EXPORTER),
            "podLabelAllowlistRegex": in_objects("list[string]", _EXPORTER),
            "hostPID": in_objects("boolean", _EXPORTER),
            "hpcJobMapping.enabled": honoured("boolean", "dcgm-exporter.job_mapping"),
            "hpcJobMapping.directory": honoured("string", "dcgm-exporter.job_mapping"),
            "service.type": in_objects("string", _EXPORTER_SERVICE),
            "service.internalTrafficPolicy": in_objects("string", _EXPORTER_SERVICE),
        },
    ),
    **_pods("nodeStatusExporter", f"{_STATUS}, when it is enabled"),
    **_validator(),
    **_GDS,
    **_GDRCOPY,
    "sandboxWorkloads.enabled": honoured("boolean", _MACHINES),
    "sandboxWorkloads.defaultWorkload": honoured(
        "string",
        f"{_MACHINES}; vm-vgpu is refused",
        choices=("container", "vm-passthrough", "vm-vgpu"),
        default="container",
    ),
    "sandboxWorkloads.mode": honoured(
        "string", "kata, when it is 'kata'", choices=("kubevirt", "kata"), default="kubevirt"
    ),
    **in_containers(
        "vgpuManager",
        {
            **_simple("vgpuManager", _VGPU_HOST),
            "vgpuManager.kernelModuleConfig.name": later("string", _VGPU_HOST),
            **under("vgpuManager.driverManager", _DRIVER_MANAGER),
        },
        "the DaemonSet nvidia-vgpu-manager-daemonset",
    ),
    **in_containers(
        "vgpuDeviceManager",
        {
            **_simple("vgpuDeviceManager", _VGPU_HOST),
            "vgpuDeviceManager.config.name": later("string", _VGPU_HOST),
            "vgpuDeviceManager.config.default": later("string", _VGPU_HOST, default="default"),
        },
        "the DaemonSet nvidia-vgpu-device-manager",
    ),
    **in_containers(
        "vfioManager",
        {
            **under("vfioManager", COMPONENT),
            **under("vfioManager.driverManager", _DRIVER_MANAGER),
        },
        "the DaemonSet nvidia-vfio-manager",
    ),
    "vfioManager.enabled": honoured("boolean", "vfio, on nodes with workload vm-passthrough"),
    **_pods("sandboxDevicePlugin", _SANDBOX_PLUGIN),
    **_pods("kataSandboxDevicePlugin", _KATA_PLUGIN),
    **under(
        "ccManager",
        as_objects(_CC_MANAGER, COMPONENT),
        {"enabled": honoured("boolean", _CC)},
    ),
    "ccManager.defaultMode": honoured("string", _CC, choices=("on", "off", "devtools")),
    **with_support(Support.DEAD, _KATA, _simple("kataManager", _KATA), until=_KATA_UNTIL),
    "kataManager.config.artifactsDir": dead(
        "string",
        _KATA,
        default="/opt/nvidia-gpu-operator/artifacts/runtimeclasses",
        until=_KATA_UNTIL,
    ),
    "kataManager.config.runtimeClasses[].name": dead("string", _KATA, until=_KATA_UNTIL),
    "kataManager.config.runtimeClasses[].nodeSelector": dead(
        "map[string]", _KATA, until=_KATA_UNTIL
    ),
    "kataManager.config.runtimeClasses[].artifacts.url": dead("string", _KATA, until=_KATA_UNTIL),
    "kataManager.config.runtimeClasses[].artifacts.pullSecret": dead(
        "string", _KATA, until=_KATA_UNTIL
    ),
    "psa.enabled": in_objects("boolean", "labels of the Namespace"),
    "psp.enabled": dead(
        "boolean", "PodSecurityPolicy was removed from Kubernetes", until="v23.9.2"
    ),
}

_AFFINITY = "preferredDuringSchedulingIgnoredDuringExecution[]"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]"
_SELECTS = (
    "the inventory selects the nodes; a selector is refused, because its labels are unsupported"
)


def _expressions(prefix: str) -> dict[str, Field]:
    return {
        f"{prefix}.{kind}[].{name}": Field(
            "list[string]" if name == "values" else "string",
            _SELECTS if prefix.startswith("required") else "a preference of the scheduler",
            Support.HONOURED if prefix.startswith("required") else Support.KUBERNETES,
        )
        for kind in ("matchExpressions", "matchFields")
        for name in ("key", "operator", "values")
    }


NVIDIA_DRIVER: Fields = {
    **_DRIVER,
    **_upgrade_policy(auto_upgrade=True),
    **in_containers(
        "driver",
        {
            **TOLERATIONS,
            **under("podSecurityContext", SECURITY),
            "labels": kubernetes("map[string]", POD_WHY),
            "annotations": kubernetes("map[string]", POD_WHY),
            "priorityClassName": kubernetes("string", POD_WHY),
            "image": kubernetes("string", IMAGE_WHY, default="nvcr.io/nvidia/driver"),
            "repoConfig.name": later("string", _REPOSITORY_FILES),
            "virtualTopologyConfig.name": later("string", _TOPOLOGY),
        },
        _SET,
    ),
    **_GDS,
    **_GDRCOPY,
    **under("nodeAffinity", _expressions(f"{_AFFINITY}.preference"), _expressions(_REQUIRED)),
    f"nodeAffinity.{_AFFINITY}.weight": kubernetes("integer", "a preference of the scheduler"),
    "default": no_meaning("boolean", "precedence of objects on a node", default=False),
    "driverType": honoured(
        "string",
        "driver, when it is 'gpu'; other values are refused",
        choices=("gpu", "vgpu", "vgpu-host-manager"),
        default="gpu",
    ),
    "nodeSelector": honoured("map[string]", _SELECTS),
    "licensingConfig.name": deprecated(
        "string", _LICENSE_MAP, instead="licensingConfig.secretName"
    ),
}
