"""NVIDIA's containers for driver, toolkit, validator and managers, as a ClusterPolicy, an NVIDIADriver or values ask for them.

They are made only for components that ``gpustate.yaml`` names (:mod:`gpustate.gpu_operator.choice`).

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go, internal/state/driver.go and driver_volumes.go,
    deployments/gpu-operator/templates/nvidiadriver.yaml, api/nvidia/v1/clusterpolicy_types.go (``IsEnabled``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.gpu_operator.companions import CONFIG_MAP
from gpustate.gpu_operator.components import component, settings, texts, value, variables
from gpustate.gpu_operator.desired import Source
from gpustate.gpu_operator.operands import missing_key_error, missing_reference, require_config_map
from gpustate.gpu_operator.runtime import cdi_by_default
from gpustate.manifests.components.mig_manager import DEFAULT_CLIENTS, DEFAULT_LAYOUTS
from gpustate.manifests.settings import (
    ClusterSettings,
    Component,
    DriverContainer,
    Files,
    HostDriver,
    License,
    MigManager,
    Pods,
    ToolkitContainer,
    ValidatorContainer,
    VgpuDeviceManager,
)
from gpustate.mig import builtin

_PROBE = (
    *("initialDelaySeconds", "timeoutSeconds", "periodSeconds"),
    *("successThreshold", "failureThreshold"),
)
#: Checks of the validator, and their sections.
_CHECKS = {
    "driver": "driver",
    "toolkit": "toolkit",
    "cuda": "cuda",
    "plugin": "plugin",
    "vfio-pci": "vfioPCI",
    "vgpu-manager": "vgpuManager",
    "vgpu-devices": "vgpuDevices",
}
#: Services that use GPUs, as the Operator names them.
_CLIENTS = (
    *("nvsm", "nvsm-mqtt", "nvsm-core", "nvsm-api-gateway", "nvsm-notifier", "nv_peer_mem"),
    *("nvidia-dcgm", "dcgm", "dcgm-exporter"),
)
#: The ConfigMap that the Operator brings itself.
_VGPU_TYPES = "default-vgpu-devices-config"
#: Labels that an NVIDIADriver cannot set.
_RESERVED = "app.kubernetes.io/"


def with_containers(
    source: Source, objects: ClusterSettings, drivers: Iterable[DriverContainer]
) -> ClusterSettings:
    """The objects, with those of the components that run as containers.

    Raises:
        PolicyError: a ConfigMap that is missing, or an image that is set in part only.
    """
    objects = replace(objects, drivers=tuple(drivers), systems=source.choice.systems)
    if source.kind == "gpucluster":
        return objects
    machines = source.enabled("sandboxWorkloads", otherwise=False)
    toolkit = _toolkit(source)
    objects = replace(
        objects,
        toolkit=toolkit,
        validator=_validator(source, machines=machines),
        mig_manager=_mig_manager(source),
        vgpu_manager=_host_driver(source, "vgpuManager", machines=machines),
        vgpu_device_manager=_vgpu_devices(source, machines=machines),
        vfio_manager=_host_driver(source, "vfioManager", machines=machines),
    )
    if not toolkit.enabled:
        return objects
    return replace(
        objects,
        cdi_hook=f"{toolkit.install_dir}/toolkit/nvidia-cdi-hook",
        runtime_class="" if toolkit.nri else objects.runtime_class,
    )


# --- the driver ---------------------------------------------------------------------------


def of_policy(source: Source) -> DriverContainer:
    """The driver of a ClusterPolicy."""
    container = _driver(source, "driver.")
    config = source.spec.get("driver", "licensingConfig", "configMapName")
    return replace(
        container,
        repositories=_files(source, "driver.repoConfig.configMapName"),
        license=_license(source, "driver.", config.value if config is not None else ""),
    )


def of_object(source: Source, name: str, condition: str) -> DriverContainer:
    """The driver of an NVIDIADriver.

    Raises:
        PolicyError: its image is not set: it has no default of a release.
    """
    container = _driver(source, "")
    if not container.image:
        raise PolicyError(
            f"NVIDIADriver {name} does not set its image",
            place=source.place(source.spec),
            fix="set repository, image and version",
        )
    config = source.spec.get("licensingConfig", "name")
    return replace(
        container,
        owner=name,
        condition=condition,
        nodes=texts(source, "nodeSelector"),
        pods=Pods(
            labels=_own_labels(source, "labels"),
            tolerations=_with_default(value(source, "tolerations")),
            security_context=value(source, "podSecurityContext") or {},
            **settings(source, "pods"),
        ),
        repositories=_files(source, "repoConfig.name"),
        license=_license(source, "", config.value if config is not None else ""),
    )


def of_chart(source: Source) -> DriverContainer:
    """The driver of the NVIDIADriver that the chart creates from the values."""
    container = of_policy(source)
    common = Pods(
        labels=_own_labels(source, "daemonsets.labels"),
        tolerations=_with_default(value(source, "daemonsets.tolerations")),
        **settings(source, "pods"),
    )
    return replace(
        container, owner="default", pods=replace(common, update_strategy=Pods().update_strategy)
    )


def _own_labels(source: Source, path: str) -> dict[str, str]:
    """Labels without those that select the pods, as the Operator reads them."""
    labels = texts(source, path)
    return {
        key: text for key, text in labels.items() if key != "app" and not key.startswith(_RESERVED)
    }


def _with_default(tolerations: Any) -> tuple[Any, ...]:
    """The tolerations of an NVIDIADriver, which add to the usual one."""
    usual = Pods().tolerations
    return (*usual, *(toleration for toleration in tolerations or () if toleration not in usual))


def _driver(source: Source, prefix: str) -> DriverContainer:
    section = prefix.rstrip(".")
    driver = component(source, section, enabled=True)
    probe = {
        name: int(number)
        for name in _PROBE
        if (number := value(source, f"{prefix}startupProbe.{name}"))
    }
    module_type = value(source, f"{prefix}kernelModuleType")
    type_of_module = module_type or ("auto" if not source.before("v25.3.0") else "")
    return DriverContainer(
        **_fields(driver),
        manager=component(source, f"{prefix}manager", enabled=True),
        module_type=str(type_of_module),
        gds=component(source, "gds", enabled=source.enabled("gds", otherwise=False)),
        gdrcopy=component(source, "gdrcopy", enabled=source.enabled("gdrcopy", otherwise=False)),
        startup_probe=probe,
        certificates=_files(source, f"{prefix}certConfig.name"),
        module_config=_files(source, f"{prefix}kernelModuleConfig.name"),
        **settings(source, "drivers"),
    )


def _license(source: Source, prefix: str, config_map: Any) -> License | None:
    secret = value(source, f"{prefix}licensingConfig.secretName")
    if not secret and not config_map:
        return None
    token = bool(value(source, f"{prefix}licensingConfig.nlsEnabled"))
    return License(str(secret or config_map), secret=bool(secret), token=token)


def _files(source: Source, path: str) -> Files | None:
    """The ConfigMap that a key names: each of its keys is a file of the container.

    Raises:
        PolicyError: it is missing.
    """
    name = source.spec.get(*path.split("."))
    if name is None or not name.value:
        return None
    config_map = source.config_map(name, path)
    return Files(str(name.value), {key: entry.text for key, entry in config_map.entries.items()})


def _fields(part: Component) -> Json:
    return {
        "image": part.image,
        "enabled": part.enabled,
        "image_pull_policy": part.image_pull_policy,
        "image_pull_secrets": part.image_pull_secrets,
        "resources": part.resources,
        "args": part.args,
        "env": part.env,
        "host_network": part.host_network,
    }


# --- the other components -------------------------------------------------------------------


def _part(source: Source, name: str, *, otherwise: bool) -> Json:
    """The fields of a component, disabled unless it runs as containers."""
    enabled = name in source.choice.containers and source.enabled(name, otherwise=otherwise)
    return _fields(component(source, name, enabled=enabled))


def _toolkit(source: Source) -> ToolkitContainer:
    fields = _part(source, "toolkit", otherwise=True)
    toolkit = settings(source, "toolkit")
    cdi = source.enabled("cdi", otherwise=cdi_by_default(source))
    if fields["enabled"] and toolkit.get("nri") and not cdi:
        item = source.spec.get("cdi", "nriPluginEnabled")
        raise PolicyError(
            "cdi.nriPluginEnabled requires cdi.enabled and toolkit.enabled, and one of them is false",
            place=source.place(item or source.spec),
        )
    env: dict[str, str] = fields["env"]
    return ToolkitContainer(**fields, runtime=env.get("RUNTIME") or "containerd", **toolkit)


def _validator(source: Source, *, machines: bool) -> ValidatorContainer:
    fields = _part(source, "validator", otherwise=True)
    environments = {
        name: variables(source, f"validator.{section}.env") for name, section in _CHECKS.items()
    }
    checks = {name: env for name, env in environments.items() if env}
    validator = settings(source, "validator")
    return ValidatorContainer(**fields, checks=checks, machines=machines, **validator)


def _mig_manager(source: Source) -> MigManager:
    fields = _part(source, "migManager", otherwise=True)
    if not fields["enabled"]:
        return MigManager(**fields)
    layouts = _named_or(source, "migManager.config.name", "config.yaml", DEFAULT_LAYOUTS)
    clients = _named_or(source, "migManager.gpuClientsConfig.name", "clients.yaml", DEFAULT_CLIENTS)
    return MigManager(**fields, layouts=layouts, clients=clients)


def _named_or(source: Source, path: str, key: str, default: str) -> Files:
    """The ConfigMap that a key names, or one like that which the Operator brings itself.

    Raises:
        PolicyError: it is missing, or lacks its key.
    """
    name = source.spec.get(*path.split("."))
    has_name = name is not None and bool(name.value)
    if has_name and name is not None:
        if missing_reference(source, path) is None:
            config = require_config_map(source, name, path)
            if key not in config.entries:
                raise missing_key_error(config, key)
            return Files(str(name.value), {at: file.text for at, file in config.entries.items()})
        if str(name.value) != default:
            source.store.require(CONFIG_MAP, name, path)
    text = builtin.as_yaml(builtin.config_file().configs.values())
    if default == DEFAULT_CLIENTS:
        services = "".join(f"  - {client}.service\n" for client in _CLIENTS)
        text = f"version: v1\nsystemd-services:\n{services}"
    return Files(default, {key: text})


def _host_driver(source: Source, name: str, *, machines: bool) -> HostDriver:
    fields = _part(source, name, otherwise=bool(source.chart_default(f"{name}.enabled")))
    if not machines or not fields["enabled"]:
        return HostDriver(enabled=False)
    modules = f"{name}.kernelModuleConfig.name"
    return HostDriver(
        **fields,
        manager=component(source, f"{name}.driverManager", enabled=True),
        module_config=_files(source, modules) if name == "vgpuManager" else None,
    )


def _vgpu_devices(source: Source, *, machines: bool) -> VgpuDeviceManager:
    name = "vgpuDeviceManager"
    fields = _part(source, name, otherwise=bool(source.chart_default(f"{name}.enabled")))
    if not machines or not fields["enabled"]:
        return VgpuDeviceManager(enabled=False)
    path = f"{name}.config.name"
    config = source.spec.get(*path.split("."))
    manager = settings(source, "vgpu_device_manager")
    if config is None or not config.value:
        source.notes.append(
            f"{source.place(source.spec.get(name) or source.spec)}: {path} is not set: gpustate has no table of vGPU "
            f"types; create the ConfigMap {_VGPU_TYPES} with config.yaml in the cluster"
        )
        return VgpuDeviceManager(**fields, config=_VGPU_TYPES, **manager)
    types = source.store.find(CONFIG_MAP, str(config.value))
    data = None if types is None else {key: file.text for key, file in types.entries.items()}
    return VgpuDeviceManager(**fields, config=str(config.value), data=data, **manager)
