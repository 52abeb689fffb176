"""Compute the settings that containerd needs to serve the handler, before any text is edited.

containerd 2.0 and later merge the files key by key. Before, a file with the CRI plugin's table silently
replaces the whole table of earlier files, including registries and sandbox image (containerd#5837). And
containerd 1.x drops its built-in ``runc`` as soon as a file names any runtime, so it has to be written out
together with ours.

Sources:
    containerd, cmd/containerd/server/config/config.go: ``LoadConfig``, ``mergeConfig``; merging
    by key came with a21e379b6, first released in 2.0.0.
    Tried with containerd 1.6.20, 1.7.24, 2.0.5, 2.1.9 and 2.3.4.
    NVIDIA/nvidia-container-toolkit, pkg/config/engine/containerd: ``container_annotations``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import RefusedError
from gpustate.formats.containerd.effective import (
    Effective,
    equal_in_effect,
    missing_spec_dirs,
    normalise,
    without_defaults,
)
from gpustate.formats.containerd.model import CDI_SPEC_DIRS, Document, Handler, same_program
from gpustate.formats.containerd.place import Setting

RUNTIMES = ("containerd", "runtimes")
DEFAULT = ("containerd", "default_runtime_name")
_RUNC_TYPE = "io.containerd.runc.v2"
#: Runtimes whose options NVIDIA's runtime supports, unlike those of a Kata shim.
_RUNC_TYPES = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")
#: In which NVIDIA's device plugin names CDI devices, and its runtime reads them, where containerd knows no CDI.
_CDI_ANNOTATIONS = "cdi.k8s.io/*"
#: Paths at which NVIDIA's runtime finds its first choice by itself.
_USUAL = ("runc", "/usr/bin/runc", "/usr/sbin/runc", "/bin/runc", "/sbin/runc")


@dataclass(frozen=True, slots=True)
class MissingSettings:
    """The missing settings, with paths below the CRI plugin's table."""

    settings: tuple[Setting, ...]
    notes: tuple[str, ...]
    replaces: bool  # a foreign table of the handler is replaced


def merges_deeply(release: tuple[int, int]) -> bool:
    """Whether this containerd merges imported plugin tables key by key."""
    return release >= (2, 0)


def merge(documents: Iterable[Document], *, deep: bool) -> Json:
    """Return the CRI plugin's table merged from the files, later ones taking precedence."""
    merged: Json = {}
    for document in documents:
        table = document.get()
        if isinstance(table, Mapping):
            merged = _merge(merged, table) if deep else dict(table)
    return merged


def lookup(table: JsonView, path: Sequence[str]) -> Any:
    """Return the value at ``path``; ``None`` if it is not set."""
    value: Any = table
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def missing_settings(
    files_say: JsonView, current: Effective, handler: Handler, release: tuple[int, int]
) -> MissingSettings:
    """Return the missing settings.

    Args:
        files_say: the merged CRI table of the files, without our settings.
        current: the effective configuration, with or without our settings.
        handler: the desired handler.
        release: containerd's major and minor.
    """
    settings: list[Setting] = []
    notes: list[str] = []
    model = low_level(files_say, current, handler)
    defined = lookup(files_say, (*RUNTIMES, handler.name))
    table = _runtime_table(model, _tables(files_say, current, handler), handler, notes)
    if handler.enable_cdi and release < (1, 7):
        passed = (*table.get("container_annotations", ()), _CDI_ANNOTATIONS)
        table["container_annotations"] = list(dict.fromkeys(passed))
    replaces = isinstance(defined, Mapping) and not equal_in_effect(defined, table)
    if not isinstance(defined, Mapping) or replaces:
        settings.append(Setting((*RUNTIMES, handler.name), table))
    if release < (2, 0) and not lookup(files_say, RUNTIMES):
        settings += [
            Setting((*RUNTIMES, name), _slim_with_type(built_in))
            for name, built_in in current.runtimes.items()
            if name != handler.name
        ]
    settings += _missing_default(files_say, current, handler, table, release, notes)
    default = lookup(files_say, DEFAULT)
    if handler.default and default != handler.name:
        settings.append(Setting(DEFAULT, handler.name))
    elif not handler.default and default == handler.name:
        notes.append(
            f"{handler.name} is the default runtime by a foreign setting, which is preserved"
        )
    settings += _cdi(files_say, current, handler, release, notes)
    return MissingSettings(tuple(settings), tuple(notes), replaces)


def has_settings(files_say: JsonView, settings: Iterable[Setting]) -> bool:
    """Whether merged files have every setting."""
    for setting in settings:
        current = lookup(files_say, setting.path)
        if isinstance(setting.value, Mapping):
            if not isinstance(current, Mapping) or not equal_in_effect(current, setting.value):
                return False
        elif isinstance(setting.value, list):
            if not set(setting.value) <= set(current or ()):
                return False
        elif current != setting.value:
            return False
    return True


def low_level(files_say: JsonView, current: Effective, handler: Handler) -> str | None:
    """Return the runtime whose options the handler uses; ``None`` if there is none.

    That is another runc-type runtime in the files: the default, else runc, else crun, else any. Without one, the
    handler keeps its own options, as on images where it is the only runtime. It also keeps them if it is the
    default and uses systemd's cgroups. The last choices are another NVIDIA runtime and a built-in one.
    """
    named = lookup(files_say, RUNTIMES)
    tables = {k: normalise(v) for k, v in (named or {}).items() if isinstance(v, Mapping)}
    default = str(lookup(files_say, DEFAULT) or current.default_runtime)
    usable = [
        name
        for name in dict.fromkeys((default, "runc", "crun", *sorted(tables)))
        if name in tables and _is_runc(tables[name])
    ]
    handler_usable = handler.name in usable
    if handler_usable and default == handler.name and _systemd(tables[handler.name]):
        return handler.name
    foreign = [name for name in usable if not _wraps(name, tables[name]) and name != handler.name]
    if handler_usable and not foreign:
        return handler.name
    built_in = [
        name
        for name in (default, "runc", "crun")
        if name in current.runtimes and _is_runc(current.runtimes[name]) and name != handler.name
    ]
    return next(iter((*foreign, *usable, *built_in)), None)


