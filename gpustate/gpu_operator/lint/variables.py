"""Environment variables of the components other than the toolkit: misspelt, or in conflict with a setting.

An unknown variable gets no finding: containers accept proxies, log levels and whatever a newer image
reads. Only a name similar to one that the component reads does.

Surprising: since v25.3.3 ``devicePlugin.env`` is set after ``mig.strategy``, so its ``MIG_STRATEGY``
takes precedence in the device plugin. In GPU feature discovery ``mig.strategy`` is set last and takes
precedence.

Sources:
    NVIDIA/gpu-operator v23.9.0 to v26.7.0: cmd/nvidia-validator, controllers/object_controls.go
    (TransformDevicePlugin, TransformGPUDiscoveryPlugin). NVIDIA/k8s-device-plugin v0.20:
    cmd/nvidia-device-plugin, cmd/gpu-feature-discovery, cmd/config-manager. NVIDIA/mig-parted:
    cmd/nvidia-mig-manager. NVIDIA/k8s-driver-manager: cmd/driver-manager/main.go.
    NVIDIA/dcgm-exporter 4.8: pkg/cmd/app.go.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from gpustate.formats.words import quote
from gpustate.gpu_operator.keys import Support
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding
from gpustate.gpu_operator.runtime import ENVIRONMENT

_PODS = frozenset(
    {
        "NODE_NAME",
        "POD_NAME",
        "POD_NAMESPACE",
        "OPERATOR_NAMESPACE",
        "NAMESPACE",
        "KUBECONFIG",
        "LOG_LEVEL",
    }
)
_GPUS = frozenset({"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"})
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})
_VALIDATOR = frozenset(
    {
        *("COMPONENT", "WITH_WAIT", "WITH_WORKLOAD", "OUTPUT_DIR", "SLEEP_INTERVAL_SECONDS"),
        *("MIG_STRATEGY", "CLEANUP_ALL", "DISABLE_DEV_CHAR_SYMLINK_CREATION", "HOST_ROOT"),
        *("DRIVER_INSTALL_DIR", "DRIVER_INSTALL_DIR_CTR_PATH", "DRIVER_VALIDATION_SKIP_GPU_INIT"),
        *("METRICS_PORT", "DEFAULT_GPU_WORKLOAD_CONFIG", "GPU_DIRECT_RDMA_ENABLED"),
        *("USE_HOST_MOFED", "GDS_ENABLED", "GDRCOPY_ENABLED", "VALIDATOR_IMAGE"),
        *("VALIDATOR_IMAGE_PULL_POLICY", "VALIDATOR_IMAGE_PULL_SECRETS", "VALIDATOR_RUNTIME_CLASS"),
    }
)
_MANAGER = frozenset(
    {
        *("ENABLE_GPU_POD_EVICTION", "ENABLE_AUTO_DRAIN", "DRAIN_USE_FORCE"),
        *("DRAIN_POD_SELECTOR_LABEL", "DRAIN_TIMEOUT_SECONDS", "DRAIN_DELETE_EMPTYDIR_DATA"),
        *("NODE_LABEL_FOR_GPU_POD_EVICTION", "GPU_DIRECT_RDMA_ENABLED", "USE_HOST_MOFED"),
        *("FORCE_REINSTALL", "DRIVER_CONFIG_DIGEST", "BIND_NVSWITCHES", "HOST_ROOT"),
        *("NVDRAIN_DEBUG", "NVDRAIN_DELETE_EMPTYDIR_DATA", "NVDRAIN_DRY_RUN"),
        *("NVDRAIN_GRACE_PERIOD", "NVDRAIN_TIMEOUT_SECONDS", "NVDRAIN_USE_FORCE"),
    }
)
#: Read by the sidecar of the plugin and of GPU feature discovery that chooses a configuration.
_CHOOSER = frozenset(
    {
        *("CONFIG_FILE_DST", "CONFIG_FILE_SRCDIR", "DEFAULT_CONFIG", "FALLBACK_STRATEGIES"),
        *("NODE_LABEL", "ONESHOT", "PROCESS_TO_SIGNAL", "SEND_SIGNAL", "SIGNAL"),
        *("KUBE_API_BURST", "KUBE_API_QPS"),
    }
)
_PLUGIN = _CHOOSER | frozenset(
    {
        *("MIG_STRATEGY", "FAIL_ON_INIT_ERROR", "NVIDIA_DRIVER_ROOT", "PASS_DEVICE_SPECS"),
        *("DEVICE_LIST_STRATEGY", "DEVICE_ID_STRATEGY", "CONFIG_FILE", "CDI_ANNOTATION_PREFIX"),
        *("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH", "NVIDIA_DEV_ROOT", "DRIVER_ROOT_CTR_PATH"),
        *("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS", "MPS_ROOT", "CDI_ENABLED"),
        *("GDS_ENABLED", "MOFED_ENABLED", "GDRCOPY_ENABLED"),
        *("DEVICE_DISCOVERY_STRATEGY", "CDI_DISABLE_HOOKS", "CDI_FEATURE_FLAGS"),
        *("CONTAINER_DRIVER_ROOT", "IMEX_CHANNEL_IDS", "IMEX_REQUIRED", "KUBELET_SOCKET"),
        "SHARED_DEVICES_ALLOCATION_POLICY",
    }
)
_FEATURES = _CHOOSER | frozenset(
    {
        *("GFD_SLEEP_INTERVAL", "GFD_FAIL_ON_INIT_ERROR", "GFD_MIG_STRATEGY", "GFD_ONESHOT"),
        *("GFD_NO_TIMESTAMP", "GFD_OUTPUT_FILE", "GFD_MACHINE_TYPE_FILE", "MIG_STRATEGY"),
        *("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API", "FAIL_ON_INIT_ERROR", "CONFIG_FILE"),
        *("GFD_CONFIG_FILE", "CONTAINER_DRIVER_ROOT", "DEVICE_DISCOVERY_STRATEGY"),
        "DRIVER_ROOT_CTR_PATH",
    }
)
_MIG = frozenset(
    {
        *("CONFIG_FILE", "GPU_CLIENTS_FILE", "HOST_ROOT_MOUNT", "HOST_NVIDIA_DIR", "WITH_REBOOT"),
        *("HOST_MIG_MANAGER_STATE_FILE", "HOST_KUBELET_SYSTEMD_SERVICE", "CDI_ENABLED"),
        *("WITH_SHUTDOWN_HOST_GPU_CLIENTS", "DEFAULT_GPU_CLIENTS_NAMESPACE", "DRIVER_ROOT"),
        *("DRIVER_ROOT_CTR_PATH", "DEV_ROOT_CTR_PATH", "DEFAULT_CONFIG_FILE", "RECONFIGURE_SCRIPT"),
        *("NVIDIA_CDI_HOOK_PATH", "NVIDIA_DEV_ROOT", "NVIDIA_DRIVER_ROOT", "MIG_PARTED_DEBUG"),
        *("MIG_PARTED_CONFIG_FILE", "MIG_PARTED_HOOKS_FILE", "MIG_PARTED_CHECKPOINT_FILE"),
        *("MIG_PARTED_SELECTED_CONFIG", "MIG_PARTED_SKIP_RESET", "MIG_PARTED_MODE_CHANGE_ONLY"),
        *("MIG_PARTED_CONFIG_LABEL", "MIG_PARTED_OUTPUT_FILE", "MIG_PARTED_OUTPUT_FORMAT"),
        "MIG_PARTED_VALID_CONFIG",
    }
)
_EXPORTER = frozenset(
    {
        *("DCGM_EXPORTER_COLLECTORS", "DCGM_EXPORTER_LISTEN", "DCGM_EXPORTER_INTERVAL"),
        *("DCGM_EXPORTER_KUBERNETES", "DCGM_REMOTE_HOSTENGINE_INFO", "DCGM_EXPORTER_DEVICES_STR"),
        *("DCGM_EXPORTER_OTHER_DEVICES_STR", "DCGM_EXPORTER_CPU_DEVICES_STR"),
        *("DCGM_EXPORTER_NO_HOSTNAME", "DCGM_EXPORTER_CONFIGMAP_DATA", "DCGM_HPC_JOB_MAPPING_DIR"),
        *("DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", "KUBERNETES_ENABLE_DRA"),
        *("KUBERNETES_VIRTUAL_GPUS", "DISABLE_STARTUP_VALIDATE", "DCGM_EXPORTER_USE_FAKE_GPUS"),
        *("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", "DCGM_EXPORTER_WEB_CONFIG_FILE"),
        "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
        *("DCGM_EXPORTER_DCGM_LOG_LEVEL", "DCGM_EXPORTER_DEBUG", "DCGM_EXPORTER_DUMP_COMPRESSION"),
        *("DCGM_EXPORTER_DUMP_DIRECTORY", "DCGM_EXPORTER_DUMP_ENABLED"),
        *("DCGM_EXPORTER_DUMP_RETENTION", "DCGM_EXPORTER_ENABLE_DCGM_LOG"),
        *("DCGM_EXPORTER_ENABLE_PPROF", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL"),
        *("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "DCGM_EXPORTER_LOG_FORMAT"),
        *("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "DCGM_EXPORTER_SYSTEMD_SOCKET"),
        "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
        "DCGM_EXPORTER_KUBERNETES_POD_LABEL_CACHE_SIZE",
        *("DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", "DCGM_EXPORTER_USE_OLD_NAMESPACE"),
        "NVIDIA_RESOURCE_NAMES",
        *("DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", "DCGM_POD_RESOURCES_KUBELET_SOCKET"),
    }
)
#: Before this release, mig.strategy was set after it.
_ENV_IS_LAST_SINCE = "v25.3.3"
_PARTS = ("cuda", "plugin", "driver", "toolkit", "vfioPCI", "vgpuManager", "vgpuDevices")
#: Variables that a component reads; ``manager`` is the driver manager of an NVIDIADriver.
READ: Mapping[str, frozenset[str]] = {
    "validator": _VALIDATOR,
    **{f"validator.{part}": _VALIDATOR for part in _PARTS},
    "driver.manager": _MANAGER,
    "manager": _MANAGER,
    "vgpuManager.driverManager": _MANAGER,
    "vfioManager.driverManager": _MANAGER,
    "devicePlugin": _PLUGIN,
    "gfd": _FEATURES,
    "migManager": _MIG,
    "dcgmExporter": _EXPORTER,
}
#: Variables that the reader supports; no state has the others.
_TAKEN: Mapping[str, frozenset[str]] = {
    "validator.cuda": frozenset({"WITH_WORKLOAD"}),
    "validator.driver": frozenset({"DISABLE_DEV_CHAR_SYMLINK_CREATION"}),
    "migManager": frozenset({"WITH_REBOOT"}),
    "toolkit": frozenset(name for name, one in ENVIRONMENT.items() if one.states)
    | {"RUNTIME", "NO_RUNTIME_CONFIG"},
}


def misspelt(context: Context) -> Iterator[Finding]:
    """Names similar to those that a component reads."""
    for section, read in READ.items():
        known = read | _PODS | _GPUS | _PROXIES
        for name, _, line in context.env(section):
            if name in known or name.upper() in _PROXIES:
                continue
            near = nearest_name(name, known)
            if near:
                yield Finding(
                    "variable",
                    f"{section}.env",
                    f"{section}.env {quote(name)} is not read by this container",
                    context.file,
                    line,
                    f"did you mean {near}",
                    context.title,
                )


#: Read only without autoUpgrade (NVIDIA/k8s-driver-manager: isAutoDrainEnabled), and the key to use with it.
_WITHOUT_UPGRADES = {
    "ENABLE_GPU_POD_EVICTION": "podDeletion",
    "ENABLE_AUTO_DRAIN": "drain.enable",
    "DRAIN_USE_FORCE": "drain.force",
    "DRAIN_TIMEOUT_SECONDS": "drain.timeoutSeconds",
    "DRAIN_DELETE_EMPTYDIR_DATA": "drain.deleteEmptyDir",
    "DRAIN_POD_SELECTOR_LABEL": "drain.podSelector",
}


def left_to_upgrades(context: Context) -> Iterator[Finding]:
    """Variables of the driver manager that the Operator's upgrades of the driver replace."""
    prefix = "" if context.kind == "nvidiadriver" else "driver."
    if context.value(f"{prefix}upgradePolicy.autoUpgrade") is not True:
        return
    for name, _, line in context.env(f"{prefix}manager"):
        key = _WITHOUT_UPGRADES.get(name, "")
        if key == "podDeletion" and context.kind == "helm":
            key = "gpuPodDeletion"
        if key:
            yield Finding(
                "variable",
                f"{prefix}manager.env",
                f"{prefix}manager.env {quote(name)} is ignored with {prefix}upgradePolicy.autoUpgrade",
                context.file,
                line,
                f"use {prefix}upgradePolicy.{key}",
                context.title,
            )


