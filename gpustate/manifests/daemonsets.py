"""DaemonSets of the device plugin, its MPS daemon, and GPU feature discovery.

Names, selectors and mounts are those of the GPU Operator. What differs, and why, is in docs/cluster-objects.md.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-device-plugin, assets/gpu-feature-discovery,
    assets/state-mps-control-daemon, controllers/object_controls.go;
    NVIDIA/k8s-device-plugin v0.18.0: deployments/helm, cmd/nvidia-device-plugin/main.go (variables).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpustate.manifests.settings import ClusterObjects, Component

Json = dict[str, Any]

DEVICE_PLUGIN = "nvidia-device-plugin-daemonset"
MPS = "nvidia-device-plugin-mps-control-daemon"
FEATURE_DISCOVERY = "gpu-feature-discovery"
#: Service accounts.
PLUGIN_ACCOUNT, DISCOVERY_ACCOUNT = "nvidia-device-plugin", "nvidia-gpu-feature-discovery"
#: Labels of a Node that let the pods run there.
DEPLOY_PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
DEPLOY_DISCOVERY = "nvidia.com/gpu.deploy.gpu-feature-discovery"
_MPS_CAPABLE = "nvidia.com/mps.capable"
_CONFIG_LABEL = "nvidia.com/device-plugin.config"
_CONFIGS, _CONFIG = "/available-configs", "/config"
_CONFIG_FILE = f"{_CONFIG}/config.yaml"


def device_plugin(settings: ClusterObjects, image: str) -> Json:
    """The DaemonSet of the device plugin."""
    component = settings.device_plugin
    env = {
        "PASS_DEVICE_SPECS": "true",
        "FAIL_ON_INIT_ERROR": "true",
        "DEVICE_LIST_STRATEGY": settings.device_list_strategy,
        "DEVICE_ID_STRATEGY": "uuid",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "all",
        "NVIDIA_DRIVER_ROOT": "/",
        "CONTAINER_DRIVER_ROOT": "/host",
        "MPS_ROOT": settings.mps_root,
    }
    if settings.cdi:
        env["CDI_ENABLED"] = "true"
        env["CDI_ANNOTATION_PREFIX"] = "cdi.k8s.io/"
        env["NVIDIA_CDI_HOOK_PATH"] = settings.cdi_hook
    if settings.gdrcopy:
        env["GDRCOPY_ENABLED"] = "true"
    if settings.gds:
        env["GDS_ENABLED"] = "true"
        env["MOFED_ENABLED"] = "true"
    env |= _mig(settings)
    mounts = [
        _mount("kubelet-device-plugins", "/var/lib/kubelet/device-plugins"),
        _mount("host-root", "/host", readOnly=True, mountPropagation="HostToContainer"),
        _mount("cdi-root", "/var/run/cdi"),
        _mount("mps-root", "/mps"),
        _mount("mps-shm", "/dev/shm"),
    ]
    volumes = [
        _host("kubelet-device-plugins", "/var/lib/kubelet/device-plugins", "Directory"),
        _host("host-root", "/"),
        _host("cdi-root", "/var/run/cdi", "DirectoryOrCreate"),
        *_mps_volumes(settings),
    ]
    return _daemon_set(
        settings,
        component,
        image,
        name=DEVICE_PLUGIN,
        program="nvidia-device-plugin",
        container="nvidia-device-plugin",
        account=PLUGIN_ACCOUNT,
        env=env,
        mounts=mounts,
        volumes=volumes,
        selects={DEPLOY_PLUGIN: "true"},
    )


def mps_daemon(settings: ClusterObjects, image: str) -> Json:
    """The DaemonSet of the MPS control daemon, on nodes that GPU feature discovery has labelled."""
    mount_shm = {
        "name": "mps-control-daemon-mounts",
        "image": image,
        "imagePullPolicy": settings.device_plugin.image_pull_policy,
        "command": ["mps-control-daemon", "mount-shm"],
        "securityContext": {"privileged": True},
        "volumeMounts": [_mount("mps-root", "/mps", mountPropagation="Bidirectional")],
    }
    env = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        **_mig(settings),
    }
    return _daemon_set(
        settings,
        settings.device_plugin,
        image,
        name=MPS,
        program="mps-control-daemon",
        container="mps-control-daemon-ctr",
        account=PLUGIN_ACCOUNT,
        env=env,
        mounts=[_mount("mps-root", "/mps"), _mount("mps-shm", "/dev/shm")],
        volumes=_mps_volumes(settings),
        selects={DEPLOY_PLUGIN: "true", _MPS_CAPABLE: "true"},
        first=[mount_shm],
        signalled="/usr/bin/mps-control-daemon",
        own=False,
    )


def feature_discovery(settings: ClusterObjects, image: str) -> Json:
    """The DaemonSet of GPU feature discovery."""
    env = {
        "GFD_SLEEP_INTERVAL": "60s",
        "GFD_FAIL_ON_INIT_ERROR": "true",
        "GFD_USE_NODE_FEATURE_API": "true",
        **_mig(settings),
    }
    fields = {
        "NAMESPACE": "metadata.namespace",
        "NODE_NAME": "spec.nodeName",
        "POD_NAME": "metadata.name",
    }
    return _daemon_set(
        settings,
        settings.feature_discovery,
        image,
        name=FEATURE_DISCOVERY,
        program="gpu-feature-discovery",
        container="gpu-feature-discovery",
        account=DISCOVERY_ACCOUNT,
        env=env,
        fields=fields,
        mounts=[_mount("host-sys", "/sys", readOnly=True)],
        volumes=[_host("host-sys", "/sys", "Directory")],
        selects={DEPLOY_DISCOVERY: "true"},
        labels={"app.kubernetes.io/part-of": "nvidia-gpu"},
        api=True,
    )


def _daemon_set(
    settings: ClusterObjects,
    component: Component,
    image: str,
    *,
    name: str,
    program: str,
    container: str,
    account: str,
    env: Mapping[str, str],
    mounts: Sequence[Json],
    volumes: Sequence[Json],
    selects: Mapping[str, str],
    fields: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    first: Sequence[Json] = (),
    signalled: str = "",
    own: bool = True,
    api: bool = False,
) -> Json:
    """One DaemonSet.

    Args:
        settings, component, image: of the policy.
        name: of the object, and value of the label ``app``.
        program: of the main container, whose name is ``container``.
        account: its service account.
        env, fields: variables, and those with fields of the pod.
        mounts, volumes: of the main container and the pod.
        selects: labels of the Nodes.
        labels: more labels that select the pods.
        first: init containers.
        signalled: the process to signal when the configuration changes, if it is not ``program``.
        own: the component's ``args`` and ``env`` are for this program.
        api: the program uses the API server, so its pods have a token.
    """
    pods, config = settings.pods, settings.config
    selector = {"app": name, **(labels or {})}
    whole = {**env, **(component.env if own else {})}
    # The configuration is a link into the ConfigMap, so every container needs both.
    configs = [_mount("available-configs", _CONFIGS), _mount("config", _CONFIG)]
    if config is not None:
        whole.setdefault("CONFIG_FILE", _CONFIG_FILE)
    main: Json = {
        "name": container,
        "image": image,
        "imagePullPolicy": component.image_pull_policy,
        "command": [program],
        **({"args": list(component.args)} if component.args and own else {}),
        "env": [
            *({"name": key, "value": value} for key, value in whole.items()),
            *(_field(key, path) for key, path in (fields or {}).items() if key not in whole),
        ],
        "securityContext": {"privileged": True},
        "volumeMounts": [*mounts, *(configs if config is not None else ())],
    }
    containers, before, all_volumes = [main], [*first], [*volumes]
    if config is not None:
        managers = (settings, component, image)
        before.append(_config_manager(*managers, name="config-manager-init", signal=""))
        watching = _config_manager(*managers, name="config-manager", signal=signalled or program)
        containers.append(watching)
        all_volumes += [
            {"name": "available-configs", "configMap": {"name": config.name}},
            {"name": "config", "emptyDir": {}},
        ]
    if component.resources:
        for one in containers:
            one["resources"] = dict(component.resources)
    spec: Json = {
        "serviceAccountName": account,
        "automountServiceAccountToken": api or config is not None,
        **({"runtimeClassName": settings.runtime_class} if settings.runtime_class else {}),
        **({"priorityClassName": pods.priority_class} if pods.priority_class else {}),
        "nodeSelector": dict(selects),
        "tolerations": [dict(one) for one in pods.tolerations],
    }
    if pods.security_context:
        spec["securityContext"] = dict(pods.security_context)
    if component.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": one} for one in component.image_pull_secrets]
    if component.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if name == MPS:
        spec["hostPID"] = True
    elif config is not None:
        spec["shareProcessNamespace"] = True
    if before:
        spec["initContainers"] = before
    spec |= {"containers": containers, "volumes": all_volumes}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {**pods.labels, **selector},
            **_annotations(settings),
        },
        "spec": {
            "selector": {"matchLabels": selector},
            "updateStrategy": _update_strategy(settings),
            "template": {
                "metadata": {"labels": {**pods.labels, **selector}, **_annotations(settings)},
                "spec": spec,
            },
        },
    }


def _config_manager(
    settings: ClusterObjects, component: Component, image: str, *, name: str, signal: str
) -> Json:
    """Links the configuration that the Node's label selects; with a signal, for as long as the pod runs."""
    config = settings.config
    env = {
        "ONESHOT": "false" if signal else "true",
        "KUBECONFIG": "",
        "NODE_LABEL": _CONFIG_LABEL,
        "CONFIG_FILE_SRCDIR": _CONFIGS,
        "CONFIG_FILE_DST": _CONFIG_FILE,
        "DEFAULT_CONFIG": config.default if config is not None else "",
        "FALLBACK_STRATEGIES": "empty",
        "SEND_SIGNAL": "true" if signal else "false",
        "SIGNAL": "1" if signal else "",  # SIGHUP: read the configuration again
        "PROCESS_TO_SIGNAL": signal,
    }
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": component.image_pull_policy,
        "command": ["config-manager"],
        "env": [
            *({"name": key, "value": value} for key, value in env.items()),
            _field("NODE_NAME", "spec.nodeName"),
        ],
        "securityContext": {"privileged": True},
        "volumeMounts": [_mount("available-configs", _CONFIGS), _mount("config", _CONFIG)],
    }


def _mig(settings: ClusterObjects) -> dict[str, str]:
    """Variables for MIG; without ``none``, the program sees all MIG devices."""
    found = {"MIG_STRATEGY": settings.mig_strategy} if settings.mig_strategy else {}
    if settings.mig_strategy != "none":
        found["NVIDIA_MIG_MONITOR_DEVICES"] = "all"
    return found


def _mps_volumes(settings: ClusterObjects) -> list[Json]:
    return [
        _host("mps-root", settings.mps_root, "DirectoryOrCreate"),
        _host("mps-shm", f"{settings.mps_root}/shm"),
    ]


def _update_strategy(settings: ClusterObjects) -> Json:
    pods = settings.pods
    if pods.update_strategy == "OnDelete":
        return {"type": "OnDelete"}
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": pods.max_unavailable, "maxSurge": 0},
    }


def _annotations(settings: ClusterObjects) -> Json:
    found = dict(settings.pods.annotations)
    return {"annotations": found} if found else {}


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _mount(name: str, path: str, **more: Any) -> Json:
    return {"name": name, "mountPath": path, **more}


def _host(name: str, path: str, kind: str = "") -> Json:
    return {"name": name, "hostPath": {"path": path, **({"type": kind} if kind else {})}}
