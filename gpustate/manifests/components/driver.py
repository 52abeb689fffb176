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
from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.manifests import systems, workloads
from gpustate.manifests.components.part import Part
from gpustate.manifests.kinds import Key, key
from gpustate.manifests.ownership import DEPLOY
from gpustate.manifests.settings import ClusterSettings, Component, DriverContainer, Files, System
from gpustate.manifests.workloads import image_of

NODE_LABEL = f"{DEPLOY}driver"
#: Names the NVIDIADriver of a Node.
OWNER_LABEL = "nvidia.com/gpu-operator.driver.owner"
_NAME, _ACCOUNT = "nvidia-driver-daemonset", "nvidia-driver"
_PROBE = {
    "exec": {"command": ["sh", "/usr/local/bin/startup-probe.sh"]},
    "initialDelaySeconds": 60,
    "failureThreshold": 120,
    "successThreshold": 1,
    "periodSeconds": 10,
    "timeoutSeconds": 60,
}
_ARCHITECTURE = re.compile(r"(x86_64|aarch64)(_64k)?")
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


def _objects(settings: ClusterSettings, image: str) -> Iterator[Json]:
    items: dict[Key, Json] = {}
    for driver in settings.drivers:
        for pool in _pools(settings, driver):
            items |= {key(item): item for item in _of_pool(settings, pool, driver.image or image)}
        for files in (driver.repositories, driver.certificates, driver.module_config):
            if files is not None:
                item = workloads.config_map(settings, files)
                items.setdefault(key(item), item)
    yield from items.values()


def systems_of(settings: ClusterSettings) -> tuple[System, ...]:
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


def _pools(settings: ClusterSettings, driver: DriverContainer) -> Iterator[_Pool]:
    """The pools of a driver, each once.

    Raises:
        PolicyError: systems that one DaemonSet does not serve, or a kernel that is not known.
    """
    targets = systems_of(settings)
    if driver.precompiled:
        for system in targets:
            if not system.kernel:
                raise PolicyError(
                    f"precompiled drivers are for one kernel, and that of {system.tag} is not known",
                    fix=f"write {system.name}{system.version}/KERNEL in systems, as uname -r prints it",
                )
        targets = tuple({(system.tag, system.kernel): system for system in targets}.values())
    else:
        targets = tuple({system.tag: system for system in targets}.values())
    if driver.owner:
        for system in targets:
            account = f"nvidia-gpu-driver-{driver.owner}-{system.tag}"[:253]
            yield _Pool(driver, system, _pool_name(driver, system), account)
        return
    if not driver.precompiled and len(targets) > 1:
        tags = ", ".join(system.tag for system in targets)
        raise PolicyError(
            f"a ClusterPolicy has one driver image, and the nodes have {tags}",
            fix="use an NVIDIADriver, which has a DaemonSet for each system: driver.useNvidiaDriverCRD",
        )
    for system in targets:
        name = _NAME
        if driver.precompiled:
            name = f"{_NAME}-{_plain_kernel(system.kernel)}-{system.name}{system.version}"
        yield _Pool(driver, system, name, _ACCOUNT)


def _pool_name(driver: DriverContainer, system: System) -> str:
    """The name of the DaemonSet of an NVIDIADriver, at most 63 characters."""
    kernel = system.kernel if driver.precompiled else ""
    mark = hashlib.sha256(f"{driver.owner} {kernel}".encode()).hexdigest()[:10]
    return f"{f'nvidia-gpu-driver-{system.tag}'[: 63 - len(mark) - 1]}-{mark}"


def _plain_kernel(kernel: str) -> str:
    """A kernel in names of objects: without the architecture."""
    return _ARCHITECTURE.sub("", kernel).replace("_", ".").removesuffix(".").lower()


def _of_pool(settings: ClusterSettings, pool: _Pool, image: str) -> Iterator[Json]:
    driver, system = pool.driver, pool.system
    if driver.pods is not None:
        settings = replace(settings, pods=driver.pods)
    tagged = with_system(image, system, driver.precompiled)
    values = {
        **manager_values(settings, driver.manager, "driver.manager"),
        **_files(pool),
        "manager_image": image_of(settings, driver.manager, "driver.manager"),
    }
    images = [tagged, values["manager_image"], *([tagged] if driver.rdma else ())]
    for section, component in (("gds", driver.gds), ("gdrcopy", driver.gdrcopy)):
        if component.enabled:
            values[f"{section}_image"] = _image_of_module(settings, pool, component, section)
            values[f"{section}_env"] = workloads.variables(component.env)
            images.append(values[f"{section}_image"])
    values |= {
        "name": pool.name,
        "account": pool.account,
        "system": system,
        "plain_kernel": _plain_kernel(system.kernel),
        "node_selector": _nodes(pool),
        "pull_secrets": workloads.secrets(driver.manager, driver.gds, driver.gdrcopy),
        # An NVIDIADriver's arguments follow, those of a ClusterPolicy replace.
        "driver_args": ["init", *driver.args] if driver.owner else driver.args or ["init"],
        "driver_variables": workloads.variables(_variables(driver)),
        "digest": _digest(driver, tuple(images), pool, settings),
        "has_secret_env": driver.secret_env and (driver.owner or not driver.precompiled),
        "startup_probe": {
            **_PROBE,
            **({"initialDelaySeconds": 5} if driver.owner and driver.precompiled else {}),
            **driver.startup_probe,
        },
        "startup_probe_script": shell.program("driver_ready", "gpustate.manifests"),
    }
    yield from workloads.objects("drivers", settings, driver, tagged, values)


