"""Differences between the objects of the GPU Operator and those of gpustate that are wanted, each with its reason.

The reasons are those in the table of docs/cluster-reference.md. Some differences are of earlier releases alone: the
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
_OWN_WORDS = "gpustate's own words, with the same effect"
_TABLES = "gpustate's own table of layouts; it has none of vGPU types"
_ONE_VOLUME = "one mount for all components that wait"
_DIGEST = "a digest of the same settings, by another function"
#: Roles without OpenShift's rights, and without those of the Operator's own kinds.
_NARROWED = (
    *(("clusterrole", f"nvidia-{name}") for name in ("driver", "operator-validator")),
    *(("clusterrole", f"nvidia-{name}") for name in ("vfio-manager", "vgpu-manager")),
    ("*role", "nvidia-vgpu-device-manager"),
    *(("role", f"nvidia-{name}") for name in ("container-toolkit", "mig-manager")),
    ("role", "nvidia-operator-validator"),
    ("role", "nvidia-cc-manager"),
    ("*role", "nvidia-kata-sandbox-device-plugin"),
)
_MONITORS = "there is no key of its own"
_REPLACED = "pods are replaced when a ConfigMap that they mount changes"


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
        Wanted("daemonset/*", "spec/template/metadata/annotations", _REPLACED, operator=MISSING),
        Wanted("daemonset/*", "spec/template/metadata/annotations/checksum/config", _REPLACED),
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


def _on_hosts() -> list[Wanted]:
    return _objects(
        _HOSTS,
        "*/nvidia-driver*",
        "*/nvidia-container-toolkit*",
        "*/nvidia-operator-validator",
        "*/nvidia-mig-manager*",
        "configmap/default-mig-parted-config",
        "configmap/default-gpu-clients",
    )


def _whole_objects() -> list[Wanted]:
    return [
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


#: Reasons that do not apply where components run as containers.
_OF_HOSTS = (_VALIDATED, _HOST_DRIVER, _FILES, _NO_ENTRYPOINT, _NRI, _STATUS_READS)


def in_containers() -> list[Wanted]:
    """What differs where components run as containers."""
    driver, validator = "daemonset/nvidia-driver-daemonset*", "daemonset/nvidia-operator-validator"
    checks = f"{_POD}/initContainers/*-validation"
    return [
        Wanted("configmap/nvidia-*", "data/*.sh", _OWN_WORDS),
        Wanted("configmap/nvidia-*", "metadata/labels/app*", _CREATOR, ours=MISSING),
        Wanted("configmap/default-*", "data/*", _TABLES),
        Wanted("daemonset/*", f"{checks}/args", _OWN_WORDS),
        Wanted("daemonset/*", f"{checks}/volumeMounts//run/nvidia*", _ONE_VOLUME),
        Wanted("daemonset/*", f"{_POD}/volumes/run-nvidia-validations", _ONE_VOLUME),
        Wanted("daemonset/*", f"{_POD}/volumes/run-nvidia", _ONE_VOLUME, ours=MISSING),
        Wanted(driver, f"{_POD}/*/env/DRIVER_CONFIG_DIGEST/value", _DIGEST),
        Wanted(driver, f"{_POD}/containers/nvidia-*-ctr/args", _OWN_WORDS),
        Wanted(validator, f"{checks}/env/VALIDATOR_IMAGE_PULL_POLICY/value", _EXPLICIT),
        Wanted(validator, f"{_POD}/volumes/driver-install-dir/hostPath/type", _RUN),
        Wanted("daemonset/nvidia-mig-manager", f"{_POD}/*/env/NVIDIA_CDI_HOOK_PATH", _PATH),
        Wanted("daemonset/nvidia-[vc]*-manager", "metadata/labels/*", _SELECTS),
        Wanted(_PLUGIN, f"{_MAIN}/args", _QUARANTINE, ["/bin/entrypoint.sh"], MISSING),
        *(Wanted(f"{kind}/{name}", "rules", _RIGHTS) for kind, name in _NARROWED),
        *_objects(
            _OPENSHIFT,
            *(f"role*/nvidia-{name}" for name in ("driver", "vgpu-manager", "vfio-manager")),
            "role*/nvidia-sandbox-validator",
        ),
        *_objects(_RIGHTS, "*role*/nvidia-sandbox-device-plugin"),
        *_objects(_TABLES, "configmap/default-vgpu-devices-config"),
    ]


def _earlier_in_containers() -> list[Wanted]:
    """Of v24.3.0: how containers begin, wait and mount. Images, values, rights to schedule and the like are compared."""
    of_containers = (
        *("*/env", "*/env/*", "*/volumeMounts/*", "*/command", "*/args", "*/lifecycle/*"),
        *("*/securityContext/*", "*/startupProbe/exec/*", "volumes/*"),
    )
    return [
        *(Wanted("daemonset/*", f"{_POD}/{field}", _RELEASE) for field in of_containers),
        Wanted("daemonset/nvidia-driver-daemonset", f"{_POD}/imagePullSecrets", _RELEASE),
        Wanted("daemonset/nvidia-vgpu-*", f"{_POD}/terminationGracePeriodSeconds", _RELEASE),
        Wanted("daemonset/nvidia-vgpu-*", f"{_POD}/priorityClassName", _RELEASE),
        Wanted("daemonset/nvidia-mig-manager", f"{_POD}/hostIPC", _RELEASE),
        Wanted("clusterrole/nvidia-mig-manager", "rules", _RIGHTS),
        Wanted("configmap/nvidia-driver-startup-probe", "", _RELEASE, operator=MISSING),
        Wanted("role*/nvidia-vgpu-device-manager", "", _RELEASE, operator=MISSING),
        *_objects(_RELEASE, "configmap/nvidia-vfio-manager"),
    ]


def of_drivers() -> list[Wanted]:
    """What differs in the driver of an NVIDIADriver."""
    return [
        Wanted("clusterrole/nvidia-gpu-driver-*", "rules", _RIGHTS),
        Wanted("*", "metadata/labels/*", _OWNER, ours=MISSING),
    ]


def wanted(release: str, *, containers: bool = False) -> list[Wanted]:
    """The differences from a release that are wanted."""
    own = _earlier() if history.before(release, "v25.3.0") else _newest()
    shared = [*_everywhere(), *_whole_objects(), *_plugin(), *own]
    if not containers:
        return [*shared, *_on_hosts()]
    # With driver, toolkit and validator on the nodes alone.
    earlier = _earlier_in_containers() if history.before(release, "v25.3.0") else []
    return [*in_containers(), *earlier, *(one for one in shared if one.reason not in _OF_HOSTS)]
