"""The vGPU licence that a document configures: the state ``vgpu-guest``.

Surprising: a token in an object of the file would be part of every saved or printed plan. So a token is
used only if it is a separate file in the folder next to the policy; otherwise there is a note.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go and internal/state/driver_volumes.go (the
    Secret before the ConfigMap; ``gridd.conf``, and the token only with ``nlsEnabled``).
    NVIDIA virtual GPU client licensing user guide: keys of ``gridd.conf``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpustate.errors import PolicyError
from gpustate.formats import gridd
from gpustate.formats.numbers import parse_uint
from gpustate.formats.words import quote
from gpustate.gpu_operator.companions import CONFIG_MAP, SECRET, Companion, Entry
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.documents import Item

CONF, TOKEN = "gridd.conf", "client_configuration_token.tok"
#: Keys of gridd.conf and their parameters.
KEYS = {
    "FeatureType": "feature_type",
    "ServerAddress": "server_address",
    "ServerPort": "server_port",
    "BackupServerAddress": "backup_server_address",
    "BackupServerPort": "backup_server_port",
}
_FEATURES = (0, 1, 2, 4)


def desired_license(source: Source, spec: Item, prefix: str) -> Iterator[DesiredState]:
    """Yield the state for a licence, if the document names a usable one.

    Raises:
        PolicyError: an invalid value in ``gridd.conf``.
    """
    path, kind, name = _named(source, spec, prefix)
    if name is None:
        return
    companion = source.store.find(kind, str(name.value))
    if companion is None:
        source.notes.append(
            f"{source.place(name)}: not carried out: {path}: the {kind} {quote(name.value)} was not found; "
            f"put {CONF} and {TOKEN} into the folder {source.store.folder.name}/{name.value}"
        )
        return
    state = DesiredState("vgpu-guest")
    if CONF in companion.entries:
        _configuration(source, state, companion.entries[CONF])
    if TOKEN in companion.entries:
        _token(source, state, spec, prefix, companion)
    if {"token_file", "server_address"} & set(state.parameters):
        yield state
    else:
        source.notes.append(
            f"{source.place(name)}: no licence is configured: the {kind} {quote(name.value)} contains neither "
            "a licence server nor a usable token"
        )


def _named(source: Source, spec: Item, prefix: str) -> tuple[str, str, Item | None]:
    """The effective key, the kind of object it names, and its value."""
    config_map_key = "name" if source.kind == "nvidiadriver" else "configMapName"
    for key, kind in (("secretName", SECRET), (config_map_key, CONFIG_MAP)):
        item = spec.get("licensingConfig", key)
        if item is not None and item.value:
            return f"{prefix}licensingConfig.{key}", kind, item
    return "", "", None


def _configuration(source: Source, state: DesiredState, entry: Entry) -> None:
    for number, line in enumerate(entry.text.split("\n"), 1):
        for key, text in gridd.values(line).items():
            place = entry.place(number)
            parameter = KEYS.get(key)
            if parameter is None:
                if text:
                    source.notes.append(
                        f"{place}: not carried out: {key} of {CONF}: vgpu-guest has no such setting"
                    )
            elif parameter.endswith("address"):
                if text:
                    state.set(parameter, text, place)
            elif text:
                state.set(parameter, _number(key, text, place), place)


def _number(key: str, text: str, place: str) -> int:
    value = parse_uint(text)
    wrong = value is None or (value not in _FEATURES if key == "FeatureType" else value > 65535)
    if value is None or wrong:
        expected = " or ".join(map(str, _FEATURES)) if key == "FeatureType" else "a port"
        raise PolicyError(f"{key} of {CONF} is {quote(text)}, wanted {expected}", place=place)
    return value


def _token(source: Source, state: DesiredState, spec: Item, prefix: str, files: Companion) -> None:
    entry = files.entries[TOKEN]
    if not _nls(source, spec, prefix):
        source.notes.append(
            f"{entry.place()}: not used: {TOKEN}: {prefix}licensingConfig.nlsEnabled is not true"
        )
        return
    if Path(entry.file).name != TOKEN:
        source.notes.append(
            f"{entry.place()}: not carried out: {TOKEN}: a token in an object would be part of every plan; "
            f"move it to the file {source.store.folder.name}/{files.name}/{TOKEN}"
        )
        return
    state.set("token_file", os.path.abspath(entry.file), entry.place())


def _nls(source: Source, spec: Item, prefix: str) -> bool:
    """``nlsEnabled``; the default is false, in values the chart's."""
    item = spec.get("licensingConfig", "nlsEnabled")
    if item is not None:
        return bool(item.value)
    section = spec.get("licensingConfig")
    taken_away = section is not None and "nlsEnabled" in section.value
    return (
        source.kind == "helm"
        and not taken_away
        and bool(source.chart_default(f"{prefix}licensingConfig.nlsEnabled"))
    )
