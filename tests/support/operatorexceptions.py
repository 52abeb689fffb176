"""Differences between the objects of the GPU Operator and those of gpustate that are wanted, each with its reason.

The reasons are those in the table of docs/cluster-objects.md. Some differences are of earlier releases alone: the
objects are those of the newest release.
"""

from __future__ import annotations

from operatordifferences import MISSING, Wanted

from gpustate.gpu_operator import history

_PLUGIN, _MPS = "daemonset/nvidia-device-plugin-daemonset", "daemonset/nvidia-device-plugin-mps-*"
_DISCOVERY, _EXPORTER = "daemonset/gpu-feature-discovery", "daemonset/nvidia-dcgm-exporter"
_STATUS = "daemonset/nvidia-node-status-exporter"
_POD = "spec/template/spec"
_MAIN = f"{_POD}/containers/nvidia-device-plugin"

_VALIDATED = "gpustate has validated the node before its pods may run there"
_HOST_DRIVER = "the driver is the host's; these are the values that the file would have"
_QUARANTINE = "NVIDIA's plugin has no list of excluded GPUs"
_FILES = "files of the driver container and the validator"
_NO_ENTRYPOINT = "there is no entrypoint"
_PATH = "the package's path"
_HANDLERS = (
    "gpustate registers no such handlers; pods with such a class would stay in ContainerCreating, "
    "and are refused without the class"
)
_NRI = "the runtimes are configured instead of the NRI plugin"
_ADMISSION = "a Node is admitted only when its device plugin offers GPUs"
_READS_NODES = "only the configuration manager reads its Node"
_FEATURES = "GPU feature discovery does not list"
_OPENSHIFT = "OpenShift only"
_RIGHTS = "least privilege"
_EXPLICIT = "explicit, for every version"
_OWNER = "no ClusterPolicy exists in the cluster"
_HOSTS = "gpustate does their work on the nodes, over SSH"
_OWN_METRICS = "metrics of the Operator itself"
_SERVICES = "one host engine for the node and its pods"
_NO_MPS = "nothing shares GPUs by MPS"
_APPLIED = "server-side apply compares the fields"
_CREATOR = "the label says who has created the object"
_VOLUME = "a ConfigMap may have the name of another volume"
_PUBLISHED = "labels are published as NodeFeatures"
_SELECTS = "the label selects the pods"
_RELEASE = "one form for all releases"
_RUN = "it is in memory, and empty after a boot"
_STATUS_READS = "it reads others only where the driver is a container"
_MONITORS = "there is no key of its own"


def _objects(reason: str, *patterns: str) -> list[Wanted]:
    """Objects that only the Operator has."""
    return [Wanted(pattern, "", reason, ours=MISSING) for pattern in patterns]


def _everywhere() -> list[Wanted]:
    return [
        Wanted("*", "metadata/ownerReferences", _OWNER, ours=MISSING),
        Wanted("*", "metadata/labels", _OWNER, operator=MISSING),
        Wanted("*", "metadata/labels/gpustate.io/owner", _OWNER, operator=MISSING),
        Wanted("*", "metadata/labels/app.kubernetes.io/managed-by", _OWNER, ours="gpustate"),
        Wanted("*", "metadata/annotations/nvidia.com/last-applied-hash", _APPLIED, ours=MISSING),
        Wanted("*", "metadata/annotations/openshift.io/scc", _OPENSHIFT, ours=MISSING),
        Wanted("runtimeclass/*", "metadata/labels/app.kubernetes.io/component", _CREATOR),
        Wanted("serviceaccount/nvidia-*", "metadata/labels/app", _CREATOR, ours=MISSING),
        Wanted("daemonset/*", "metadata/labels/app", _SELECTS, operator="mine"),
        Wanted("daemonset/*", f"{_POD}/automountServiceAccountToken", _RIGHTS, operator=MISSING),
        Wanted("daemonset/*", f"{_POD}/tolerations", _ADMISSION),
        Wanted("daemonset/*", f"{_POD}/tolerations/startup-taint.*", _ADMISSION, operator=MISSING),
        Wanted("daemonset/*", f"{_POD}/initContainers", _VALIDATED, ours=MISSING),
        Wanted("daemonset/*", f"{_POD}/initContainers/toolkit-validation", _VALIDATED),
        Wanted("daemonset/*", f"{_POD}/*/volumeMounts//available-configs/name", _VOLUME),
        Wanted("daemonset/*", f"{_POD}/volumes/available-configs", _VOLUME, operator=MISSING),
        Wanted("daemonset/*", f"{_POD}/volumes/plugin", _VOLUME, ours=MISSING),
        Wanted("daemonset/*", f"{_POD}/volumes/run-nvidia", _FILES, ours=MISSING),
    ]


