"""What goes into a plan for containerd's configuration, and what comes out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpustate.errors import ProbeError
from gpustate.text.toml_scan import parse

ROOT_PATH = "/etc/containerd/config.toml"
DROP_IN_PATH = "/etc/containerd/conf.d/99-nvidia.toml"
CDI_SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")

#: The CRI plugin's table by configuration version; from 3 on the name stays.
_CRI_TABLES = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_RELEASE = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Handler:
    """The runtime handler that a node should offer.

    Args:
        name: what a RuntimeClass calls it.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no handler get this one.
        enable_cdi: ``True`` and ``False`` set it where it differs; ``None`` leaves it alone.
    """

    name: str = "nvidia"
    binary: str = "/usr/bin/nvidia-container-runtime"
    default: bool = False
    enable_cdi: bool | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """The configuration files of one node, read without changing line breaks.

    Args:
        root_text: ``None`` when there is no root file.
        imported: path to text of the files the root's ``imports`` match, in the order containerd
            loads them (patterns in order, the matches of one pattern sorted).
        root_path: the file containerd is started with.
        drop_in_path: the file that is wholly ours.
        drop_in_text: its text where it exists and is not imported.
    """

    root_text: str | None
    imported: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())
    root_path: str = ROOT_PATH
    drop_in_path: str = DROP_IN_PATH
    drop_in_text: str | None = None

    def texts(self) -> dict[str, str | None]:
        """Return path to text of every file: the root first, then as loaded, the drop-in last."""
        texts: dict[str, str | None] = {self.root_path: self.root_text, **self.imported}
        texts.setdefault(self.drop_in_path, self.drop_in_text)
        return texts


@dataclass(frozen=True, slots=True)
class Edit:
    """The files to write.

    Args:
        files: path to new text; ``None`` removes the file.
        notes: what a person should know, one line each.
        why: one line; empty when there is nothing to write.
    """

    files: Mapping[str, str | None]
    notes: tuple[str, ...] = ()
    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.files)


@dataclass(frozen=True, slots=True)
class Document:
    """One file without anything of ours, read."""

    path: str
    text: str
    data: Mapping[str, Any]
    version: int

    @property
    def cri_path(self) -> tuple[str, str]:
        """Where the CRI plugin's table stands in a file of this version."""
        return ("plugins", _CRI_TABLES[min(self.version, 3)])

    def get(self, *path: str) -> Any:
        """Return the value at ``path`` below the CRI plugin's table; ``None`` when it is not set."""
        value: Any = self.data
        for part in (*self.cri_path, *path):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def read_document(path: str, text: str, *, unversioned: int = 1) -> Document:
    """Read one file.

    Args:
        path: for the message.
        text: TOML.
        unversioned: the version of a file that does not say.

    Raises:
        ProbeError: not TOML, or a version that is no number.
    """
    data = parse(text, path)
    version = data.get("version", unversioned)
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ProbeError(
            f"version is {version!r}, a whole number was expected", place=path, fix="correct it"
        )
    return Document(path, text, data, version or unversioned)


def release(containerd_version: str) -> tuple[int, int]:
    """Return major and minor of ``1.7.24~ds1`` or ``v2.1.9``."""
    found = _RELEASE.match(containerd_version.strip())
    if found is None:
        raise ProbeError(
            f"containerd says its version is {containerd_version!r}, such as 1.7.24 was expected"
        )
    return int(found.group(1)), int(found.group(2))