def _tables(files_say: JsonView, current: Effective, handler: Handler) -> dict[str, JsonView]:
    """containerd's runtimes by name; the handler's own as in the files without our settings."""
    named = lookup(files_say, RUNTIMES)
    from_files = {k: normalise(v) for k, v in (named or {}).items() if isinstance(v, Mapping)}
    running = {k: v for k, v in current.runtimes.items() if k != handler.name}
    return {**from_files, **running}


def _is_runc(table: object) -> bool:
    kind = table.get("runtime_type", "") if isinstance(table, Mapping) else None
    return kind is not None and (not kind or str(kind).startswith(_RUNC_TYPES))


def _systemd(table: JsonView) -> bool:
    return lookup(table, ("options", "SystemdCgroup")) is True


def _wraps(name: str, table: JsonView) -> bool:
    """Whether it is an NVIDIA runtime, which runs another one."""
    binary = lookup(table, ("options", "BinaryName"))
    return name.startswith("nvidia") or "nvidia" in str(binary or "")


def _missing_default(
    files_say: JsonView,
    current: Effective,
    handler: Handler,
    table: JsonView,
    release: tuple[int, int],
    notes: list[str],
) -> list[Setting]:
    """containerd 1.x: define the built-in ``runc``, which is the default but undefined if files name others.

    Raises:
        RefusedError: no file defines the default runtime.
    """
    default = str(lookup(files_say, DEFAULT) or current.default_runtime)
    named = set(lookup(files_say, RUNTIMES) or ())
    built_in = () if named and release < (2, 0) else current.runtimes
    defined = {*named, *built_in, handler.name}
    # MicroK8s has a placeholder here, which is substituted when its containerd starts.
    if handler.default or not default or default in defined or default.startswith("$"):
        return []
    if default != "runc":
        raise RefusedError(
            f"default_runtime_name is {default}, which no file defines: containerd's CRI plugin does not load",
            fix=f"define that runtime, or set another default_runtime_name (defined: {', '.join(sorted(defined))})",
        )
    notes.append(
        "the files define runtimes but not runc, the default: containerd's CRI plugin does not load without it,"
        " so it is added"
    )
    options = {"SystemdCgroup": True} if _systemd(table) else {}
    runc = {"runtime_type": _RUNC_TYPE, **({"options": options} if options else {})}
    return [Setting((*RUNTIMES, "runc"), runc)]


def _runtime_table(
    low_level: str | None, tables: Mapping[str, JsonView], handler: Handler, notes: list[str]
) -> Json:
    if low_level is None:
        notes.append("no runc or crun to copy options from: SystemdCgroup is not set")
        model: JsonView = {}
    else:
        model = tables[low_level]
    table = {"runtime_type": _RUNC_TYPE, **without_defaults(model)}
    options = dict(table.pop("options", {}))
    binary = options.pop("BinaryName", "")
    if low_level == handler.name and same_program(binary, handler.binary):
        return {**table, "options": {"BinaryName": binary, **options}}
    if binary and not _wraps(str(low_level), model) and binary not in _USUAL:
        notes.append(
            f"{low_level} runs {binary}: add it to nvidia-container-runtime.runtimes of"
            " /etc/nvidia-container-runtime/config.toml as well"
        )
    options.pop("Runtime", None)
    return {**table, "options": {"BinaryName": handler.binary, **options}}


def _slim_with_type(built_in: JsonView) -> Json:
    slim = {k: v for k, v in built_in.items() if v not in ("", 0, [], {})}
    if isinstance(options := slim.get("options"), Mapping):
        slim["options"] = {k: v for k, v in options.items() if v not in ("", 0, [])}
    return {k: v for k, v in slim.items() if v != {}}


def _cdi(
    files_say: JsonView,
    current: Effective,
    handler: Handler,
    release: tuple[int, int],
    notes: list[str],
) -> list[Setting]:
    if handler.enable_cdi is None:
        return []
    if release < (1, 7):
        if handler.enable_cdi:
            notes.append(
                f"containerd {release[0]}.{release[1]} does not inject CDI devices itself, 1.7 does; "
                "containers of the handler get theirs from NVIDIA's runtime"
            )
        return []
    settings: list[Setting] = []
    if release >= (2, 0) and current.enable_cdi is None:
        if not handler.enable_cdi:
            notes.append(
                f"containerd {release[0]}.{release[1]} always enables CDI: enable_cdi was removed"
            )
    elif files_say.get("enable_cdi", release >= (2, 0)) != handler.enable_cdi:
        settings.append(Setting(("enable_cdi",), handler.enable_cdi))
    if handler.enable_cdi:
        dirs = list(files_say.get("cdi_spec_dirs", CDI_SPEC_DIRS))
        if missing := missing_spec_dirs(dirs):
            settings.append(Setting(("cdi_spec_dirs",), [*dirs, *missing]))
    return settings


def _merge(to: JsonView, new: JsonView) -> Json:
    merged = dict(to)
    for key, value in new.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            merged[key] = [*old, *(item for item in value if item not in old)]
        else:
            merged[key] = value
    return merged
