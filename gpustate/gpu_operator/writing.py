"""Write a ClusterPolicy for the states of a policy, with the objects it refers to.

Settings without an equivalent in a ClusterPolicy are left out. :mod:`gpustate.policies.converting` reads the
result again and reports the difference, so this module does not track losses. States of a driver and
nothing else become an NVIDIADriver, or a GPUCluster if the driver is unmanaged too.

Surprising: the Operator enables a component whose section is empty. So every component without a state in
the policy is written with ``enabled: false``, and the MIG manager with an empty default, because the
Operator's own default would remove every MIG layout.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go (required sections, ``IsEnabled``).
    NVIDIA/nvidia-container-toolkit v1.20: cmd/nvidia-ctk-installer (names in ``toolkit.env``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from gpustate.formats.yaml_events import Dumper
from gpustate.gpu_operator import nodelabels
from gpustate.gpu_operator.driver import MODULES
from gpustate.gpu_operator.gpucluster import NAME
from gpustate.gpu_operator.runtime import FOUND_OUT, RUNTIMES
from gpustate.gpu_operator.tags import image_of
from gpustate.gpu_operator.writing_objects import (
    MODULE_PARAMETERS,
    config_map,
    counters_text,
    env,
    exporter_section,
    license_section,
    machine_sections,
    mig_manager,
    mig_text,
    objects,
    plugin_config,
    plugin_configs,
    workload_of,
)

__all__ = [
    "Nodes",
    "Parameters",
    "build",
    "counters_text",
    "dump",
    "mig_text",
    "nodes_of",
    "plugin_configs",
    "write",
]

Parameters = Mapping[str, Any]
Nodes = Mapping[str, Mapping[str, Parameters]]

#: Components that correspond to one state.
_COMPONENTS = {"gfd": "gpu-labels", "migManager": "mig", "devicePlugin": "device-plugin-config"}
#: Components without a state.
_OFF = ("nodeStatusExporter",)
#: Components with a version.
_VERSIONED = {"dcgm": "dcgm", "dcgmExporter": "dcgm-exporter"}
#: Additional kernel modules, disabled by default.
_MODULES_BESIDE = ("gds", "gdrcopy")
#: The states of an NVIDIADriver without a ClusterPolicy.
_DRIVER_ONLY = frozenset(
    {
        *("preflight", "nouveau", "driver-repository", "driver", "persistenced"),
        *("nvlsm", "fabric-manager", "peermem", "vgpu-guest", *_MODULES_BESIDE),
    }
)
#: A driver's version or branch; the Operator has no keywords such as ``latest``.
_VERSION = re.compile(r"\d{3,4}(\.\d{1,4}){0,2}")
#: The containerd socket of a distribution, which identifies the distribution.
_SOCKETS = {
    "k3s": "/run/k3s/containerd/containerd.sock",
    "k0s": "/run/k0s/containerd.sock",
    "microk8s": "/var/snap/microk8s/common/run/containerd.sock",
}
#: Parameters of a runtime with an environment variable of the toolkit.
_RUNTIME = {
    "config_path": "CONTAINERD_CONFIG",
    "default": "NVIDIA_RUNTIME_SET_AS_DEFAULT",
    "drop_in_path": "RUNTIME_DROP_IN_CONFIG",
    "socket": "CONTAINERD_SOCKET",
    "restart": "RUNTIME_RESTART_MODE",
    "enable_cdi": "RUNTIME_ENABLE_CDI",
}
_OF_CONTAINERD = ("config_path", "drop_in_path", "socket")
#: Keys of the toolkit's config.toml with an environment variable.
_TOOLKIT = {
    "accept-nvidia-visible-devices-envvar-when-unprivileged": (
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
    ),
    "accept-nvidia-visible-devices-as-volume-mounts": (
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS"
    ),
    "nvidia-container-runtime.mode": "NVIDIA_CONTAINER_RUNTIME_MODE",
    "nvidia-container-runtime.debug": "NVIDIA_CONTAINER_RUNTIME_DEBUG",
    "nvidia-container-runtime.log-level": "NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL",
    "nvidia-container-cli.debug": "NVIDIA_CONTAINER_CLI_DEBUG",
}


class _Dumper(Dumper):
    """Writes multi-line text as block scalars."""


def _lines(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _lines)


def write(
    name: str,
    states: Mapping[str, Parameters],
    nodes: Nodes | None = None,
    upgrades: Mapping[str, Any] | None = None,
) -> str:
    """Write a ClusterPolicy with its ConfigMaps and Nodes.

    Args:
        name: of the object.
        states: parameters by state name; states to be absent are left out.
        nodes: parameters of single nodes.
        upgrades: the section ``upgradePolicy``.
    """
    return dump(build(name, states, nodes, upgrades))


def build(
    name: str,
    states: Mapping[str, Parameters],
    nodes: Nodes | None = None,
    upgrades: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Build the objects that :func:`write` writes."""
    return [*_objects(name, states, upgrades or {}), *nodes_of(nodes or {})]


