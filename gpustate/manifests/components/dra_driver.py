"""NVIDIA's driver for dynamic resource allocation (DRA): device classes, the kubelet plugin, and compute domains.

It takes the place of the device plugin; the two never offer the same GPUs.

Sources:
    NVIDIA/gpu-operator v26.7: manifests/state-dra-driver (names, rights, variables, probes, the admission policy);
    kubernetes-sigs/dra-driver-nvidia-gpu v0.5: deployments/helm, cmd/gpu-kubelet-plugin (variables);
    kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpustate.manifests import jinja_templates as templates
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import (
    DRIVER_ROOT,
    check,
    host_path,
    mount,
    validations,
    validations_mount,
    variable,
)
from gpustate.manifests.ownership import DRA_LEASE, DRA_PLUGIN
from gpustate.manifests.pods import labelled, pod_spec
from gpustate.manifests.settings import ClusterObjects, Container, DraDriver

NODE_LABEL = "nvidia.com/gpu.deploy.dra-driver"
CONTROLLER = DRA_LEASE
_ACCOUNT = "nvidia-dra-driver-kubeletplugin"
GPU = "gpu.nvidia.com"


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    driver = settings.dra_driver
    yield from templates.objects(
        "dra-driver.yaml",
        namespace=settings.namespace,
        controller=CONTROLLER,
        domains=driver.compute_domains,
        mps=bool(driver.feature_gates.get("MPSSupport")),
    )
    yield _plugin(settings, image)
    if driver.compute_domains:
        yield _controller(settings, image)


def _plugin(settings: ClusterObjects, image: str) -> Json:
    driver = settings.dra_driver
    containers = [
        _container(
            settings,
            image,
            driver.gpus,
            name="gpus",
            program="gpu-kubelet-plugin",
            env={"HTTP_ENDPOINT": ":8080", "HOST_ROOT": "/host", "IMAGE_NAME": image},
            liveness_s=30,
        )
    ]
    if driver.compute_domains:
        containers.append(
            _container(
                settings,
                image,
                driver.compute_domain_plugin,
                name="compute-domains",
                program="compute-domain-kubelet-plugin",
                env={"HTTP_ENDPOINT": ":8081", "GPU_CLIQUE_LABEL_ENABLED": "true"},
                liveness_s=10,
            )
        )
    root = settings.kubelet_root
    volumes = [
        host_path("plugins-registry", f"{root}/plugins_registry"),
        host_path("plugins", f"{root}/plugins"),
        host_path("cdi", "/var/run/cdi", "DirectoryOrCreate"),
        host_path("host-root", "/"),
    ]
    if driver.feature_gates.get("PassthroughSupport"):
        mounts = [
            mount("lib-modules", "/lib/modules", mountPropagation="HostToContainer", readOnly=True),
            mount("sysfs", "/sys", mountPropagation="Bidirectional"),
            mount("procfs", "/proc", mountPropagation="Bidirectional"),
        ]
        containers[0]["volumeMounts"] += mounts
        volumes += [
            host_path("lib-modules", "/lib/modules", "Directory"),
            host_path("sysfs", "/sys", "Directory"),
            host_path("procfs", "/proc", "Directory"),
        ]
    if settings.drivers:
        volumes += [
            host_path(DRIVER_ROOT, settings.driver_root, "DirectoryOrCreate"),
            validations(),
        ]
    selector = {"app": DRA_PLUGIN}
    labels = {
        "app.kubernetes.io/name": "nvidia-dra-driver",
        "app.kubernetes.io/component": DRA_PLUGIN,
        **selector,
    }
    spec = {
        **pod_spec(
            settings, driver, account=_ACCOUNT, nodes={NODE_LABEL: "true"}, api=True, gpus=False
        ),
        **({"initContainers": [_driver_check(settings)]} if settings.drivers else {}),
        "containers": containers,
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": DRA_PLUGIN,
            "namespace": settings.namespace,
            **labelled(settings, labels),
        },
        "spec": {
            "selector": {"matchLabels": selector},
            # A claim is prepared by the plugin that runs: an old and a new one side by side serve nobody.
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0},
            },
            "template": {"metadata": labelled(settings, labels), "spec": spec},
        },
    }


def _driver_check(settings: ClusterObjects) -> Json:
    """Waits for the driver container; GPUs may be bound for virtual machines, so none is used."""
    return check(
        settings,
        "driver",
        env={
            "WITH_WAIT": "true",
            "DRIVER_VALIDATION_SKIP_GPU_INIT": "true",
            "DISABLE_DEV_CHAR_SYMLINK_CREATION": "true",
            "HOST_ROOT": "/",
            "DRIVER_INSTALL_DIR": settings.driver_root,
            "DRIVER_INSTALL_DIR_CTR_PATH": "/driver-root",
        },
        fields={"OPERATOR_NAMESPACE": "metadata.namespace"},
        mounts=[
            mount("host-root", "/host", mountPropagation="HostToContainer", readOnly=True),
            mount(DRIVER_ROOT, "/driver-root", mountPropagation="HostToContainer"),
            validations_mount(),
        ],
        level=False,
    )


def _container(
    settings: ClusterObjects,
    image: str,
    container: Container,
    *,
    name: str,
    program: str,
    env: Mapping[str, str],
    liveness_s: int,
) -> Json:
    driver, root = settings.dra_driver, settings.kubelet_root
    variables = {
        "METRICS_PATH": "/metrics",
        "LOG_VERBOSITY": "4",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CDI_ROOT": "/var/run/cdi",
        "NVIDIA_MIG_CONFIG_DEVICES": "all",
        **(
            {} if settings.drivers else {"NVIDIA_DRIVER_ROOT": "/", "DRIVER_ROOT_CTR_PATH": "/host"}
        ),
        "KUBELET_REGISTRAR_DIRECTORY_PATH": f"{root}/plugins_registry",
        "KUBELET_PLUGINS_DIRECTORY_PATH": f"{root}/plugins",
        "HEALTHCHECK_PORT": str(container.healthcheck_port),
        **env,
        **_gates(driver),
        **container.env,
    }
    fields = {"NODE_NAME": "spec.nodeName", "NAMESPACE": "metadata.namespace"}
    found: Json = {
        "name": name,
        "image": image,
        "imagePullPolicy": driver.image_pull_policy,
        "command": _command(settings, program),
        "env": _variables(variables, fields),
        "securityContext": {"privileged": True},
        "volumeMounts": [
            mount("plugins-registry", f"{root}/plugins_registry"),
            mount("plugins", f"{root}/plugins", mountPropagation="Bidirectional"),
            mount("cdi", "/var/run/cdi"),
            mount("host-root", "/host", mountPropagation="HostToContainer", readOnly=True),
            *_driver_mounts(settings),
        ],
    }
    if container.resources:
        found["resources"] = dict(container.resources)
    if container.healthcheck_port:
        found["startupProbe"] = _probe(container.healthcheck_port, failures=600, every_s=1)
        found["livenessProbe"] = _probe(container.healthcheck_port, failures=3, every_s=liveness_s)
    return found


def _command(settings: ClusterObjects, program: str) -> list[str]:
    if not settings.drivers:
        return [program, "-v", "$(LOG_VERBOSITY)"]
    ready = "/run/nvidia/validations/driver-ready"
    return ["bash", "-c", f'set -a; . {ready}; set +a; exec {program} -v "$LOG_VERBOSITY"']


def _driver_mounts(settings: ClusterObjects) -> list[Json]:
    if not settings.drivers:
        return []
    return [
        mount("run-nvidia-validations", "/run/nvidia/validations", readOnly=True),
        mount(DRIVER_ROOT, "/driver-root", mountPropagation="HostToContainer"),
    ]


def _probe(port: int, *, failures: int, every_s: int) -> Json:
    return {
        "grpc": {"port": port, "service": "liveness"},
        "failureThreshold": failures,
        "periodSeconds": every_s,
        "timeoutSeconds": 10,
    }


def _controller(settings: ClusterObjects, image: str) -> Json:
    """The controller of compute domains."""
    driver = settings.dra_driver
    values = {"image": image, "controller": CONTROLLER, "namespace": settings.namespace}
    (pod,) = templates.objects("dra-controller.yaml", **values)
    variables = {**pod["env"], **_gates(driver), **driver.controller.env}
    fields = {"POD_NAME": "metadata.name", "NAMESPACE": "metadata.namespace"}
    container: Json = {
        "name": "compute-domain",
        "image": image,
        "imagePullPolicy": driver.image_pull_policy,
        "command": ["compute-domain-controller", "-v", "$(LOG_VERBOSITY)"],
        "env": _variables(variables, fields),
    }
    if driver.controller.resources:
        container["resources"] = dict(driver.controller.resources)
    selector = {"app": CONTROLLER}
    labels = {
        "app.kubernetes.io/name": "nvidia-dra-driver",
        "app.kubernetes.io/component": CONTROLLER,
        **selector,
    }
    spec = pod_spec(settings, driver, account=CONTROLLER, nodes={}, api=True, gpus=False)
    del spec["nodeSelector"]
    spec["tolerations"] = [*pod["tolerations"], *spec["tolerations"]]
    spec["affinity"] = pod["affinity"]
    spec["containers"] = [container]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": CONTROLLER,
            "namespace": settings.namespace,
            **labelled(settings, labels),
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector},
            "template": {"metadata": labelled(settings, labels), "spec": spec},
        },
    }


def _gates(driver: DraDriver) -> dict[str, str]:
    gates = ",".join(
        f"{name}={str(on).lower()}" for name, on in sorted(driver.feature_gates.items())
    )
    return {"FEATURE_GATES": gates} if gates else {}


def _variables(values: Mapping[str, str], fields: Mapping[str, str]) -> list[dict[str, Any]]:
    # $(NAME) of a command is filled in from variables that are listed.
    return [
        *({"name": key, "value": value} for key, value in values.items()),
        *(variable(key, path) for key, path in fields.items() if key not in values),
    ]


PART = Part("draDriver", "dra_driver", NODE_LABEL, build=_objects)
