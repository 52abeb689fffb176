"""Several named configurations, as the GPU Operator keeps them in a ConfigMap, and which one counts.

In Kubernetes the label ``nvidia.com/device-plugin.config`` of a node names it; without the label the
Operator's default, then one called ``default``, then the only one there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from gpustate.errors import PolicyError
from gpustate.formats import yaml_events
from gpustate.formats.deviceplugin.model import PluginConfig
from gpustate.formats.deviceplugin.read import RULES, read, read_data
from gpustate.formats.words import at, kind_of, named, shown

_HELM = ("devicePlugin", "config", "data")


def read_all(text: str, path: str) -> dict[str, PluginConfig]:
    """Read a configuration, a ConfigMap of them, or Helm values with ``devicePlugin.config.data``.

    Returns:
        The configurations by name; one that has none has the name ``""``.

    Raises:
        PolicyError: with the line.
    """
    found = yaml_events.documents(text, path, RULES)
    if not found or not isinstance(found[0].data, Mapping):
        return {"": read(text, path)}
    data, lines = found[0].data, found[0].lines
    helm = _below(data)
    if (data.get("kind") == "ConfigMap" or helm) and lines.repeated:
        owner, ((key, line, _), *_) = next(iter(lines.repeated.items()))
        said = f"the key {shown(key)} is also in line {line}"
        raise PolicyError(said, place=at(path, lines.of_keys[owner][key]))
    if data.get("kind") == "ConfigMap":
        holder = data.get("data")
        if not isinstance(holder, Mapping) or not holder:
            raise PolicyError("the ConfigMap has no data", place=path)
        return _named(holder, path, lines)
    return _named(helm, path, lines) if helm else {"": read_data(data, path, lines)}


def _below(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configurations of Helm values; empty where these are none."""
    holder: Any = data
    for key in _HELM:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else {}


def _named(
    holder: Mapping[str, Any], path: str, lines: yaml_events.Lines
) -> dict[str, PluginConfig]:
    configs: dict[str, PluginConfig] = {}
    for name, text in holder.items():
        place = f"{at(path, lines.of_keys.get(id(holder), {}).get(name))}: {named(name)}"
        if isinstance(text, Mapping):
            configs[name] = read_data(text, place, lines)
        elif isinstance(text, str):
            configs[name] = read(text, place)
        else:
            raise PolicyError(
                f"wanted the text of a configuration, is {kind_of(text)}", place=place
            )
    return configs


def choose(
    configs: Mapping[str, PluginConfig], wanted: str = "", default: str = "", *, place: str = ""
) -> PluginConfig:
    """Return the configuration that counts.

    Args:
        configs: by name.
        wanted: the name that is asked for; empty where nobody asked.
        default: the name that counts then.
        place: where the configurations stand, for the error.

    Raises:
        PolicyError: the name does not exist, or nothing says which one counts.
    """
    name = wanted or default
    if not name:
        if "default" in configs:
            return configs["default"]
        if len(configs) == 1:
            return next(iter(configs.values()))
        raise PolicyError(
            f"has {len(configs)} configurations, and nothing says which one counts",
            place=place or None,
            fix=f"name one of {', '.join(map(named, configs))}",
        )
    if name not in configs:
        near = difflib.get_close_matches(name, configs, 1)
        known = ", ".join(named(one) for one in configs if one) or "one without a name only"
        raise PolicyError(
            f"there is no configuration {named(name)}",
            place=place or None,
            fix=f"did you mean {near[0]}" if near else f"there are {known}",
        )
    return configs[name]