def dump(objects_: Iterable[Mapping[str, Any]]) -> str:
    """Objects as the text of a file."""
    text: str = yaml.dump_all(
        objects_, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=80
    )
    return text


def _objects(
    name: str, states: Mapping[str, Parameters], upgrades: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    modules = _module_files(states.get("driver", {}))
    if set(states) <= {*_DRIVER_ONLY, *_VERSIONED.values(), "validator"} and (
        states.get("validator", {}).get("containers") == "none"
    ):
        yield from _without_containers(name, states, modules, upgrades)
    else:
        yield {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": name},
            "spec": _spec(states, modules, upgrades),
        }
    if modules:
        yield config_map(MODULE_PARAMETERS, modules)
    yield from objects(states)


def _without_containers(
    name: str,
    states: Mapping[str, Parameters],
    modules: Mapping[str, str],
    upgrades: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """An NVIDIADriver for a driver alone; a GPUCluster for metrics, or for no state at all."""
    driver = states.get("driver")
    metrics = {section: state for section, state in _VERSIONED.items() if state in states}
    if driver is None or metrics:
        cluster = {section: _switched(section, states[state]) for section, state in metrics.items()}
        if "dcgmExporter" in cluster:
            cluster["dcgmExporter"].update(exporter_section(states["dcgm-exporter"]))
        yield _dra_object("GPUCluster", NAME, cluster)
    if driver is not None:
        spec = {"driverType": "gpu", **_driver(driver, modules), **_beside(states)}
        spec.update(license_section(states.get("vgpu-guest")))
        spec.update(_upgrade_policy(upgrades))
        del spec["enabled"]
        if "peermem" in states:
            spec["rdma"] = {"enabled": True}
        yield _dra_object("NVIDIADriver", name, spec)


def _dra_object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def nodes_of(nodes: Nodes) -> Iterator[dict[str, Any]]:
    """Nodes with the labels for their parameters."""
    for name, body in nodes.items():
        labels = {
            nodelabels.MIG: body.get("mig", {}).get("config"),
            nodelabels.PLUGIN: body.get("device-plugin-config", {}).get("selected"),
            nodelabels.WORKLOAD: workload_of(body),
        }
        given = {label: value for label, value in labels.items() if value}
        if given:
            yield {
                "apiVersion": "v1",
                "kind": nodelabels.NODE,
                "metadata": {"name": name, "labels": given},
            }


def _spec(
    states: Mapping[str, Parameters], modules: Mapping[str, str], upgrades: Mapping[str, Any]
) -> dict[str, Any]:
    spec: dict[str, Any] = {"operator": {}, "daemonsets": {}}
    handler = _of_runtimes(states, "handler")
    if handler:
        spec["operator"] = {"runtimeClass": handler}
    driver = states.get("driver")
    off: dict[str, Any] = {"enabled": False}
    spec["driver"] = off if driver is None else _driver(driver, modules)
    if driver is not None and "peermem" in states:
        spec["driver"]["rdma"] = {"enabled": True}
    if driver is not None:
        spec["driver"].update(
            license_section(states.get("vgpu-guest")), **_upgrade_policy(upgrades)
        )
    spec.update(machine_sections(states))
    spec.update(_beside(states))
    spec["toolkit"] = _toolkit(states)
    spec["cdi"] = {"enabled": "cdi" in states}
    for section, state in _COMPONENTS.items():
        spec[section] = {"enabled": state in states}
    for section, state in _VERSIONED.items():
        spec[section] = _switched(section, states.get(state))
    spec["dcgmExporter"].update(exporter_section(states.get("dcgm-exporter", {})))
    spec.update((section, {"enabled": False}) for section in _OFF)
    strategy = states.get("gpu-labels", {}).get("mig_strategy")
    if strategy:
        spec["mig"] = {"strategy": strategy}
    if "device-plugin-config" in states:
        spec["devicePlugin"]["config"] = plugin_config(states["device-plugin-config"])
    if "mig" in states:
        spec["migManager"].update(mig_manager(states["mig"]))
    validator: dict[str, Any] = {}
    if states.get("validator", {}).get("cuda") is False:
        validator["cuda"] = env({"WITH_WORKLOAD": "false"})
    if "dev-char" not in states:
        validator["driver"] = env({"DISABLE_DEV_CHAR_SYMLINK_CREATION": "true"})
    if validator:
        spec["validator"] = validator
    return spec


def _switched(section: str, given: Parameters | None) -> dict[str, Any]:
    """A component enabled or disabled, with its version if set."""
    if given is None:
        return {"enabled": False}
    version = given.get("version")
    return {"enabled": True, **(image_of(section, str(version)) if version else {})}


def _upgrade_policy(section: Mapping[str, Any]) -> dict[str, Any]:
    return {"upgradePolicy": dict(section)} if section else {}


def _beside(states: Mapping[str, Parameters]) -> dict[str, Any]:
    return {name: _switched(name, states[name]) for name in _MODULES_BESIDE if name in states}


# --- driver, toolkit and runtimes --------------------------------------------------------


def _driver(given: Parameters, files: Mapping[str, str]) -> dict[str, Any]:
    driver: dict[str, Any] = {"enabled": True}
    version = str(given.get("version") or given.get("branch") or "")
    if _VERSION.fullmatch(version):
        driver.update(image_of("driver", version))
    if "module_type" in given:
        driver["kernelModuleType"] = given["module_type"]
    if "precompiled" in given:
        driver["usePrecompiled"] = given["precompiled"]
    if files:
        driver["kernelModuleConfig"] = {"name": MODULE_PARAMETERS}
    return driver


def _module_files(given: Parameters) -> dict[str, str]:
    """The data of the ConfigMap: a file per module, a line per parameter."""
    found: dict[str, list[str]] = {}
    for key, value in (given.get("parameters") or {}).items():
        module, dot, name = str(key).partition(".")
        if not dot:
            module, name = "nvidia", module
        file = next((file for file, owner in MODULES.items() if owner == module), None)
        if file is not None and "\n" not in f"{name}{value}":
            found.setdefault(file, []).append(f"{name}={value}")
    return {file: "".join(f"{line}\n" for line in lines) for file, lines in found.items()}


def _toolkit(states: Mapping[str, Parameters]) -> dict[str, Any]:
    given = states.get("container-toolkit")
    if given is None:
        return {"enabled": False}
    toolkit: dict[str, Any] = {"enabled": True}
    if given.get("version"):
        toolkit.update(image_of("toolkit", str(given["version"])))
    toolkit.update(env({**_runtime_env(states), **_toolkit_env(given)}))
    return toolkit


def _of_runtimes(states: Mapping[str, Parameters], parameter: str) -> Any:
    """A parameter of the runtimes, containerd's taking precedence."""
    names = (*FOUND_OUT, *RUNTIMES["docker"])
    found = (states[name].get(parameter) for name in names if name in states)
    return next((value for value in found if value is not None), None)


def _runtime_env(states: Mapping[str, Parameters]) -> dict[str, str]:
    """Variables for the runtimes and their parameters."""
    env: dict[str, str] = {}
    there = {name for name in (*FOUND_OUT, *RUNTIMES["docker"]) if name in states}
    if not there:
        return {"NO_RUNTIME_CONFIG": "true"}
    if len(there) == 1 and there <= set(_SOCKETS):
        env["CONTAINERD_SOCKET"] = _SOCKETS[next(iter(there))]
    elif there != set(FOUND_OUT):
        # Only one runtime fits; the report of losses names the others.
        env["RUNTIME"] = max(RUNTIMES, key=lambda name: len(there & set(RUNTIMES[name])))
    for parameter, variable in _RUNTIME.items():
        source = states.get("containerd", {}) if parameter in _OF_CONTAINERD else None
        value = source.get(parameter) if source is not None else _of_runtimes(states, parameter)
        if value is not None:
            env[variable] = _text(value)
    return env


def _toolkit_env(given: Parameters) -> dict[str, str]:
    wanted = {
        "nvidia-container-runtime.mode": given.get("mode"),
        "accept-nvidia-visible-devices-envvar-when-unprivileged": given.get(
            "accept_envvar_when_unprivileged"
        ),
        "accept-nvidia-visible-devices-as-volume-mounts": given.get("accept_volume_mounts"),
        **(given.get("config") or {}),
    }
    return {
        variable: _text(wanted[key])
        for key, variable in _TOOLKIT.items()
        if wanted.get(key) not in (None, "")
    }


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