def nearest_name(name: str, known: frozenset[str]) -> str | None:
    """The known name that was probably meant: similar as a whole and word by word."""
    folded = name.upper().replace("-", "_")
    for near in difflib.get_close_matches(folded, sorted(known), 3, 0.8):
        words = near.split("_")
        if all(difflib.get_close_matches(word, words, 1, 0.6) for word in folded.split("_")):
            return near
    return None


def strategies(context: Context) -> Iterator[Finding]:
    """``MIG_STRATEGY`` in conflict with ``mig.strategy``."""
    said = context.value("mig.strategy")
    if not said:
        return  # the variable is not set
    last = not context.before(_ENV_IS_LAST_SINCE)
    for section, what in (
        (
            "devicePlugin",
            "takes precedence in the device plugin; GPU feature discovery uses mig.strategy"
            if last
            else "has no effect: mig.strategy takes precedence in the device plugin",
        ),
        ("gfd", "has no effect: mig.strategy takes precedence in GPU feature discovery"),
    ):
        for name, value, line in context.env(section):
            if name == "MIG_STRATEGY" and isinstance(value, str) and value not in ("", said):
                yield Finding(
                    "variable",
                    f"{section}.env",
                    f"{section}.env MIG_STRATEGY is {quote(value)} and mig.strategy is {quote(said)}"
                    f": the variable {what}",
                    context.file,
                    line,
                    "set mig.strategy only",
                    context.title,
                )


def unsupported_variables(context: Context) -> dict[int, tuple[Support, str]]:
    """Support of variables that no state uses, by the identity of their name and value."""
    found: dict[int, tuple[Support, str]] = {}
    for section, taken in _TAKEN.items():
        if section.partition(".")[0] in context.containers:
            continue
        env = context.item_at(f"{section}.env")
        for one in env.value if env is not None and isinstance(env.value, list) else ():
            if not isinstance(one.value, dict) or one.text("name") in taken:
                continue
            if section == "migManager":
                support = (Support.KUBERNETES, "an environment variable of a container")
            elif section == "toolkit":
                variable = ENVIRONMENT.get(one.text("name"))
                why = variable.why if variable is not None else ""
                support = (Support.LATER, why or "no state has such a setting")
            else:
                support = (Support.LATER, "the validator has no such setting")
            found.update({id(child): support for child in one.value.values()})
    return found


CHECKS = (misspelt, left_to_upgrades, strategies)
