"""Register the NVIDIA runtime in docker's ``daemon.json``, as text to text.

JSON has no comments to mark added keys, so they are recorded next to the saved original. Foreign keys stay byte
for byte (:mod:`.jsonedit`). If nothing else changed since, removal restores the original file.

Surprising, and the reason for :func:`interim`: a daemon that reloads its file does not reset options that are
no longer in it. A runtime must be replaced by an empty list first.

Sources:
    moby/moby: daemon/config (flags and file may not both set an option), daemon/reload_unix.go.
    NVIDIA/nvidia-container-toolkit, pkg/config/engine/docker: what ``nvidia-ctk`` writes; it loses other
    ``features``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import RefusedError
from gpustate.formats.containerd.model import Edit, Handler, same_program
from gpustate.formats.jsonedit import drop_key, lookup, parse, set_key

CONFIG_PATH = "/etc/docker/daemon.json"
DEFAULT = ("default-runtime",)
CDI = ("features", "cdi")
STOCK_RUNTIME = "runc"

_RELEASE = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class File:
    """``daemon.json`` of one node.

    Args:
        path: of the daemon's configuration file.
        text: ``None`` if it does not exist.
        managed: dotted keys that gpustate has set in it.
        original: its original text; ``None`` for no file.
        flags: the daemon's command line, which must not set an option of the file.
        version: of the daemon.
    """

    path: str
    text: str | None
    managed: tuple[str, ...] = ()
    original: str | None = None
    flags: tuple[str, ...] = ()
    version: str = ""

    @property
    def data(self) -> Json:
        """The parsed file."""
        return parse(self.text or "", self.path)


def release(version: str) -> tuple[int, int]:
    """Major and minor of ``20.10.24+dfsg1``; (0, 0) if unknown."""
    match = _RELEASE.match(version.strip())
    return (int(match[1]), int(match[2])) if match else (0, 0)


def supports_cdi(version: str) -> bool:
    """docker 25 is the first with ``features.cdi``."""
    return release(version) >= (25, 0)


def cdi_enabled(data: JsonView, version: str) -> bool:
    """Whether the daemon injects CDI devices with this file; since 28.2 by default."""
    configured = lookup(data, CDI)
    return configured is True if configured is not None else release(version) >= (28, 2)


def runtime(handler: Handler) -> Json:
    """The runtime's own table."""
    return {"path": handler.binary, "args": []}


def plan_edit(file: File, handler: Handler) -> Edit:
    """Return the file to write so that docker offers ``handler``, and nothing else changes.

    Raises:
        ProbeError: the file is not JSON, or cannot be edited without changing foreign keys.
        RefusedError: docker would not start with these settings in the file.
    """
    data = file.data
    notes: list[str] = []
    desired: dict[tuple[str, ...], Any] = {}
    where = ("runtimes", handler.name)
    defined = lookup(data, where)
    if equal_in_effect(defined, handler):
        if ".".join(where) not in file.managed:
            notes.append(f"{handler.name} has a foreign definition with the same effect")
    elif flag_binary := by_flag(file.flags, handler.name):
        if not same_program(flag_binary, handler.binary):
            raise RefusedError(
                f"dockerd is started with --add-runtime {handler.name}={flag_binary}",
                place=file.path,
                fix="remove that option from its unit",
            )
        notes.append(f"{handler.name} is registered on dockerd's command line")
    else:
        if defined is not None and ".".join(where) not in file.managed:
            notes.append(f"{handler.name} has a different foreign definition")
        desired[where] = runtime(handler)
    if handler.default:
        desired[DEFAULT] = handler.name
    elif lookup(data, DEFAULT) == handler.name and ".".join(DEFAULT) not in file.managed:
        notes.append(
            f"{handler.name} is the default runtime by a foreign setting, which is preserved"
        )
    if handler.enable_cdi is not None:
        if supports_cdi(file.version):
            if cdi_enabled(data, file.version) != handler.enable_cdi:
                desired[CDI] = handler.enable_cdi
            elif ".".join(CDI) in file.managed:
                desired[CDI] = lookup(data, CDI)
        elif handler.enable_cdi:
            notes.append(f"docker {file.version} does not support CDI; 25.0 does")
    _refuse_flags(file, data, desired)
    paths = {".".join(path): path for path in (where, DEFAULT, CDI)}
    stays = {*desired, *([where] if equal_in_effect(defined, handler) else [])}
    restored = [paths[key] for key in file.managed if key in paths and paths[key] not in stays]
    return _edit(file, desired, restored, notes, ", ".join(".".join(path) for path in desired))


