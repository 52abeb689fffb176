"""A ClusterPolicy for the states of a policy: as far as one has words for them.

What it has no words for is not in it. Whoever writes one reads it again and tells the difference
(:mod:`gpustate.policies.converting`), so nothing here has to know what gets lost.

Surprising: a component whose section is empty is switched on by the Operator. Every component that the
policy has no state for is therefore written with ``enabled: false``.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go (required sections, ``IsEnabled``).
    NVIDIA/nvidia-container-toolkit v1.20: cmd/nvidia-ctk-installer (names in ``toolkit.env``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from gpustate.clusterpolicy.driver import MODULES

Parameters = Mapping[str, Any]

#: Components beside driver and toolkit, and the state that each is.
_COMPONENTS = {
    "devicePlugin": "device-plugin",
    "gfd": "gpu-features",
    "migManager": "mig",
    "dcgm": "dcgm",
    "dcgmExporter": "dcgm-exporter",
    "nodeStatusExporter": "node-status-exporter",
}
#: A driver's version or branch; words for one (``latest``) are not the Operator's.
_VERSION = re.compile(r"\d{3,4}(\.\d{1,4}){0,2}")
_CONFIG_MAP = "gpustate-module-parameters"
#: Parameters of containerd that an environment variable of the toolkit carries.
_CONTAINERD = {
    "config_path": "CONTAINERD_CONFIG",
    "default": "CONTAINERD_SET_AS_DEFAULT",
    "drop_in_path": "RUNTIME_DROP_IN_CONFIG",
    "socket": "CONTAINERD_SOCKET",
    "restart": "RUNTIME_RESTART_MODE",
    "enable_cdi": "RUNTIME_ENABLE_CDI",
}
#: Keys of the toolkit's config.toml that one carries.
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


class _Dumper(yaml.SafeDumper):
    """Writes files as people do: a text of several lines as such."""


def _lines(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _lines)


def write(name: str, states: Mapping[str, Parameters]) -> str:
    """Write a ClusterPolicy, and the ConfigMap that it names.

    Args:
        name: of the object.
        states: the parameters given, by the state's name; one that is to be absent is left out.
    """
    spec: dict[str, Any] = {"operator": {}, "daemonsets": {}}
    containerd = states.get("containerd", {})
    if containerd.get("handler"):
        spec["operator"] = {"runtimeClass": containerd["handler"]}
    files = _module_files(states.get("driver", {}))
    spec["driver"] = _driver(states["driver"], files) if "driver" in states else {"enabled": False}
    spec["toolkit"] = _toolkit(states)
    spec["cdi"] = {"enabled": "cdi" in states}
    for section, state in _COMPONENTS.items():
        spec[section] = {"enabled": state in states}
    if states.get("validator", {}).get("cuda") is False:
        workload = {"name": "WITH_WORKLOAD", "value": "false"}
        spec["validator"] = {"cuda": {"env": [workload]}}
    policy = {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
    documents: list[dict[str, Any]] = [policy]
    if files:
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": _CONFIG_MAP},
                "data": files,
            }
        )
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=80
    )
    return text


def _driver(given: Parameters, files: Mapping[str, str]) -> dict[str, Any]:
    driver: dict[str, Any] = {"enabled": True}
    version = str(given.get("version") or given.get("branch") or "")
    if _VERSION.fullmatch(version):
        driver["version"] = version
    if "module_type" in given:
        driver["kernelModuleType"] = given["module_type"]
    if "precompiled" in given:
        driver["usePrecompiled"] = given["precompiled"]
    if files:
        driver["kernelModuleConfig"] = {"name": _CONFIG_MAP}
    return driver


def _module_files(given: Parameters) -> dict[str, str]:
    """The data of the ConfigMap: a file a module, a line a parameter."""
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
        toolkit["version"] = given["version"]
    env = _toolkit_env(given)
    containerd = states.get("containerd")
    if containerd is not None:
        for parameter, variable in _CONTAINERD.items():
            value = containerd.get(parameter)
            if value is not None:
                env[variable] = _text(value)
    if env:
        toolkit["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return toolkit


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
