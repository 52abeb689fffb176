"""The part ``cluster`` of a policy: the settings of a cluster's objects as plain data, and back.

Its keys are the fields of :class:`gpustate.manifests.settings.ClusterSettings`. A component that is named runs, unless
``enabled: false`` is said of it, as ``dcgm=Component()`` in Python does.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpustate.core.building import as_written
from gpustate.core.layers import Path
from gpustate.core.parameter_errors import describe_expected, show_value
from gpustate.core.policy import Policy
from gpustate.documents import JsonView
from gpustate.errors import GpustateError, PolicyError
from gpustate.formats.masking import MASK, mask, missing_secrets, remember_parameters
from gpustate.formats.quantities import is_quantity
from gpustate.formats.words import cut, kind_of, printable, quote, quote_name, suggest
from gpustate.manifests.settings import COUNTERS_KEY, ClusterSettings

SECTION = "cluster"
#: Behind the place of an error, where one of several types would do.
_KINDS = ("int", "str")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


@cache
def adapter() -> TypeAdapter[ClusterSettings]:
    """Reads the settings, and knows their JSON Schema."""
    return TypeAdapter(ClusterSettings)


def settings_of(policy: Policy) -> ClusterSettings:
    """The settings of a policy; the defaults if it has no objects of a cluster."""
    return policy.cluster if isinstance(policy.cluster, ClusterSettings) else ClusterSettings()


def read(data: object, places: Mapping[Path, str]) -> ClusterSettings:
    """Read the settings of a policy.

    Args:
        data: a mapping.
        places: where values stand, by path that begins with ``cluster``.

    Raises:
        PolicyError: an unknown key or a wrong value, with its place.
    """
    if not isinstance(data, Mapping):
        fix = """write: -p '{"cluster":{}}'""" if data == [] else ""  # --set cluster={}, as in Helm
        raise _error((), places, f"is {kind_of(data)}, wanted a mapping", fix)
    remember_parameters(data)
    text = json.dumps(data)
    if MASK in text:
        hidden = tuple(map(str, missing_secrets(data)[0]))
        message = f"contains {MASK}, which gpustate prints in place of a secret"
        raise _error(hidden, places, message, "set the secret itself")
    try:
        settings = adapter().validate_json(text)
    except ValidationError as error:
        raise _explained(error, data, places) from None
    except PolicyError as error:
        path = _culprit(data, error)
        words = error.message
        for name in path[-1:]:  # the message begins with the name, which the path has already
            words = words.removeprefix(f"{name}: ").removeprefix(f"{name} ")
        raise _error(path, places, words, error.fix or "") from None
    _check(settings, places)
    return settings


def check(settings: ClusterSettings, places: Mapping[Path, str]) -> None:
    """Check the settings of a policy in Python.

    Raises:
        PolicyError: with its place.
    """
    _check(settings, places)
    refuse_ignored(settings, places)


def refuse_ignored(settings: ClusterSettings, places: Mapping[Path, str]) -> None:
    """Refuse keys that the device plugin ignores, which are errors in a policy's own file.

    Raises:
        PolicyError: with its place.
    """
    from gpustate.formats import deviceplugin

    for path, text in _files(settings):
        if path[0] == "config":
            place = _place(path, places) or _title(path)
            for error in deviceplugin.faults(text, place)[1]:
                raise _in_file(error, path, place, places)


def without_ignored(settings: ClusterSettings) -> ClusterSettings:
    """The settings without what the device plugin ignores, which an own file must not have."""
    from gpustate.formats import deviceplugin

    config = settings.config
    if config is None or config.data is None:
        return settings
    read = {key: deviceplugin.read(text, key) for key, text in config.data.items()}
    data = {
        key: deviceplugin.as_text(parsed) if parsed.warnings else config.data[key]
        for key, parsed in read.items()
    }
    return dataclasses.replace(settings, config=dataclasses.replace(config, data=data))


def unchecked(data: JsonView) -> ClusterSettings:
    """The settings of plain data in which secrets are masked."""
    return adapter().validate_json(json.dumps(data))


def _explained(error: ValidationError, data: JsonView, places: Mapping[Path, str]) -> PolicyError:
    """The first mistake, with its place and what is wanted."""
    items = error.errors(include_url=False)
    item, path = items[0], _without_kind(items[0]["loc"])
    if item["type"] in _UNKNOWN:
        keys = _names(path[:-1])
        hint = suggest(path[-1], keys, f"supported keys: {', '.join(keys)}", form="{!r}")
        return _error(path, places, "unknown key", hint)
    if item["type"] == "missing":
        return _error(path, places, "is not given, and has no default")
    words = [
        describe_expected(entry["type"], entry.get("ctx") or {}) or mask(str(entry["msg"]))
        for entry in items
        if _without_kind(entry["loc"]) == path
    ]
    quotes = words == ["text"] and isinstance(item["input"], bool | int | float)
    was = as_written(item["loc"], item["input"], data)
    message = f"wanted {' or '.join(words)} (given: {show_value(was)})"
    return _error(path, places, message, "put it in quotes" if quotes else "")


def _without_kind(loc: tuple[int | str, ...]) -> Path:
    """A place without the type that pydantic puts behind it, where one of several would do."""
    path = tuple(map(str, loc))
    return path[:-1] if len(path) > 1 and path[-1] in _KINDS else path


def _names(path: Path) -> list[str]:
    """The keys at a path."""
    cls: Any = ClusterSettings
    for step in path:
        if step.isdecimal():
            continue  # an element of a list
        hint = typing.get_type_hints(cls)[step]
        several = isinstance(hint, types.UnionType) or typing.get_origin(hint) is tuple
        kinds = typing.get_args(hint) if several else (hint,)
        cls = next(kind for kind in kinds if dataclasses.is_dataclass(kind))
    return [field.name for field in dataclasses.fields(cls)]


def _culprit(data: JsonView, error: PolicyError) -> Path:
    """The path of the setting that is refused for its value: the message begins with its name."""
    name = error.message.partition(":")[0].partition(" ")[0]
    for key, value in data.items():
        try:
            adapter().validate_json(json.dumps({key: value}))
        except PolicyError:
            below = isinstance(value, Mapping) and name in value
            return (key, name) if below else (key,)
        except ValidationError:
            continue
    return ()


def _check(settings: ClusterSettings, places: Mapping[Path, str]) -> None:
    """Check amounts of resources, and the files that ConfigMaps are made of."""
    from gpustate.formats import deviceplugin
    from gpustate.formats.dcgm import counters

    _check_resources(settings, (), places)
    for path, text in _files(settings):
        place = _place(path, places) or _title(path)
        try:
            if path[0] != "config":
                counters.read(text, place)
                continue
            shares = deviceplugin.read(text, place).sharing.strategy
        except GpustateError as error:
            raise _in_file(error, path, place, places) from None
        if shares == "mps" and settings.mig_strategy == "mixed":
            words = f"is 'mixed', and {quote(path[-1])} of config shares GPUs with MPS: {deviceplugin.NOT_WITH_MIXED}"
            raise _error(("mig_strategy",), places, words, deviceplugin.INSTEAD_OF_MIXED)
    config = settings.config
    if config is None or config.data is None or not config.default:
        return
    if config.default not in config.data:
        message = f"{quote(config.default)} is not in data, only {', '.join(config.data)}"
        raise _error(("config", "default"), places, message)


def _check_resources(value: object, path: Path, places: Mapping[Path, str]) -> None:
    """Check what the containers of components request."""
    if isinstance(value, tuple):
        for number, element in enumerate(value):
            _check_resources(element, (*path, str(number)), places)
    if not dataclasses.is_dataclass(value):
        return
    for name in (field.name for field in dataclasses.fields(value)):
        below = getattr(value, name)
        if name != "resources":
            _check_resources(below, (*path, name), places)
            continue
        for section in ("limits", "requests"):
            amounts = below.get(section) or {}
            if not isinstance(amounts, Mapping):
                words = f"is {kind_of(amounts)}, wanted a mapping"
                raise _error((*path, name, section), places, words)
            for resource, amount in amounts.items():
                if not is_quantity(amount):
                    words = f"is {quote(amount)}, wanted a quantity such as 500m or 2Gi"
                    raise _error((*path, name, section, str(resource)), places, words)


def _in_file(
    error: GpustateError, path: Path, place: str, places: Mapping[Path, str]
) -> PolicyError:
    """An error in a file that a ConfigMap is made of, with its line there."""
    lined = (error.place or place).removeprefix(place).lstrip(":")
    line = f"line {lined}: " if lined else ""
    return _error(path, places, f"{line}{error.message}", error.fix or "")


def _files(settings: ClusterSettings) -> Iterator[tuple[Path, str]]:
    """Contents of ConfigMaps that have a format, with their paths."""
    config, metrics = settings.config, settings.dcgm_exporter.counters
    if config is not None and config.data is not None:
        yield from ((("config", "data", key), text) for key, text in config.data.items())
    if metrics is not None and metrics.data is not None and COUNTERS_KEY in metrics.data:
        yield ("dcgm_exporter", "counters", "data", COUNTERS_KEY), metrics.data[COUNTERS_KEY]


def _error(path: Path, places: Mapping[Path, str], message: str, fix: str = "") -> PolicyError:
    words = printable(cut(message, 300))
    return PolicyError(f"{_title(path)}: {words}", place=_place(path, places), fix=fix or None)


def _title(path: Path) -> str:
    return ".".join((SECTION, *map(quote_name, path)))


def _place(path: Path, places: Mapping[Path, str]) -> str | None:
    steps = (SECTION, *path)
    return next((places[steps[:n]] for n in range(len(steps), 0, -1) if steps[:n] in places), None)