def _image_of_module(
    settings: ClusterSettings, pool: _Pool, component: Component, section: str
) -> str:
    """The image of a container with a further kernel module.

    Raises:
        PolicyError: it is built, and a precompiled driver has no sources.
    """
    if pool.driver.precompiled:
        raise PolicyError(
            f"{section} is built from the driver's sources, which a precompiled driver has not",
            fix=f"set {section}.enabled or usePrecompiled to false",
        )
    return with_system(image_of(settings, component, section), pool.system)


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
    labels = {NODE_LABEL: "true"}
    if driver.owner:
        labels |= {**driver.nodes, systems.PRESENT: "true", OWNER_LABEL: driver.owner}
        labels[systems.NAME] = system.name
        if system.is_major:
            labels[systems.MAJOR] = system.version.partition(".")[0]
        else:
            labels[systems.VERSION] = system.version
    if driver.precompiled:
        labels[systems.KERNEL] = system.kernel
    return labels


def _variables(driver: DriverContainer) -> dict[str, str]:
    variables: dict[str, str] = {}
    if driver.module_type:
        variables["KERNEL_MODULE_TYPE"] = driver.module_type
        if driver.module_type == "open":
            variables["OPEN_KERNEL_MODULES_ENABLED"] = "true"  # of earlier images
    for name, enabled in (
        ("GDRCOPY_ENABLED", driver.gdrcopy.enabled),
        ("GDS_ENABLED", driver.gds.enabled),
        ("GPU_DIRECT_RDMA_ENABLED", driver.rdma),
        ("USE_HOST_MOFED", driver.rdma and driver.host_mofed),
    ):
        if enabled:
            variables[name] = "true"
    return variables


def manager_values(settings: ClusterSettings, manager: Component, section: str) -> Json:
    """Values of the init container that removes the loaded driver before another one is loaded."""
    return {
        "manager_image": partial(image_of, settings, manager, section),
        "manager_env": workloads.variables(manager.env),
        "manager_secrets": workloads.secrets(manager),
    }


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


def module_files(files: Files | None) -> Json:
    """Mounts and volumes of parameters of kernel modules."""
    mounts, volumes = _mounted(files, "/drivers")
    return {"module_mounts": mounts, "module_volumes": volumes}


def _mounted(files: Files | None, path: str) -> tuple[list[Json], list[Json]]:
    """Mounts of files, with each of their keys, and their volume."""
    if files is None:
        return [], []
    keys = sorted(files.data)
    items = [{"key": key, "path": key} for key in keys]
    mounts = [
        {"name": files.name, "mountPath": f"{path}/{key}", "readOnly": True, "subPath": key}
        for key in keys
    ]
    return mounts, [{"name": files.name, "configMap": {"name": files.name, "items": items}}]


def _files(pool: _Pool) -> Json:
    """What the policy and the system of the nodes add to the files in the container."""
    driver, system = pool.driver, pool.system.name
    built, mounts, volumes = not driver.precompiled, list[Json](), list[Json]()
    sources = ((driver.repositories, _REPOSITORIES), (driver.certificates, _CERTIFICATES))
    for files, folders in sources:
        if files is not None and built:
            more_mounts, more_volumes = _mounted(files, folder(folders, system))
            mounts += more_mounts
            volumes += more_volumes
    return {
        **module_files(driver.module_config),
        "source_mounts": mounts,
        "source_volumes": volumes,
        "reads_modules": driver.precompiled and system in _SUSE and not driver.owner,
        "subscribed_rhel": built and system == "rhel" and driver.repositories is None,
        "subscribed_suse": built and system in _SUSE,
    }


def _digest(
    driver: DriverContainer, images: tuple[str, ...], pool: _Pool, settings: ClusterSettings
) -> str:
    """A digest of what the installation depends on; with the same one, a new pod keeps the loaded driver."""
    parts = [
        *(images, pool.system.kernel if driver.precompiled else "", driver.args, driver.env),
        *(driver.manager.env, driver.gds.env, driver.gdrcopy.env, _variables(driver)),
        *(driver.secret_env, driver.topology, settings.host_root),
        driver.license.name if driver.license is not None else "",
        *(
            files.name if files is not None else ""
            for files in (driver.module_config, driver.repositories, driver.certificates)
        ),
    ]
    text = json.dumps(parts, sort_keys=True, default=dict)
    return str(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16))


PART = Part("driver", "drivers", NODE_LABEL, "driver", replaces=True, build=_objects)
