"""containerd's effective configuration: ``containerd config dump``, parsed and compared.

A dump has the newest configuration version of the binary, so it shows settings but not the version of a file.
Missing keys and empty values are the same to containerd and are treated as equal.

``config dump`` does not always work: containerd 1.x has none without a root file, and in 2.0 it omits the
settings of version 2 files. :func:`dump_arguments` returns the command to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpustate.documents import Json, JsonView
from gpustate.errors import ProbeError
from gpustate.formats.containerd.model import CDI_SPEC_DIRS, Handler, release, same_program
from gpustate.formats.toml_scan import parse

#: Newest first: a dump of containerd 2 has the older name too, for the rest of that plugin.
_CRI_NAMES = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
#: containerd's defaults for a runtime.
_DEFAULTS = {"sandboxer": "podsandbox", "sandbox_mode": "podsandbox"}
_ANNOTATIONS = ("container_annotations", "pod_annotations")


#: containerd ignores the case of a runtime's option names, and prints them as written in the file.
_OPTIONS = {
    name.lower(): name
    for name in (
        *("BinaryName", "SystemdCgroup", "Runtime", "Root", "NoPivotRoot", "NoNewKeyring"),
        *("ShimCgroup", "IoUid", "IoGid", "CriuPath", "CriuImagePath", "CriuWorkPath"),
    )
}


@dataclass(frozen=True, slots=True)
class Effective:
    """The merged configuration, defaults included."""

    data: JsonView
    cri_path: tuple[str, str]
    runtimes: Mapping[str, JsonView]
    default_runtime: str
    enable_cdi: bool | None  # None: this containerd does not support CDI
    cdi_spec_dirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EffectiveChange:
    """Differences between two dumps, one ``key: before -> after`` each."""

    expected: tuple[str, ...]  # the handler's table, imports, and settings that the handler needs
    foreign: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.expected or self.foreign)


def dump_arguments(root_path: str, root_text: str | None, containerd_version: str) -> list[str]:
    """Return the arguments that make ``containerd`` print its effective configuration.

    Standard output is the configuration; warnings go to standard error and are not part of it.
    """
    containerd = release(containerd_version)
    if root_text is None and containerd < (2, 0):
        return ["config", "default"]
    verb = "migrate" if containerd == (2, 0) else "dump"
    return ["--config", root_path, "config", verb]


def effective(dump_text: str, place: str = "containerd config dump") -> Effective:
    """Read what ``containerd config dump`` (or ``config default``) printed on standard output.

    Args:
        dump_text: that, or a whole file that was generated for a containerd.
        place: where it stands.

    Raises:
        ProbeError: not TOML, or there is no CRI plugin in it.
    """
    data = parse(dump_text, place)
    plugins = data.get("plugins", {})
    for name in _CRI_NAMES:
        cri = plugins.get(name)
        if isinstance(cri, Mapping) and "containerd" in cri:
            break
    else:
        raise ProbeError(
            "no CRI plugin with a containerd section in it",
            place=place,
            fix="check whether disabled_plugins contains cri",
        )
    containerd = cri["containerd"]
    return Effective(
        data=data,
        cri_path=("plugins", name),
        runtimes={k: normalise(v) for k, v in containerd.get("runtimes", {}).items()},
        default_runtime=containerd.get("default_runtime_name", ""),
        enable_cdi=cri.get("enable_cdi"),
        cdi_spec_dirs=tuple(cri.get("cdi_spec_dirs", ())),
    )


def effective_change(before: str, after: str, handler: Handler) -> EffectiveChange:
    """Compare two dumps of one containerd binary.

    Args:
        before: standard output of ``containerd config dump`` with the old files.
        after: with the new ones.
        handler: the handler that was added or removed.
    """
    old, new = effective(before), effective(after)
    expected: list[str] = []
    foreign: list[str] = []
    for path, was, current in _differences((), old.data, new.data):
        line = f"{'.'.join(path)}: {_render(was)} -> {_render(current)}"
        (expected if _is_own(path, new.cri_path, handler) else foreign).append(line)
    return EffectiveChange(tuple(expected), tuple(foreign))


def handler_problems(
    current: Effective, handler: Handler, *, low_level: str = "runc"
) -> tuple[str, ...]:
    """Return why ``handler`` is not served as requested, one line each; empty if it is.

    Args:
        current: the effective configuration.
        handler: the desired handler.
        low_level: the runtime whose cgroup driver the handler must use; itself if there is no other.
    """
    table = current.runtimes.get(handler.name)
    if table is None:
        return (f"runtime {handler.name} is not defined",)
    problems: list[str] = []
    options = table.get("options", {})
    binary = options.get("BinaryName", "")
    if not same_program(binary, handler.binary):
        problems.append(f"runtimes.{handler.name} runs {binary!r}, not {handler.binary}")
    model = current.runtimes.get(low_level, {}).get("options", {})
    handler_cgroup, model_cgroup = (bool(o.get("SystemdCgroup", False)) for o in (options, model))
    if handler_cgroup != model_cgroup:
        problems.append(
            f"SystemdCgroup is {handler_cgroup} for {handler.name}, {model_cgroup} for {low_level}"
        )
    if handler.default and current.default_runtime != handler.name:
        problems.append(f"the default runtime is {current.default_runtime!r}, not {handler.name}")
    if handler.enable_cdi is not None and current.enable_cdi is not None:
        if current.enable_cdi != handler.enable_cdi:
            problems.append(f"enable_cdi is {current.enable_cdi}")
        missing = missing_spec_dirs(current.cdi_spec_dirs) if handler.enable_cdi else ()
        problems += [f"cdi_spec_dirs lacks {directory}" for directory in missing]
    return tuple(problems)


def handler_present(current: Effective, handler: Handler) -> bool:
    """Whether containerd has a runtime of that name that runs that binary."""
    options = current.runtimes.get(handler.name, {}).get("options", {})
    return same_program(options.get("BinaryName", ""), handler.binary)


def missing_spec_dirs(dirs: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return the CDI directories of the NVIDIA tools that are not in ``dirs``."""
    present_dirs = {d.rstrip("/").replace("/var/run/", "/run/", 1) for d in dirs}
    return tuple(d for d in CDI_SPEC_DIRS if d.replace("/var/run/", "/run/", 1) not in present_dirs)