def plan_removal(file: File, handler: Handler) -> Edit:
    """Return the file to write to remove all our keys; foreign edits since then stay.

    Raises:
        ProbeError: the file is not JSON.
        RefusedError: a foreign setting makes the handler the default, and docker would not start.
    """
    if not file.managed:
        return Edit({})
    paths = [tuple(key.split(".", 1)) for key in file.managed]
    edit = _edit(file, {}, paths, [], "", removal=True)
    if not edit.files:
        return edit
    text = edit.files[file.path]
    remaining = parse(text or "", file.path)
    default = lookup(remaining, DEFAULT)
    if default == handler.name and lookup(remaining, ("runtimes", handler.name)) is None:
        raise RefusedError(
            f"default-runtime is {handler.name} by a foreign setting; without the handler docker "
            "would not start",
            place=file.path,
            fix="set another default runtime first",
        )
    return edit


def interim(before: str | None, after: str | None, path: str) -> str | None:
    """Return the file that the daemon must reload before ``after`` to reset options; ``None`` if not needed.

    A running daemon keeps ``runtimes`` and ``default-runtime`` if the reloaded file does not have them.
    """
    old, new = parse(before or "", path), parse(after or "", path)
    text, needed = after or "", False
    if "runtimes" in old and "runtimes" not in new:
        text, needed = set_key(text, ("runtimes",), {}, path), True
    if "default-runtime" in old and "default-runtime" not in new:
        text, needed = set_key(text, DEFAULT, STOCK_RUNTIME, path), True
    return text if needed else None


def equal_in_effect(foreign: object, handler: Handler) -> bool:
    """Whether a foreign runtime table has the same effect as ours.

    ``nvidia-ctk runtime configure`` writes the program without its folder: docker finds it on the PATH.
    """
    if not isinstance(foreign, Mapping) or not same_program(foreign.get("path"), handler.binary):
        return False
    return not any(value for key, value in foreign.items() if key != "path")


def _edit(
    file: File,
    desired: Mapping[tuple[str, ...], Any],
    restored: Sequence[tuple[str, ...]],
    notes: list[str],
    names: str,
    *,
    removal: bool = False,
) -> Edit:
    was = parse(file.original or "", file.path)
    text = file.text or ""
    data = file.data
    for path, value in desired.items():
        if lookup(data, path) != value:
            text = set_key(text, path, value, file.path)
    for path in restored:
        value = lookup(was, path)
        if value is not None:
            text = text if lookup(data, path) == value else set_key(text, path, value, file.path)
            continue
        text = drop_key(text, path, file.path)
        if len(path) > 1 and path[0] not in was:
            text = _without_empty(text, path[:1], file.path)
    if removal and "runtimes" not in was:
        text = _without_empty(text, ("runtimes",), file.path)
    new: str | None = text
    current = parse(text, file.path)
    if restored and current == was and (file.original is not None or not current):
        new = file.original
    elif restored and removal:
        notes = [*notes, f"{file.path}: foreign edits are preserved"]
    if new == file.text or (new == "" and file.text is None):
        return Edit({}, tuple(notes))
    why = f"set {names}" if names else f"take {', '.join('.'.join(path) for path in restored)} out"
    return Edit({file.path: new}, tuple(notes), why)


def _without_empty(text: str, path: tuple[str, ...], place: str) -> str:
    return drop_key(text, path, place) if lookup(parse(text, place), path) == {} else text


def _flag_values(flags: Sequence[str], name: str) -> list[str]:
    values: list[str] = []
    for at, word in enumerate(flags):
        if word == name and at + 1 < len(flags):
            values.append(flags[at + 1])
        elif word.startswith(name + "="):
            values.append(word.partition("=")[2])
    return values


def by_flag(flags: Sequence[str], name: str) -> str:
    for value in _flag_values(flags, "--add-runtime"):
        runtime_name, _, program = value.partition("=")
        if runtime_name == name:
            return program
    return ""


def _refuse_flags(file: File, data: JsonView, desired: Mapping[tuple[str, ...], Any]) -> None:
    """docker does not start when its command line and its file both set one option."""
    pairs = (
        ("runtimes", "--add-runtime"),
        ("default-runtime", "--default-runtime"),
        ("features", "--feature"),
    )
    for key, flag in pairs:
        if key in {path[0] for path in desired} - data.keys() and _flag_values(file.flags, flag):
            raise RefusedError(
                f"dockerd is started with {flag}, and does not start when {key} is in the file as well",
                place=file.path,
                fix=f"move {flag} from its unit to the file first",
            )
