"""DaemonSets: what the pods of all components have in common, and what a component adds.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (applyCommonDaemonsetConfig, the configuration manager);
    NVIDIA/k8s-device-plugin v0.18.0: cmd/config-manager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gpustate.manifests.containers import (
    DEV_CHAR,
    DRIVER_ROOT,
    HOST_ROOT,
    VALIDATIONS_VOLUME,
    mount,
    set_variable,
    toolkit_check,
    validations,
    variable,
    with_secrets,
)
from gpustate.manifests.settings import ClusterObjects, Component

Json = dict[str, Any]

_CONFIG_LABEL = "nvidia.com/device-plugin.config"
_CONFIGS, _CONFIG = "/available-configs", "/config"
_CONFIG_FILE = f"{_CONFIG}/config.yaml"
#: The configuration is a link into the ConfigMap, so every container needs both.
_CONFIG_MOUNTS = (("available-configs", _CONFIGS), ("config", _CONFIG))

#: Name of the claim and of its request.
_CLAIM = "admin-gpus"
_NONE: Mapping[str, str] = MappingProxyType({})
#: Annotation by which the NRI plugin gives a container the GPUs.
_NRI, _EVERY_GPU = "nvidia.cdi.k8s.io/container.", "management.nvidia.com/gpu=all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs in the pods of a DaemonSet; everything else is decided by the policy.

    Args:
        name: of the DaemonSet, and value of the label that selects its pods.
        container: name of the main container.
        command: of the main container; empty: that of the image.
        account: service account.
        nodes: labels of the Nodes.
        env: variables.
        fields: variables with fields of the pod.
        mounts, volumes: of the main container and the pod.
        ports: of the main container.
        more: further fields of the main container, such as probes.
        annotations: added to the pods.
        selected_by: the label that selects the pods.
        labels: more labels that select the pods.
        first: init containers.
        security: security context of the main container.
        args: of the main container; the component's own replace them.
        beside: containers beside the main one.
        marks: labels of the DaemonSet and the pods that select nothing.
        waits: begin when NVIDIA's validator has found the container toolkit to work, if it runs as containers.
        updates: update strategy, whatever the policy says.
        spec: further fields of the pods.
        injected: the container that the NRI plugin gives the GPUs; empty: the main one.
        reloads: the process to signal when the Node's label selects another configuration of the device plugin; empty:
            the program does not read it.
        own: the component's ``args`` and ``env`` are for this program.
        api: the program uses the API server, so its pods have a token.
        host_pid: pods see the node's processes.
        host_network: pods use the node's network, whatever the component says.
        gpus: the runtime gives the pods GPUs.
        claim: template of the claim for all GPUs of the node, where a DRA driver offers them.
    """

    name: str
    container: str
    account: str
    nodes: Mapping[str, str]
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: Sequence[Json] = ()
    volumes: Sequence[Json] = ()
    ports: Sequence[Json] = ()
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    selected_by: str = "app"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    first: Sequence[Json] = ()
    security: Mapping[str, Any] = field(default_factory=lambda: {"privileged": True})
    args: Sequence[str] = ()
    beside: Sequence[Json] = ()
    marks: Mapping[str, str] = field(default_factory=dict[str, str])
    waits: bool = False
    updates: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    injected: str = ""
    reloads: str = ""
    own: bool = True
    api: bool = False
    host_pid: bool = False
    host_network: bool = False
    gpus: bool = True
    claim: str = ""


def daemon_set(
    settings: ClusterObjects, component: Component, image: str, program: Program
) -> Json:
    """The DaemonSet of a program."""
    config = settings.config if program.reloads else None
    selector = {program.selected_by: program.name, **program.labels}
    marks = {**selector, **program.marks}
    waits = program.waits and settings.validator.enabled
    args = [*(component.args if program.own and component.args else program.args)]
    env = {**program.env, **(component.env if program.own else {})}
    if config is not None:
        env.setdefault("CONFIG_FILE", _CONFIG_FILE)
    variables = [
        *({"name": key, "value": value} for key, value in env.items()),
        *(variable(key, path) for key, path in program.fields.items() if key not in env),
    ]
    mounts = [*program.mounts, *(mount(*one) for one in _CONFIG_MOUNTS if config is not None)]
    main: Json = {
        "name": program.container,
        "image": image,
        "imagePullPolicy": component.image_pull_policy,
        **({"command": [*program.command]} if program.command else {}),
        **({"args": args} if args else {}),
        **({"env": variables} if variables else {}),
        **({"ports": [*program.ports]} if program.ports else {}),
        **program.more,
        "securityContext": dict(program.security),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    containers, before, volumes = [main, *program.beside], [*program.first], [*program.volumes]
    if waits:
        before.insert(0, toolkit_check(settings))
        if all(one["name"] != VALIDATIONS_VOLUME for one in volumes):
            volumes.append(validations())
        component = with_secrets(component, settings.validator)
    if config is not None:
        manage = (settings, component, image)
        before.append(_config_manager(*manage, name="config-manager-init", signal=""))
        containers.append(_config_manager(*manage, name="config-manager", signal=program.reloads))
        volumes += [
            {"name": "available-configs", "configMap": {"name": config.name}},
            {"name": "config", "emptyDir": {}},
        ]
    if component.resources:
        main["resources"] = dict(component.resources)
        for one in (*before, *containers):
            one.setdefault("resources", dict(component.resources))
    if program.claim:
        main.setdefault("resources", {})["claims"] = [{"name": _CLAIM}]
    spec = pod_spec(
        settings,
        component,
        account=program.account,
        nodes=program.nodes,
        api=program.api or config is not None,
        host_network=program.host_network,
        gpus=program.gpus,
    )
    if program.claim:
        spec["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": program.claim}]
    if program.host_pid:
        spec["hostPID"] = True
    elif config is not None:
        spec["shareProcessNamespace"] = True
    if before:
        spec["initContainers"] = before
    spec |= {"containers": containers, **({"volumes": volumes} if volumes else {}), **program.spec}
    annotations = dict(program.annotations)
    if program.gpus and settings.toolkit.nri:
        annotations[f"{_NRI}{program.injected or program.container}"] = _EVERY_GPU
    _place(settings, spec)
    strategy = {"type": program.updates} if program.updates else _update_strategy(settings)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": program.name,
            "namespace": settings.namespace,
            **labelled(settings, marks),
        },
        "spec": {
            "selector": {"matchLabels": selector},
            "updateStrategy": strategy,
            "template": {"metadata": labelled(settings, marks, annotations), "spec": spec},
        },
    }


