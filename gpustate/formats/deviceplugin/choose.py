"""Named configurations, as in the GPU Operator's ConfigMap, and selection of one.

In Kubernetes the label ``nvidia.com/device-plugin.config`` of a node selects it. Without the label it is the
Operator's default, then the one named ``default``, then the only one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from gpustate.documents import JsonView
from gpustate.errors import PolicyError
from gpustate.formats import yaml_events
from gpustate.formats.deviceplugin.model import PluginConfig
from gpustate.formats.deviceplugin.read import RULES, read, read_data
from gpustate.formats.words import at, kind_of, quote, quote_name

_HELM = ("devicePlugin", "config", "data")


def read_all(text: str, path: str) -> dict[str, PluginConfig]:
    """Read a configuration, a ConfigMap of them, or Helm values with ``devicePlugin.config.data``.

    Returns:
        The configurations by name; an unnamed one has the name ``""``.

    Raises:
        PolicyError: with the line.
    """
    parsed = yaml_events.documents(text, path, RULES)
    if not parsed or not isinstance(parsed[0].data, Mapping):
        return {"": read(text, path)}
    data, lines = parsed[0].data, parsed[0].lines
    helm = _below(data)
    if (data.get("kind") == "ConfigMap" or helm) and lines.repeated:
        owner, ((key, line, _), *_) = next(iter(lines.repeated.items()))
        message = f"the key {quote(key)} is a duplicate of line {line}"
        raise PolicyError(message, place=at(path, lines.of_keys[owner][key]))
    if data.get("kind") == "ConfigMap":
        holder = data.get("data")
        if not isinstance(holder, Mapping) or not holder:
            raise PolicyError("the ConfigMap contains no data", place=path)
        return _named(holder, path, lines)
    return _named(helm, path, lines) if helm else {"": read_data(data, path, lines)}


def _below(data: JsonView) -> JsonView:
    """The configurations in Helm values; empty if there are none."""
    holder: Any = data
    for key in _HELM:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else {}


def _named(holder: JsonView, path: str, lines: yaml_events.Lines) -> dict[str, PluginConfig]:
    configs: dict[str, PluginConfig] = {}
    for name, text in holder.items():
        place = f"{at(path, lines.of_keys.get(id(holder), {}).get(name))}: {quote_name(name)}"
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
    configs: Mapping[str, PluginConfig], selected: str = "", default: str = "", *, place: str = ""
) -> PluginConfig:
    """Return the selected configuration.

    Args:
        configs: by name.
        selected: the selected name, if any.
        default: the name used without a selection.
        place: of the configurations, for the error.

    Raises:
        PolicyError: the name does not exist, or the selection is ambiguous.
    """
    name = selected or default
    if not name:
        if "default" in configs:
            return configs["default"]
        if len(configs) == 1:
            return next(iter(configs.values()))
        raise PolicyError(
            f"has {len(configs)} configurations, and none is selected",
            place=place or None,
            fix=f"select one of {', '.join(map(quote_name, configs))}",
        )
    if name not in configs:
        near = difflib.get_close_matches(name, configs, 1)
        available = ", ".join(quote_name(n) for n in configs if n) or "only an unnamed one"
        raise PolicyError(
            f"no configuration {quote_name(name)}",
            place=place or None,
            fix=f"did you mean {near[0]}" if near else f"available: {available}",
        )
    return configs[name]
