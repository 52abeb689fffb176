"""Input and output of a plan for containerd's configuration."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import ProbeError
from gpustate.formats.toml_scan import parse

ROOT_PATH = "/etc/containerd/config.toml"
DROP_IN_PATH = "/etc/containerd/conf.d/99-nvidia.toml"
CDI_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")

#: The CRI plugin's table by configuration version; from 3 on the name stays.
_CRI_TABLES = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
#: Disabling one of them disables the CRI service. A version 1 file uses the first, all others a full name.
_SERVICES = {"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}
_RELEASE = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Handler:
    """The runtime handler that a node should offer.

    Args:
        name: its name in a RuntimeClass.
        binary: absolute path of ``nvidia-container-runtime``.
        default: whether containers without a handler use this one.
        enable_cdi: ``True`` and ``False`` set it if it differs; ``None`` does not change it.
    """

    name: str = "nvidia"
    binary: str = "/usr/bin/nvidia-container-runtime"
    default: bool = False
    enable_cdi: bool | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """The configuration files of one node, read without changing line breaks.

    Args:
        root_text: ``None`` if there is no root file.
        imported: path to text of the files the root's ``imports`` match, in the order containerd
            loads them (patterns in order, the matches of one pattern sorted).
        root_path: the file containerd is started with.
        drop_in_path: gpustate's own file.
        drop_in_text: its text if it exists and is not imported.
    """

    root_text: str | None
    imported: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())
    root_path: str = ROOT_PATH
    drop_in_path: str = DROP_IN_PATH
    drop_in_text: str | None = None

    def texts(self) -> dict[str, str | None]:
        """Return every file's text by path: the root first, then in load order, the drop-in last."""
        texts: dict[str, str | None] = {self.root_path: self.root_text, **self.imported}
        texts.setdefault(self.drop_in_path, self.drop_in_text)
        return texts


@dataclass(frozen=True, slots=True)
class Edit:
    """The files to write.

    Args:
        files: path to new text; ``None`` removes the file.
        notes: for the user, one line each.
        why: one line; empty if there is nothing to write.
    """

    files: Mapping[str, str | None]
    notes: tuple[str, ...] = ()
    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.files)


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file without our lines.

    Args:
        path, text, data, version: of the file.
        names: the names of the CRI plugin's table that containerd reads in it, in order of precedence.
        name: the one of them for new settings.
    """

    path: str
    text: str
    data: JsonView
    version: int
    names: tuple[str, ...]
    name: str

    @property
    def cri_path(self) -> tuple[str, str]:
        """The table for the CRI plugin's settings in this file."""
        return ("plugins", self.name)

    def get(self, *path: str) -> Any:
        """Return the value at ``path`` below the CRI plugin's table; ``None`` if it is not set."""
        value: Any = _cri(self.data, self.names)
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def _cri(data: JsonView, names: tuple[str, ...]) -> JsonView | None:
    """The CRI plugin's table of one file, with keys that only an older name sets."""
    plugins = data.get("plugins")
    tables = [plugins.get(name) for name in names] if isinstance(plugins, Mapping) else []
    merged: JsonView | None = None
    for table in tables:
        if isinstance(table, Mapping):
            merged = table if merged is None else _migrated(merged, table)
    return merged


def _migrated(newer: JsonView, older: JsonView) -> Json:
    """containerd 2 takes over the keys that the newer table lacks, and those of its ``containerd`` section."""
    both = {**older, **newer}
    older_section, newer_section = older.get("containerd"), newer.get("containerd")
    if isinstance(older_section, Mapping) and isinstance(newer_section, Mapping):
        both["containerd"] = {**older_section, **newer_section}
    return both


def cri_names(
    data: JsonView, version: int, containerd: tuple[int, int] | None
) -> tuple[tuple[str, ...], str]:
    """Return the names of the CRI plugin's table that containerd reads in a file, and the one for new settings.

    containerd 2 reads the name of version 3 in older files too, and it takes precedence. Settings of a version 1
    file that it ignores before 2.3 are refused in :mod:`.traps`.

    Args:
        data: of the file.
        version: of the file.
        containerd: major and minor; ``None`` if unknown.
    """
    name, newest = _CRI_TABLES[min(version, 3)], _CRI_TABLES[3]
    if name == newest or (containerd is not None and containerd < (2, 0)):
        return (name,), name
    plugins = data.get("plugins")
    tables = plugins if isinstance(plugins, Mapping) else {}
    if version == 1:
        # The name of version 2 hides the one of version 1, and neither is read from 2.0 to 2.2.
        name = _CRI_TABLES[2] if _CRI_TABLES[2] in tables else name
        if containerd is not None and containerd < (2, 3):
            return (newest,), newest
    runtime = tables.get(newest)
    uses_newest = isinstance(runtime, Mapping) and ("containerd" in runtime or name not in tables)
    return (newest, name), newest if uses_newest else name


def disabled_cri(data: JsonView) -> str:
    """The entry of ``disabled_plugins`` that disables the CRI service; empty if it is enabled.

    Args:
        data: a file, or containerd's own dump.
    """
    names = data.get("disabled_plugins")
    disabled = [name for name in names if name in _SERVICES] if isinstance(names, list) else []
    return str(disabled[0]) if disabled else ""


def read_document(
    path: str, text: str, *, unversioned: int = 1, containerd: tuple[int, int] | None = None
) -> Document:
    """Read one file.

    Args:
        path: for the message.
        text: TOML.
        unversioned: the version of a file that does not set one.
        containerd: major and minor; ``None`` if unknown.

    Raises:
        ProbeError: not TOML, or a version that is not a number.
    """
    data = parse(text, path)
    version = data.get("version", unversioned)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ProbeError(
            f"version is {version!r}, wanted a whole number", place=path, fix="correct it"
        )
    version = version or unversioned
    return Document(path, text, data, version, *cri_names(data, version, containerd))


def same_program(program: object, binary: str) -> bool:
    """Whether a runtime's configured program is ``binary``; a bare name is found through PATH."""
    return program in (binary, posixpath.basename(binary))


def release(containerd_version: str) -> tuple[int, int]:
    """Return major and minor of ``1.7.24~ds1`` or ``v2.1.9``."""
    match = _RELEASE.match(containerd_version.strip())
    if match is None:
        raise ProbeError(
            f"containerd reports version {containerd_version!r}, wanted one such as 1.7.24"
        )
    return int(match.group(1)), int(match.group(2))
