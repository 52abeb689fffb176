"""NVIDIA's driver as containers: on nodes whose system takes no packages, or whose owner wants NVIDIA's images.

A ClusterPolicy has one DaemonSet; with precompiled drivers one for each kernel. An NVIDIADriver has one for each
system, or kernel, of its nodes. Pods are replaced only when they are deleted: a driver cannot be replaced while
GPUs are in use.

Sources:
    NVIDIA/gpu-operator v26.7: assets/state-driver, controllers/object_controls.go (TransformDriver), manifests/state-driver,
    internal/state/driver.go, driver_volumes.go and nodepool.go; NVIDIA/k8s-driver-manager v0.12: cmd/driver-manager (its
    requests).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gpustate import shell
from gpustate.errors import PolicyError
from gpustate.manifests import jinja_templates as templates, rbac, systems, workloads
from gpustate.manifests.components.part import Json, Part
from gpustate.manifests.containers import (
    config_map,
    host_path,
    image_of,
    mount,
    variable,
    with_secrets,
)
from gpustate.manifests.pods import Program, daemon_set
from gpustate.manifests.settings import (
    ClusterObjects,
    Component,
    DriverContainer,
    Files,
    System,
)

NODE_LABEL = "nvidia.com/gpu.deploy.driver"
#: Names the NVIDIADriver of a Node.
OWNER_LABEL = "nvidia.com/gpu-operator.driver.owner"
_NAME, _ACCOUNT, _COMPONENT = "nvidia-driver-daemonset", "nvidia-driver", "nvidia-driver"
_PROBE_MAP, _PROBE_KEY = "nvidia-driver-startup-probe", "startup-probe.sh"
_BUILT = {"initialDelaySeconds": 10, "timeoutSeconds": 10}
#: Of precompiled drivers in an NVIDIADriver, which build nothing.
_PRECOMPILED_S = 5
_ARCHITECTURE = re.compile(r"(x86_64|aarch64)(_64k)?")
_DIGEST = "DRIVER_CONFIG_DIGEST"
_WAIT = (
    "until [ -d /run/nvidia/driver/usr/src ] && lsmod | grep nvidia; do echo waiting for the driver; sleep 10; done; "
    "exec {} install"
)
#: Folders of package sources and of certificates in the containers, by system.
_SUSE = ("sles", "sl-micro")
_REPOSITORIES = {
    **dict.fromkeys(("debian", "ubuntu"), "/etc/apt/sources.list.d"),
    **dict.fromkeys(("centos", "rhcos", "rhel", "rocky", "ol"), "/etc/yum.repos.d"),
    **dict.fromkeys(_SUSE, "/etc/zypp/repos.d"),
}
_CERTIFICATES = {
    **dict.fromkeys(("debian", "ubuntu"), "/usr/local/share/ca-certificates"),
    **dict.fromkeys(("centos", "rhcos", "rhel", "rocky", "ol"), "/etc/pki/ca-trust/extracted/pem"),
    **dict.fromkeys(_SUSE, "/etc/pki/trust/anchors"),
}
#: Subscriptions of the node, by which containers install packages: path in the container, on the node, its type.
_SUBSCRIPTIONS = {
    "rhel": (
        ("/run/secrets/etc-pki-entitlement", "/etc/pki/entitlement", "Directory"),
        ("/run/secrets/redhat.repo", "/etc/yum.repos.d/redhat.repo", "File"),
        ("/run/secrets/rhsm", "/etc/rhsm", "Directory"),
    ),
    **dict.fromkeys(
        _SUSE,
        (
            ("/etc/SUSEConnect", "/etc/SUSEConnect", "FileOrCreate"),
            ("/etc/zypp/credentials.d", "/etc/zypp/credentials.d", "Directory"),
        ),
    ),
}

RULES = (
    rbac.rule("", "nodes", "get list patch update watch"),
    rbac.rule("", "pods", "get list watch"),
    rbac.rule("", "pods/eviction", "create"),
    rbac.rule("resource.k8s.io", "resourceclaims", "get list"),
    rbac.rule("apps", "daemonsets", "get"),
)


@dataclass(frozen=True, slots=True)
class _Pool:
    """Nodes with one system; of precompiled drivers, with one kernel.

    Args:
        driver: on them.
        system: theirs.
        name: of the DaemonSet.
        account: of its pods.
    """

    driver: DriverContainer
    system: System
    name: str
    account: str


def _objects(settings: ClusterObjects, image: str) -> Iterator[Json]:
    probe = shell.program("driver_ready", "gpustate.manifests")
    yield config_map(settings, Files(_PROBE_MAP, {_PROBE_KEY: probe}))
    accounts: set[str] = set()
    maps: set[str] = set()
    for driver in settings.drivers:
        for pool in _pools(settings, driver):
            if pool.account not in accounts:
                accounts.add(pool.account)
                yield rbac.account(pool.account, settings.namespace)
                yield from rbac.grant(pool.account, settings.namespace, RULES, cluster=True)
            yield _daemon_set(settings, pool, driver.image or image)
        for one in (driver.repositories, driver.certificates, driver.module_config):
            if one is not None and one.name not in maps:
                maps.add(one.name)
                yield config_map(settings, one)


def systems_of(settings: ClusterObjects) -> tuple[System, ...]:
    """The systems of nodes with GPUs.

    Raises:
        PolicyError: none is known.
    """
    if not settings.systems:
        raise PolicyError(
            "the image of a driver container is for one system, and that of the nodes is not known",
            fix="list them with systems: [ubuntu22.04] in gpustate.yaml next to the policy",
        )
    return settings.systems


def _pools(settings: ClusterObjects, driver: DriverContainer) -> Iterator[_Pool]:
    """The pools of a driver, each once.

    Raises:
        PolicyError: systems that one DaemonSet does not serve, or a kernel that is not known.
    """
    found = systems_of(settings)
    if driver.precompiled:
        for one in found:
            if not one.kernel:
                raise PolicyError(
                    f"precompiled drivers are for one kernel, and that of {one.tag} is not known",
                    fix=f"write {one.name}{one.version}/KERNEL in systems, as uname -r prints it",
                )
        found = tuple({(one.tag, one.kernel): one for one in found}.values())
    else:
        found = tuple({one.tag: one for one in found}.values())
    if driver.owner:
        for one in found:
            account = f"nvidia-gpu-driver-{driver.owner}-{one.tag}"[:253]
            yield _Pool(driver, one, _pool_name(driver, one), account)
        return
    if not driver.precompiled and len(found) > 1:
        raise PolicyError(
            f"a ClusterPolicy has one driver image, and the nodes have {', '.join(one.tag for one in found)}",
            fix="use an NVIDIADriver, which has a DaemonSet for each system: driver.useNvidiaDriverCRD",
        )
    for one in found:
        name = _NAME
        if driver.precompiled:
            name = f"{_NAME}-{_plain_kernel(one.kernel)}-{one.name}{one.version}"
        yield _Pool(driver, one, name, _ACCOUNT)


def _pool_name(driver: DriverContainer, system: System) -> str:
    """The name of the DaemonSet of an NVIDIADriver, at most 63 characters."""
    kernel = system.kernel if driver.precompiled else ""
    mark = hashlib.sha256(f"{driver.owner} {kernel}".encode()).hexdigest()[:10]
    return f"{f'nvidia-gpu-driver-{system.tag}'[: 63 - len(mark) - 1]}-{mark}"


def _plain_kernel(kernel: str) -> str:
    """A kernel in names of objects: without the architecture."""
    return _ARCHITECTURE.sub("", kernel).replace("_", ".").removesuffix(".").lower()


def _daemon_set(settings: ClusterObjects, pool: _Pool, image: str) -> Json:
    driver = pool.driver
    if driver.pods is not None:
        settings = replace(settings, pods=driver.pods)
    tagged = with_system(image, pool.system, driver.precompiled)
    manager = image_of(settings, driver.manager, "driver.manager")
    files, volumes = _files(pool)
    pod = _pod(driver)
    beside = [*_beside(settings, pool, tagged, files, pod)]
    digest = _digest(driver, (tagged, manager, *(one["image"] for one in beside)), pool, settings)
    probe = pod["probe"]
    if driver.owner and driver.precompiled:
        probe["initialDelaySeconds"] = _PRECOMPILED_S
    program = Program(
        name=pool.name if driver.owner else _NAME,
        container="nvidia-driver-ctr",
        account=pool.account,
        nodes=_nodes(pool),
        command=["nvidia-driver"],
        # An NVIDIADriver's arguments follow, those of a ClusterPolicy replace.
        args=["init", *(driver.args if driver.owner else ())],
        env={
            **({"NVIDIA_VISIBLE_DEVICES": "void"} if driver.owner else {}),
            **_variables(driver),
            _DIGEST: digest,
        },
        fields={"NODE_NAME": "spec.nodeName", "NODE_IP": "status.hostIP"},
        mounts=[*pod["mounts"], *files],
        volumes=[*pod["volumes"], *volumes],
        more={
            "startupProbe": {
                "exec": {"command": ["sh", f"/usr/local/bin/{_PROBE_KEY}"]},
                **probe,
                **driver.startup_probe,
            },
            "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", pod["stop"]]}}},
            **env_from(driver),
        },
        annotations={"kubectl.kubernetes.io/default-container": "nvidia-driver-ctr"},
        security=PRIVILEGED,
        marks=_marks(pool),
        first=[_manager(driver, manager, {**pod["manager"], _DIGEST: digest})],
        beside=beside,
        updates="OnDelete",
        spec={"affinity": pod["affinity"]},
        host_pid=True,
        api=True,
        gpus=False,
    )
    merged = with_secrets(driver, driver.manager, driver.gds, driver.gdrcopy)
    if driver.owner:
        merged = replace(merged, args=())
    found = daemon_set(settings, merged, tagged, program)
    found["metadata"]["name"] = pool.name
    return found


#: Of containers that change the kernel of their node.
PRIVILEGED = {"privileged": True, "seLinuxOptions": {"level": "s0"}}


def with_system(image: str, system: System, precompiled: bool = False) -> str:
    """The image for a system: its tag ends in the system; a digest names one already.

    Raises:
        PolicyError: a digest of a precompiled driver.
    """
    if "sha256:" in image:
        if precompiled:
            raise PolicyError(
                "a precompiled driver cannot be a digest: there is an image for each kernel",
                fix="set its version to a branch",
            )
        return image
    return f"{image}-{system.kernel}-{system.tag}" if precompiled else f"{image}-{system.tag}"


def _nodes(pool: _Pool) -> dict[str, str]:
    driver, system = pool.driver, pool.system
    found = {NODE_LABEL: "true"}
    if driver.owner:
        found |= {**driver.nodes, systems.PRESENT: "true", OWNER_LABEL: driver.owner}
        found[systems.NAME] = system.name
        if system.is_major:
            found[systems.MAJOR] = system.version.partition(".")[0]
        else:
            found[systems.VERSION] = system.version
    if driver.precompiled:
        found[systems.KERNEL] = system.kernel
    return found


def _marks(pool: _Pool) -> dict[str, str]:
    driver, system = pool.driver, pool.system
    found = {
        "app.kubernetes.io/component": _COMPONENT,
        "nvidia.com/precompiled": str(driver.precompiled).lower(),
    }
    if driver.owner:
        found["nvidia.com/node.os-version"] = system.tag
        if driver.precompiled:
            found["nvidia.com/precompiled.kernel-version"] = _plain_kernel(system.kernel)
    return found


def _variables(driver: DriverContainer) -> dict[str, str]:
    found: dict[str, str] = {}
    if driver.module_type:
        found["KERNEL_MODULE_TYPE"] = driver.module_type
        if driver.module_type == "open":
            found["OPEN_KERNEL_MODULES_ENABLED"] = "true"  # of earlier images
    if driver.gdrcopy.enabled:
        found["GDRCOPY_ENABLED"] = "true"
    if driver.gds.enabled:
        found["GDS_ENABLED"] = "true"
    return {**found, **_rdma(driver)}


def _rdma(driver: DriverContainer) -> dict[str, str]:
    if not driver.rdma:
        return {}
    return {
        "GPU_DIRECT_RDMA_ENABLED": "true",
        **({"USE_HOST_MOFED": "true"} if driver.host_mofed else {}),
    }


def manager_values(settings: ClusterObjects, manager: Component, section: str) -> Json:
    """Values of the init container that removes the loaded driver before another one is loaded."""
    return {
        "manager_image": partial(image_of, settings, manager, section),
        "manager_env": workloads.variables(manager.env),
        "manager_secrets": workloads.secrets(manager),
    }


def manager_container(
    component: Component, image: str, env: Mapping[str, str], resources: Mapping[str, object]
) -> Json:
    """The init container that removes the loaded driver before another one is loaded."""
    variables = {"NVIDIA_VISIBLE_DEVICES": "void", **env, **component.env}
    fields = {"NODE_NAME": "spec.nodeName", "OPERATOR_NAMESPACE": "metadata.namespace"}
    return {
        "name": "k8s-driver-manager",
        "image": image,
        "imagePullPolicy": component.image_pull_policy,
        "command": ["driver-manager"],
        "args": ["uninstall_driver"],
        "env": [
            *({"name": key, "value": text} for key, text in variables.items()),
            *(variable(key, path) for key, path in fields.items() if key not in variables),
        ],
        "securityContext": {"privileged": True},
        "volumeMounts": [
            mount("run-nvidia", "/run/nvidia", mountPropagation="Bidirectional"),
            mount("host-root", "/host", readOnly=True, mountPropagation="HostToContainer"),
            mount("host-sys", "/sys"),
        ],
        "resources": dict(resources),
    }


def _manager(driver: DriverContainer, image: str, env: Mapping[str, str]) -> Json:
    found = manager_container(driver.manager, image, {**env, **_rdma(driver)}, driver.resources)
    found["volumeMounts"].append(
        mount("run-mellanox-drivers", "/run/mellanox/drivers", mountPropagation="HostToContainer")
    )
    return found


def _beside(
    settings: ClusterObjects, pool: _Pool, image: str, files: list[Json], pod: Json
) -> Iterator[Json]:
    """Containers with further kernel modules.

    Raises:
        PolicyError: they are built, and a precompiled driver has no sources.
    """
    driver = pool.driver
    log = [mount("var-log", "/var/log"), mount("dev-log", "/dev/log", readOnly=True)]
    if driver.rdma:
        host = {"USE_HOST_MOFED": "true"} if driver.host_mofed else {}
        env = {"NVIDIA_VISIBLE_DEVICES": "void", **host} if driver.owner else host
        shared = files if driver.owner else _of(driver.module_config, "/drivers")
        container = {
            **pod["peermem"],
            "image": image,
            "imagePullPolicy": driver.image_pull_policy,
            **_env(env),
            "volumeMounts": [*pod["peermem"]["volumeMounts"], *shared],
        }
        yield {key: value for key, value in container.items() if value}
    for name, component, section, program, module in (
        ("nvidia-fs-ctr", driver.gds, "gds", "nvidia-gds-driver", "nvidia_fs"),
        ("nvidia-gdrcopy-ctr", driver.gdrcopy, "gdrcopy", "nvidia-gdrcopy-driver", "gdrdrv"),
    ):
        if not component.enabled:
            continue
        if driver.precompiled:
            raise PolicyError(
                f"{section} is built from the driver's sources, which a precompiled driver has not",
                fix=f"set {section}.enabled or usePrecompiled to false",
            )
        shared = files
        if not driver.owner:
            system = pool.system.name
            shared = [
                *_of(driver.repositories, folder(_REPOSITORIES, system)),
                *_of(driver.certificates, folder(_CERTIFICATES, system)),
            ]
        yield {
            "name": name,
            "image": with_system(image_of(settings, component, section), pool.system),
            "imagePullPolicy": component.image_pull_policy,
            "command": ["bash", "-xc"],
            "args": [_WAIT.format(program)],
            **_env(component.env),
            **env_from(driver),
            "securityContext": PRIVILEGED,
            "startupProbe": {
                "exec": {"command": ["sh", "-c", f"lsmod | grep {module}"]},
                **pod["probe"],
                **_BUILT,
            },
            "volumeMounts": [
                mount("run-nvidia", "/run/nvidia", mountPropagation="HostToContainer"),
                *log,
                *shared,
            ],
        }


def _env(env: Mapping[str, str]) -> Json:
    return {"env": [{"name": key, "value": text} for key, text in env.items()]} if env else {}


def env_from(driver: DriverContainer) -> dict[str, list[Json]]:
    """Variables from a Secret."""
    if not driver.secret_env or (driver.precompiled and not driver.owner):
        return {}
    return {"envFrom": [{"secretRef": {"name": driver.secret_env}}]}


def folder(folders: Mapping[str, str], system: str) -> str:
    """A folder in the containers of a system.

    Raises:
        PolicyError: the system has none.
    """
    if system not in folders:
        raise PolicyError(
            f"no folder of package sources and certificates in driver containers for {system}",
            fix=f"wanted {', '.join(sorted(folders))}",
        )
    return folders[system]


def _of(files: Files | None, path: str) -> list[Json]:
    if files is None:
        return []
    return [
        mount(files.name, f"{path}/{key}", readOnly=True, subPath=key) for key in sorted(files.data)
    ]


def files_volume(files: Files) -> Json:
    """The volume of files, with each of its keys."""
    items = [{"key": key, "path": key} for key in sorted(files.data)]
    return {"name": files.name, "configMap": {"name": files.name, "items": items}}


def module_files(files: Files | None) -> tuple[list[Json], list[Json]]:
    """Mounts and volumes of parameters of kernel modules."""
    return _of(files, "/drivers"), [files_volume(files)] if files is not None else []


def _files(pool: _Pool) -> tuple[list[Json], list[Json]]:
    """Mounts and volumes of what the policy adds."""
    driver, system = pool.driver, pool.system.name
    mounts, volumes = module_files(driver.module_config)
    if driver.license is not None:
        one = driver.license
        keys = ["gridd.conf", *(["client_configuration_token.tok"] if one.token else [])]
        paths = ("/drivers/gridd.conf", "/drivers/ClientConfigToken/client_configuration_token.tok")
        items = [{"key": key, "path": key} for key in keys]
        source: Json = (
            {"secret": {"secretName": one.name, "items": items}}
            if one.secret
            else {"configMap": {"name": one.name, "items": items}}
        )
        mounts += [
            mount("licensing-config", path, readOnly=True, subPath=key)
            for key, path in zip(keys, paths, strict=False)
        ]
        volumes.append({"name": "licensing-config", **source})
    if driver.topology:
        key = "nvidia-topologyd.conf"
        mounts.append(mount("topology-config", f"/etc/nvidia/{key}", readOnly=True, subPath=key))
        source = {"name": driver.topology, "items": [{"key": key, "path": key}]}
        volumes.append({"name": "topology-config", "configMap": source})
    if driver.precompiled:
        if system in _SUSE and not driver.owner:
            mounts.append(mount("lib-modules", "/run/host/lib/modules", readOnly=True))
            volumes.append(host_path("lib-modules", "/lib/modules", "Directory"))
        return mounts, volumes
    for files, folders in (
        (driver.repositories, _REPOSITORIES),
        (driver.certificates, _CERTIFICATES),
    ):
        if files is not None:
            mounts += _of(files, folder(folders, system))
            volumes.append(files_volume(files))
    if not (system == "rhel" and driver.repositories is not None):
        for number, (path, source_path, kind) in enumerate(_SUBSCRIPTIONS.get(system, ())):
            name = f"subscription-config-{number}"
            mounts.append(mount(name, path, readOnly=True))
            volumes.append(host_path(name, source_path, kind))
    return mounts, volumes


def _pod(driver: DriverContainer) -> Json:
    """What does not depend on the other settings."""
    host_mofed = driver.rdma and driver.host_mofed
    (pod,) = templates.objects("driver-pod.yaml", owner=bool(driver.owner), host_mofed=host_mofed)
    return pod


def _digest(
    driver: DriverContainer, images: tuple[str, ...], pool: _Pool, settings: ClusterObjects
) -> str:
    """A digest of what the installation depends on; with the same one, a new pod keeps the loaded driver."""
    parts = [
        *(images, pool.system.kernel if driver.precompiled else "", driver.args, driver.env),
        *(driver.manager.env, driver.gds.env, driver.gdrcopy.env, _variables(driver)),
        *(driver.secret_env, driver.topology, settings.host_root),
        driver.license.name if driver.license is not None else "",
        *(
            one.name if one is not None else ""
            for one in (driver.module_config, driver.repositories, driver.certificates)
        ),
    ]
    text = json.dumps(parts, sort_keys=True, default=dict)
    return str(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16))


PART = Part("driver", "drivers", NODE_LABEL, "driver", replaces=True, build=_objects)