def _place(settings: ClusterObjects, spec: Json) -> None:
    """Set the paths of the node's root and of the driver's, where they are not the usual ones."""
    volumes = {one["name"]: one for one in spec.get("volumes", ())}
    root = settings.host_root
    if root not in ("", "/"):
        if HOST_ROOT in volumes:
            volumes[HOST_ROOT]["hostPath"]["path"] = root
            for one in (*spec.get("initContainers", ()), *spec["containers"]):
                set_variable(one, "HOST_ROOT", root)
        if DEV_CHAR in volumes:
            volumes[DEV_CHAR]["hostPath"]["path"] = f"{root.rstrip('/')}/dev/char"
    if DRIVER_ROOT in volumes:
        volumes[DRIVER_ROOT]["hostPath"]["path"] = settings.driver_root


def pod_spec(
    settings: ClusterObjects,
    component: Component,
    *,
    account: str,
    nodes: Mapping[str, str],
    api: bool,
    host_network: bool = False,
    gpus: bool = True,
) -> Json:
    """The specification of pods without containers and volumes.

    Args:
        settings, component: of the policy.
        account: service account.
        nodes: labels of the Nodes.
        api: the pods have a token.
        host_network: pods use the node's network, whatever the component says.
        gpus: the runtime gives the pods GPUs.
    """
    pods = settings.pods
    runtime_class = settings.runtime_class if gpus else ""
    spec: Json = {
        "serviceAccountName": account,
        "automountServiceAccountToken": api,
        **({"runtimeClassName": runtime_class} if runtime_class else {}),
        **({"priorityClassName": pods.priority_class} if pods.priority_class else {}),
        "nodeSelector": dict(nodes),
        "tolerations": _tolerations(settings),
    }
    if pods.security_context:
        spec["securityContext"] = dict(pods.security_context)
    if component.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": one} for one in component.image_pull_secrets]
    if component.host_network or host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return spec


def claim_template(name: str, namespace: str) -> Json:
    """The template of a claim for all GPUs of a node, for monitoring: others can use them at the same time."""
    every = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All", "adminAccess": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [{"name": _CLAIM, "exactly": every}]}}},
    }


def _tolerations(settings: ClusterObjects) -> list[Json]:
    """Those of the policy, and the start-up taint: a Node is validated with the components' pods."""
    found = [dict(one) for one in settings.pods.tolerations]
    startup: Json = {"key": settings.startup_taint, "operator": "Exists"}
    return found if startup in found else [*found, startup]


def mig_variables(settings: ClusterObjects) -> dict[str, str]:
    """Variables for MIG; without ``none``, the program sees all MIG devices."""
    found = {"MIG_STRATEGY": settings.mig_strategy} if settings.mig_strategy else {}
    if settings.mig_strategy != "none":
        found["NVIDIA_MIG_MONITOR_DEVICES"] = "all"
    return found


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
            variable("NODE_NAME", "spec.nodeName"),
        ],
        # It signals a process of another container.
        **({"securityContext": {"privileged": True}} if signal else {}),
        "volumeMounts": [mount(*one) for one in _CONFIG_MOUNTS],
    }


def _update_strategy(settings: ClusterObjects) -> Json:
    pods = settings.pods
    if pods.update_strategy == "OnDelete":
        return {"type": "OnDelete"}
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": pods.max_unavailable, "maxSurge": 0},
    }


def labelled(
    settings: ClusterObjects, selector: Mapping[str, str], annotations: Mapping[str, str] = _NONE
) -> Json:
    """Labels and annotations of a DaemonSet or of its pods."""
    pods = settings.pods
    found: Json = {"labels": {**pods.labels, **selector}}
    if annotations or pods.annotations:
        found["annotations"] = {**annotations, **pods.annotations}
    return found
