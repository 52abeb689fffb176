"""Check ConfigMaps and Secrets of a policy against what the components read from them.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go, internal/state/driver_volumes.go,
    internal/config. NVIDIA/dcgm-exporter 4.8: internal/pkg/counters (columns and types).
    NVIDIA/gpu-driver-container: ubuntu24.04/nvidia-driver (names of the files it reads).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpustate.errors import GpustateError, PolicyError
from gpustate.formats import dcgm, deviceplugin
from gpustate.formats.words import kind_of, quote
from gpustate.gpu_operator import documents
from gpustate.gpu_operator.companions import Companion, Entry, pad
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.driver import MODULES
from gpustate.mig import config as mig_config

_REPOSITORIES = (".list", ".sources", ".repo", ".gpg", ".asc", ".key")
_LICENSE = ("gridd.conf", "client_configuration_token.tok")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: The key of ``gpuClientsConfig``, and the pattern of a service name in it.
CLIENTS_KEY = "clients.yaml"
_UNIT = re.compile(r"[A-Za-z0-9@_.:-]+\.service")
_PLACE = re.compile(r"(.*):(\d+)")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong with an object next to a policy.

    Args:
        file, line: where.
        key: of the object; empty for the object as a whole.
        message, fix: as in an error.
        rule: of the linter.
    """

    file: str
    line: int
    key: str
    message: str
    fix: str | None = None
    rule: str = "companion"


def check(holds: str, companion: Companion) -> Iterator[Flaw]:
    """Yield the problems of an object; ``holds`` is the kind of its data."""
    file, _, line = companion.place.rpartition(":")
    title = f"the {companion.kind} {quote(companion.name)}"
    missing = _WANTED_KEY.get(holds)
    if missing is not None and missing not in companion.entries:
        yield Flaw(
            file if line.isdigit() else companion.place,
            int(line) if line.isdigit() else 1,
            "",
            f"{title} has no key {missing}, the only one that is read"
            f" (it has {', '.join(sorted(companion.entries)) or 'none'})",
            f"rename the key to {missing}",
        )
        return
    of_entry = _CHECKS.get(holds)
    if of_entry is None:
        return
    for key, entry in companion.entries.items():
        if missing is None or key == missing:
            yield from of_entry(key, entry)


def mixed_with_mps(companion: Companion, default: str) -> str:
    """Why a device plugin with the MIG strategy ``mixed`` does not start with its default configuration; empty if it does.

    Raises:
        PolicyError: the configuration is invalid.
    """
    entry = companion.entries.get(default)
    if entry is None or deviceplugin.read(pad(entry), entry.file).sharing.strategy != "mps":
        return ""
    return (
        f"mig.strategy is mixed, and {default} of the ConfigMap {quote(companion.name)} shares GPUs with MPS: "
        f"{deviceplugin.NOT_WITH_MIXED}"
    )


def _plugin(key: str, entry: Entry) -> Iterator[Flaw]:
    wrong, passed = deviceplugin.faults(pad(entry), entry.file)
    yield from (_of_error(error, key, entry) for error in wrong)
    yield from (replace(_of_error(error, key, entry), rule="without-effect") for error in passed)


def _mig(key: str, entry: Entry) -> Iterator[Flaw]:
    try:
        file = mig_config.read(pad(entry), entry.file)
    except PolicyError as error:
        yield _of_error(error, key, entry)
        return
    for warning in file.warnings:
        place, _, message = warning.partition(": ")
        flaw = _of_error(PolicyError(message, place=place), key, entry)
        yield replace(flaw, rule="without-effect")


