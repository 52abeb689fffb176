"""What containerd's files and its own dump say, for the state: imports, its socket, whether it serves pods at all."""

from __future__ import annotations

import base64
import posixpath
import re
import shlex
from collections.abc import Mapping

from gpustate import ProbeError
from gpustate.formats import toml_scan
from gpustate.formats.containerd import disabled_cri, dump_arguments, effective
from gpustate.states.containerd.query import SOCKET, Found

_PATTERN = re.compile(r"/[A-Za-z0-9_./*?\[\]+@:-]+")
_DISABLES = re.compile(r"(?m)^disabled_plugins = \[.*cri")


def disabled_by(dump: str) -> str:
    """The entry by which containerd serves no CRI; a dump that cannot be read has none."""
    if not _DISABLES.search(dump):
        return ""
    try:
        return disabled_cri(toml_scan.parse(dump, "containerd config dump"))
    except ProbeError:
        return ""


def address(dump: str) -> str:
    """The socket of its dump."""
    try:
        grpc = toml_scan.parse(dump, "containerd config dump").get("grpc")
    except ProbeError:
        return SOCKET
    return str(grpc.get("address") or SOCKET) if isinstance(grpc, dict) else SOCKET


def list_runtimes(dump: str) -> Mapping[str, object]:
    """The runtimes that its files give it."""
    try:
        return effective(dump).runtimes
    except ProbeError:
        return {}


def imports(files: Mapping[str, str], root_path: str) -> list[str]:
    imports = toml_scan.parse(files.get(root_path) or "", root_path).get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(entry, str) for entry in imports):
        raise ProbeError("imports is not a list of paths", place=root_path, fix="correct it")
    return imports


def elsewhere(files: Mapping[str, str], root_path: str) -> list[str]:
    """Imports outside of the folders that are read anyway, as shell patterns."""
    folder = posixpath.dirname(root_path)
    read_anyway = {f"{folder}/conf.d/*.toml", f"{folder}/config.d/*.toml", *files}
    patterns: list[str] = []
    for entry in imports(files, root_path):
        full = posixpath.normpath(posixpath.join(folder, entry))
        if full in read_anyway:
            continue
        if not _PATTERN.fullmatch(full):
            raise ProbeError(
                f"cannot follow the import {entry!r}", place=root_path, fix="rename it"
            )
        patterns.append(full)
    return patterns


def dump_without_imports(facts: Found) -> str:
    """Ask for a dump of the root file alone: with a newer import there is none, or a wrong one."""
    text = facts.files.get(facts.started_with, "")
    imports = toml_scan.scan(text).find(("imports",))
    if imports is not None:
        text = text[: imports.start] + text[imports.end :]
    encoded = base64.b64encode(text.encode()).decode()
    words = dump_arguments("/dev/stdin", text, facts.version)
    line = " ".join(shlex.quote(word) for word in (facts.program, *words))
    return f"printf %s {encoded} | base64 -d | timeout -k 2 20 {line}"
