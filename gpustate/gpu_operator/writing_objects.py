"""ConfigMaps for a written ClusterPolicy, and the sections that name them.

A file or mapping in a state's parameters becomes a ConfigMap. One read from a ConfigMap keeps its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpustate.core.where import NOWHERE
from gpustate.formats import deviceplugin
from gpustate.gpu_operator.companions import CONFIG_MAP, SECRET
from gpustate.gpu_operator.contents import CLIENTS_KEY
from gpustate.gpu_operator.licensing import CONF, KEYS
from gpustate.gpu_operator.machines import CONTAINER, PASSTHROUGH
from gpustate.gpu_operator.operands import EMPTY, EMPTY_NAME
from gpustate.manifests.settings import COUNTERS_KEY

Parameters = Mapping[str, Any]

MODULE_PARAMETERS = "gpustate-module-parameters"
_PLUGIN, _MIG = "gpustate-device-plugin", "gpustate-mig"
_CLIENTS, _COUNTERS = "gpustate-gpu-clients", "gpustate-counters"
_LICENSE = "gpustate-vgpu-license"


def objects(states: Mapping[str, Parameters]) -> Iterator[dict[str, Any]]:
    """The ConfigMaps that the states need, except for module parameters."""
    plugin, mig = states.get("device-plugin-config"), states.get("mig", {})
    exporter = states.get("dcgm-exporter", {})
    if "counters" in exporter:
        name = _object_name(exporter["counters"], _COUNTERS)
        yield config_map(name, {COUNTERS_KEY: counters_text(exporter)})
    if plugin is not None:
        yield config_map(_PLUGIN, _plugin_files(plugin))
    if "file" in mig:
        yield config_map(_object_name(mig["file"], _MIG), {"config.yaml": mig_text(mig)})
    if mig.get("clients"):
        lines = "".join(f"  - {unit}\n" for unit in mig["clients"])
        yield config_map(_CLIENTS, {CLIENTS_KEY: f"version: v1\nsystemd-services:\n{lines}"})
    if {"vgpu-guest", "driver"} <= set(states):
        # Without the token: a secret must not be written into a policy.
        rows = {key: states["vgpu-guest"].get(parameter) for key, parameter in KEYS.items()}
        text = "".join(f"{key}={value}\n" for key, value in rows.items() if value not in (None, ""))
        yield {
            "apiVersion": "v1",
            "kind": SECRET,
            "metadata": {"name": _LICENSE},
            "stringData": {CONF: text},
        }


def config_map(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    """Build a ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": CONFIG_MAP,
        "metadata": {"name": name},
        "data": dict(data),
    }


def env(variables: Mapping[str, str]) -> dict[str, Any]:
    """Environment variables of a component."""
    return {"env": [{"name": name, "value": value} for name, value in variables.items()]}


def plugin_configs(given: Parameters) -> tuple[dict[str, Any], str]:
    """The configurations of ``device-plugin-config`` by name, and the default one."""
    if given.get("configs") is None:
        return {"default": _whole(given.get("config") or {})}, "default"
    configs = {name: _whole(data) for name, data in given["configs"].items()}
    chosen = given.get("selected") or given.get("default") or ""
    if not chosen:
        chosen = "default" if "default" in configs else next(iter(configs))
    return configs, chosen


def _whole(data: Parameters) -> dict[str, Any]:
    return {"version": "v1", **data}


def _is_empty(configs: Mapping[str, Any], chosen: str) -> bool:
    """Whether the default is the empty configuration that the reader adds."""
    return chosen.rstrip("-") == EMPTY_NAME and configs[chosen] == EMPTY and len(configs) > 1


def _plugin_files(given: Parameters) -> dict[str, str]:
    configs, chosen = plugin_configs(given)
    if _is_empty(configs, chosen):
        del configs[chosen]
    return {
        name: deviceplugin.as_text(deviceplugin.PluginConfig(data=data))
        for name, data in configs.items()
    }


def plugin_config(given: Parameters) -> dict[str, str]:
    """``devicePlugin.config``."""
    configs, chosen = plugin_configs(given)
    default = {} if _is_empty(configs, chosen) else {"default": chosen}
    return {"name": _PLUGIN, **default}


def counters_text(given: Parameters) -> str:
    """The counters file of a state; empty if it has none."""
    return str((given.get("contents") or {}).get(given.get("counters"), ""))


def mig_text(given: Parameters) -> str:
    """The mig-parted file of a state; empty if it has none."""
    return str((given.get("contents") or {}).get(given.get("file"), ""))


def _object_name(file: object, otherwise: str) -> str:
    """The ConfigMap that a file was read from, if any."""
    kind, _, name = str(file).partition(" ")
    one = kind == CONFIG_MAP and re.fullmatch(r"[a-z0-9][-a-z0-9.]{0,251}", name)
    return name if one else otherwise


def mig_manager(given: Parameters) -> dict[str, Any]:
    """``migManager`` without ``enabled``; its own default would remove layouts."""
    made: dict[str, Any] = {"config": {"default": ""}}
    if "file" in given:
        made["config"]["name"] = _object_name(given["file"], _MIG)
    if given.get("clients"):
        made["gpuClientsConfig"] = {"name": _CLIENTS}
    if given.get("in_use") == "reboot":
        made.update(env({"WITH_REBOOT": "true"}))
    return made


def exporter_section(given: Parameters) -> dict[str, Any]:
    """``dcgmExporter`` without its version."""
    made: dict[str, Any] = {}
    if "counters" in given:
        made["config"] = {"name": _object_name(given["counters"], _COUNTERS)}
    if given.get("job_mapping"):
        made["hpcJobMapping"] = {"enabled": True, "directory": given["job_mapping"]}
    return made


def license_section(given: Parameters | None) -> dict[str, Any]:
    """``licensingConfig`` without the token itself."""
    if given is None:
        return {}
    nls = bool(given.get("token_file"))
    return {"licensingConfig": {"secretName": _LICENSE, "nlsEnabled": nls}}


def machine_sections(states: Mapping[str, Parameters]) -> dict[str, Any]:
    """Sections about nodes for virtual machines; empty if there are none."""
    given = [states[name] for name in ("vfio", "kata") if name in states]
    if not given:
        return {}
    some = given[0].get("only") == NOWHERE
    made: dict[str, Any] = {
        "sandboxWorkloads": {
            "enabled": True,
            "defaultWorkload": CONTAINER if some else PASSTHROUGH,
            "mode": "kata" if "kata" in states else "kubevirt",
        },
        "vfioManager": {"enabled": "vfio" in states},
    }
    if states.get("kata", {}).get("runtime") == "confidential":
        made["ccManager"] = {"enabled": True, "defaultMode": "on"}
    return made


def workload_of(body: Mapping[str, Parameters]) -> str | None:
    """The workload of a node, by its states for virtual machines."""
    for name in ("vfio", "kata"):
        if "only" in body.get(name, {}):
            return PASSTHROUGH if body[name]["only"] is None else CONTAINER
    return None