def clients(entry: Entry) -> list[Item]:
    """The services that a list of GPU clients names.

    Raises:
        PolicyError: it is not such a list.
    """
    items = documents.read(pad(entry), entry.file)
    top = items[0] if items else Item({}, entry.line)
    units = top.get("systemd-services")
    place = f"{entry.file}:{top.line}"
    if not isinstance(top.value, dict) or top.text("version") != "v1":
        raise PolicyError("the list of GPU clients must begin with version: v1", place=place)
    for key, child in top.value.items():
        if key not in ("version", "systemd-services"):
            raise PolicyError(
                f"unknown key {quote(key)} in the list of GPU clients",
                place=f"{entry.file}:{child.line}",
                fix="supported keys: version, systemd-services",
            )
    if units is None:
        return []
    if not isinstance(units.value, list):
        raise PolicyError(
            f"systemd-services is {kind_of(units.value)}, wanted a list",
            place=f"{entry.file}:{units.line}",
        )
    for item in units.value:
        if not isinstance(item.value, str) or not _UNIT.fullmatch(item.value):
            raise PolicyError(
                f"{quote(item.value)} is not a service, wanted one such as nvidia-dcgm.service",
                place=f"{entry.file}:{item.line}",
            )
    return list(units.value)


def _clients(key: str, entry: Entry) -> Iterator[Flaw]:
    try:
        clients(entry)
    except PolicyError as error:
        yield _of_error(error, key, entry)


def _counters(key: str, entry: Entry) -> Iterator[Flaw]:
    yield from (_of_error(error, key, entry) for error in dcgm.check(pad(entry), entry.file).errors)


def _modules(key: str, entry: Entry) -> Iterator[Flaw]:
    if key not in MODULES:
        expected = f"wanted {', '.join(MODULES)}"
        yield Flaw(
            entry.file, entry.line, key, f"the key {quote(key)} belongs to no module", expected
        )
        return
    for number, line in enumerate(entry.text.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#") and "=" not in stripped.split(" ")[0]:
            yield Flaw(
                entry.file,
                entry.line + number - 1,
                key,
                f"{key} has the line {quote(stripped)}, wanted NAME=VALUE",
            )


def _repositories(key: str, entry: Entry) -> Iterator[Flaw]:
    if not key.endswith(_REPOSITORIES):
        yield Flaw(
            entry.file,
            entry.line,
            key,
            f"the key {quote(key)} is not the name of a repository file",
            "end it in .list or .sources for apt, in .repo for dnf and zypper",
        )


def _certificates(key: str, entry: Entry) -> Iterator[Flaw]:
    if "-----BEGIN CERTIFICATE-----" not in entry.text:
        yield Flaw(entry.file, entry.line, key, f"{key} contains no PEM certificate")
    elif not key.endswith((".crt", ".pem", ".cer")):
        fix = "end it in .crt, as update-ca-certificates requires"
        yield Flaw(
            entry.file,
            entry.line,
            key,
            f"the key {quote(key)} is not the name of a certificate",
            fix,
        )


def _license(key: str, entry: Entry) -> Iterator[Flaw]:
    if key not in _LICENSE:
        yield Flaw(
            entry.file,
            entry.line,
            key,
            f"nothing reads the key {quote(key)}",
            f"wanted {', '.join(_LICENSE)}",
        )


def _environment(key: str, entry: Entry) -> Iterator[Flaw]:
    if not _VARIABLE.fullmatch(key):
        yield Flaw(
            entry.file, entry.line, key, f"the key {quote(key)} is not the name of a variable"
        )


_WANTED_KEY: Mapping[str, str] = {
    "mig": "config.yaml",
    "counters": "dcgm-metrics.csv",
    "clients": CLIENTS_KEY,
}
_CHECKS: Mapping[str, Callable[[str, Entry], Iterator[Flaw]]] = {
    "plugin": _plugin,
    "mig": _mig,
    "clients": _clients,
    "counters": _counters,
    "modules": _modules,
    "repositories": _repositories,
    "certificates": _certificates,
    "license": _license,
    "environment": _environment,
}


def _of_error(error: GpustateError, key: str, entry: Entry) -> Flaw:
    match = _PLACE.fullmatch(error.place or "")
    line = int(match[2]) if match is not None else entry.line
    return Flaw(entry.file, line, key, f"{key}: {error.message}", error.fix)