def _whole_objects() -> list[Wanted]:
    return [
        *_objects(
            _HOSTS,
            "*/nvidia-driver*",
            "*/nvidia-container-toolkit*",
            "*/nvidia-operator-validator",
            "*/nvidia-mig-manager*",
            "configmap/default-mig-parted-config",
            "configmap/default-gpu-clients",
        ),
        *_objects(_NO_ENTRYPOINT, "configmap/nvidia-device-plugin-entrypoint"),
        *_objects(_OWN_METRICS, "service/gpu-operator", "servicemonitor/gpu-operator"),
        *_objects(_SERVICES, "*/nvidia-dcgm", "*/nvidia-dcgm-exporter"),
        *_objects(_NO_MPS, "*/nvidia-device-plugin-mps-control-daemon"),
        *_objects(_HANDLERS, "runtimeclass/nvidia-cdi", "runtimeclass/nvidia-legacy"),
        *_objects(_OPENSHIFT, "role*/nvidia-device-plugin"),
        *_objects(_MONITORS, "servicemonitor/nvidia-node-status-exporter"),
        *_objects(
            _READS_NODES,
            "clusterrole*/nvidia-device-plugin",
            "clusterrole*/nvidia-gpu-feature-discovery",
        ),
        *_objects(_STATUS_READS, "role*/nvidia-node-status-exporter"),
    ]


def _plugin() -> list[Wanted]:
    env, mounts, volumes = f"{_MAIN}/env", f"{_MAIN}/volumeMounts", f"{_POD}/volumes"
    return [
        Wanted(_PLUGIN, f"{_MAIN}/args", _HOST_DRIVER, ["/bin/entrypoint.sh"], MISSING),
        Wanted(_PLUGIN, f"{_MAIN}/command", _QUARANTINE),
        Wanted(_PLUGIN, f"{env}/CONTAINER_DRIVER_ROOT", _HOST_DRIVER, operator=MISSING),
        Wanted(_PLUGIN, f"{env}/NVIDIA_DRIVER_ROOT", _HOST_DRIVER, operator=MISSING),
        Wanted(_PLUGIN, f"{env}/NVIDIA_CDI_HOOK_PATH", _PATH, operator=MISSING),
        Wanted(_PLUGIN, f"{mounts}//bin/entrypoint.sh", _NO_ENTRYPOINT, ours=MISSING),
        Wanted(_PLUGIN, f"{volumes}/nvidia-device-plugin-entrypoint", _NO_ENTRYPOINT),
        Wanted(_DISCOVERY, f"{_POD}/*/env/GFD_USE_NODE_FEATURE_API", _EXPLICIT, operator=MISSING),
        Wanted(_DISCOVERY, f"{_POD}/*/node-feature-discovery/features.d", _PUBLISHED),
        Wanted(_DISCOVERY, f"{volumes}/output-dir", _PUBLISHED, ours=MISSING),
        Wanted("role/nvidia-gpu-feature-discovery", "rules", _FEATURES),
        Wanted("clusterrole/nvidia-node-status-exporter", "rules", _RIGHTS),
        Wanted(_STATUS, f"{volumes}/run-nvidia/hostPath/type", _RUN, "Directory"),
        Wanted("daemonset/nvidia-dcgm", volumes, _FILES, ours=MISSING),
    ]