def normalise(table: JsonView) -> Json:
    """Return a runtime's table with its option names in containerd's spelling.

    If a name occurs in two spellings, the one at the built-in default is dropped.
    """
    options = table.get("options")
    if not isinstance(options, Mapping):
        return dict(table)
    renamed: Json = {}
    for key, value in options.items():
        name = _OPTIONS.get(str(key).lower(), str(key))
        renamed[name] = value or renamed.get(name, value)
    return {**table, "options": renamed}


def without_defaults(table: JsonView) -> Json:
    """Return a runtime's table without keys at their default."""
    slim = _slim(normalise(table))
    return {k: v for k, v in slim.items() if _DEFAULTS.get(k) != v}


def equal_in_effect(foreign: JsonView, desired: JsonView) -> bool:
    """Whether a foreign runtime table has the same effect as ``desired``.

    Additional pod annotations are ignored.
    """
    foreign_table, desired_table = without_defaults(foreign), without_defaults(desired)
    for key in _ANNOTATIONS:
        if not set(desired_table.pop(key, ())) <= set(foreign_table.pop(key, ())):
            return False
    for table in (foreign_table, desired_table):
        # Only the shim of version 1 files reads it, in addition to BinaryName.
        if isinstance(options := table.get("options"), dict):
            options.pop("Runtime", None)
    return foreign_table == desired_table


def _slim(value: JsonView) -> Json:
    inner = {k: _slim(v) if isinstance(v, Mapping) else v for k, v in value.items()}
    return {k: v for k, v in inner.items() if v not in ("", 0, [], {})}


def _differences(
    path: tuple[str, ...], old: object, new: object
) -> Iterator[tuple[tuple[str, ...], object, object]]:
    if isinstance(old, Mapping | None) and isinstance(new, Mapping | None) and (old or new):
        old_table, new_table = old or {}, new or {}
        for key in sorted({*old_table, *new_table}):
            yield from _differences((*path, key), old_table.get(key), new_table.get(key))
    elif old != new and (old or new):
        yield path, old, new


def _is_own(path: tuple[str, ...], cri_path: tuple[str, str], handler: Handler) -> bool:
    if path == ("imports",):
        return True
    if path[:2] != cri_path:
        return False
    match path[2:]:
        case ("containerd", "runtimes", name, *_):
            return name == handler.name
        case ("containerd", "default_runtime_name"):
            return handler.default
        case ("enable_cdi",) | ("cdi_spec_dirs",):
            return handler.enable_cdi is not None
        case _:
            return False


def _render(value: object) -> str:
    return "unset" if value is None else repr(value)
