"""The licence of a vGPU that a document names: the state ``vgpu-guest``.

Surprising: a token in an object of the file would stand in every plan that is saved or shown. So only a
token that is a file of its own, in the folder beside the policy, is carried out; another is told.

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
from gpustate.formats.numbers import whole
from gpustate.formats.words import shown
from gpustate.gpu_operator.asked import Source, Wanted
from gpustate.gpu_operator.companions import CONFIG_MAP, SECRET, Companion, Entry
from gpustate.gpu_operator.documents import Item

CONF, TOKEN = "gridd.conf", "client_configuration_token.tok"
#: Keys of gridd.conf and the parameters they are.
KEYS = {
    "FeatureType": "feature_type",
    "ServerAddress": "server_address",
    "ServerPort": "server_port",
    "BackupServerAddress": "backup_server_address",
    "BackupServerPort": "backup_server_port",
}
_FEATURES = (0, 1, 2, 4)


def wanted_license(source: Source, spec: Item, prefix: str) -> Iterator[Wanted]:
    """Yield the state for a licence, where the document names one that can be carried out.

    Raises:
        PolicyError: a value in ``gridd.conf`` that cannot be.
    """
    path, kind, name = _named(source, spec, prefix)
    if name is None:
        return
    found = source.shelf.find(kind, str(name.value))
    if found is None:
        source.notes.append(
            f"{source.place(name)}: not carried out: {path}: the {kind} {shown(name.value)} is not beside "
            f"the file; a folder {source.shelf.folder.name}/{name.value} with {CONF} and {TOKEN} will do"
        )
        return
    state = Wanted("vgpu-guest")
    if CONF in found.entries:
        _configuration(source, state, found.entries[CONF])
    if TOKEN in found.entries:
        _token(source, state, spec, prefix, found)
    if {"token_file", "server_address"} & set(state.parameters):
        yield state
    else:
        source.notes.append(
            f"{source.place(name)}: no licence is set up: the {kind} {shown(name.value)} names neither a "
            "licence server nor a token that can be taken"
        )


def _named(source: Source, spec: Item, prefix: str) -> tuple[str, str, Item | None]:
    """The key that counts, the kind of object it names, and its value."""
    other = "name" if source.kind == "nvidiadriver" else "configMapName"
    for key, kind in (("secretName", SECRET), (other, CONFIG_MAP)):
        item = spec.get("licensingConfig", key)
        if item is not None and item.value:
            return f"{prefix}licensingConfig.{key}", kind, item
    return "", "", None


def _configuration(source: Source, state: Wanted, entry: Entry) -> None:
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
                    state.give(parameter, text, place)
            elif text:
                state.give(parameter, _number(key, text, place), place)


def _number(key: str, text: str, place: str) -> int:
    value = whole(text)
    wrong = value is None or (value not in _FEATURES if key == "FeatureType" else value > 65535)
    if value is None or wrong:
        wanted = " or ".join(map(str, _FEATURES)) if key == "FeatureType" else "a port"
        raise PolicyError(f"{key} of {CONF} is {shown(text)}, wanted {wanted}", place=place)
    return value


def _token(source: Source, state: Wanted, spec: Item, prefix: str, found: Companion) -> None:
    entry = found.entries[TOKEN]
    if not _nls(source, spec, prefix):
        source.notes.append(
            f"{entry.place()}: not used: {TOKEN}: {prefix}licensingConfig.nlsEnabled is not true"
        )
        return
    if Path(entry.file).name != TOKEN:
        source.notes.append(
            f"{entry.place()}: not carried out: {TOKEN}: a token in an object would stand in every plan; "
            f"make it a file of its own, {source.shelf.folder.name}/{found.name}/{TOKEN}"
        )
        return
    state.give("token_file", os.path.abspath(entry.file), entry.place())


def _nls(source: Source, spec: Item, prefix: str) -> bool:
    """``nlsEnabled``; nothing said is false, and in values what the chart says."""
    item = spec.get("licensingConfig", "nlsEnabled")
    if item is not None:
        return bool(item.value)
    section = spec.get("licensingConfig")
    taken_away = section is not None and "nlsEnabled" in section.value
    return (
        source.kind == "helm"
        and not taken_away
        and bool(source.of_chart(f"{prefix}licensingConfig.nlsEnabled"))
    )