def _newest() -> list[Wanted]:
    """What differs from the newest release."""
    mounts, volumes = f"{_MAIN}/volumeMounts", f"{_POD}/volumes"
    hook = f"{_MAIN}/env/NVIDIA_CDI_HOOK_PATH/value"
    toolkit = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
    return [
        Wanted(_PLUGIN, hook, _PATH, toolkit, "/usr/bin/nvidia-cdi-hook"),
        Wanted(_PLUGIN, f"{mounts}//driver-root", _FILES, ours=MISSING),
        Wanted(_PLUGIN, f"{mounts}//run/nvidia/validations", _FILES, ours=MISSING),
        Wanted(_PLUGIN, f"{volumes}/driver-install-dir", _FILES, ours=MISSING),
        Wanted(_PLUGIN, f"{volumes}/run-nvidia-validations", _FILES, ours=MISSING),
        Wanted("daemonset/*", f"{_POD}/runtimeClassName", _NRI, operator=MISSING),
        Wanted("daemonset/*", "spec/template/metadata/annotations", _NRI, ours=MISSING),
        Wanted("runtimeclass/nvidia", "", _NRI, operator=MISSING),
    ]


def _earlier() -> list[Wanted]:
    """What differs from v24.3.0 because later releases do."""
    env = f"{_MAIN}/env"
    return [
        Wanted(_PLUGIN, f"{_MAIN}/volumeMounts//run/nvidia", _FILES, ours=MISSING),
        Wanted(_PLUGIN, f"{env}/CDI_ANNOTATION_PREFIX/value", _RELEASE, "nvidia.cdi.k8s.io/"),
        Wanted(_PLUGIN, f"{env}/DEVICE_LIST_STRATEGY/value", _RELEASE, "envvar,cdi-annotations"),
        Wanted(_PLUGIN, f"{env}/NVIDIA_CTK_PATH", _RELEASE, ours=MISSING),
        Wanted(_PLUGIN, f"{env}/GDRCOPY_ENABLED", _NO_ENTRYPOINT, operator=MISSING),
        Wanted("daemonset/*", f"{_POD}/initContainers/*/resources/*", _RELEASE, operator=MISSING),
        Wanted(_DISCOVERY, f"{_POD}/*/env/POD_NAME", _RELEASE, operator=MISSING),
        Wanted(_DISCOVERY, f"{_POD}/*/volumeMounts//sys", _RELEASE, operator=MISSING),
        Wanted(_DISCOVERY, f"{_POD}/*/volumeMounts//sys/class/dmi/id", _RELEASE, ours=MISSING),
        Wanted(_DISCOVERY, f"{_POD}/volumes/host-sys", _RELEASE, operator=MISSING),
        Wanted(_DISCOVERY, f"{_POD}/volumes/dmi-info-dir", _RELEASE, ours=MISSING),
        Wanted(_MPS, f"{_POD}/hostPID", _RELEASE, operator=MISSING),
        Wanted(_MPS, f"{_POD}/shareProcessNamespace", _RELEASE, ours=MISSING),
        Wanted("daemonset/nvidia-dcgm*", f"{_POD}/*/livenessProbe", _RELEASE, operator=MISSING),
        Wanted("daemonset/nvidia-dcgm*", f"{_POD}/*/readinessProbe", _RELEASE, operator=MISSING),
        Wanted("daemonset/nvidia-dcgm*", f"{_POD}/hostNetwork", _RELEASE, ours=MISSING),
        Wanted("daemonset/nvidia-dcgm", f"{_POD}/*/ports/dcgm/hostPort", _RELEASE, ours=MISSING),
        Wanted(_EXPORTER, f"{_POD}/*/DCGM_REMOTE_HOSTENGINE_INFO/value", _RELEASE),
        Wanted("service/nvidia-dcgm", "", _RELEASE, operator=MISSING),
        Wanted(_STATUS, f"{_POD}/*/env/OPERATOR_NAMESPACE", _RELEASE, operator=MISSING),
        Wanted(_STATUS, f"{_POD}/*/securityContext/runAsUser", _RELEASE, operator=MISSING),
    ]


def wanted(release: str) -> list[Wanted]:
    """The differences from a release that are wanted."""
    own = _earlier() if history.before(release, "v25.3.0") else _newest()
    return [*_everywhere(), *_whole_objects(), *_plugin(), *own]
