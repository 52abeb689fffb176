"""Module streams of rpm repositories: packages that are available only while a stream is active. Pure.

As dnf does it: a package of a module stream is available while one of its streams is active (enabled, or
the module's default). An active stream hides packages of the same names from outside the stream.

Sources:
    modulemd version 2 and modulemd-defaults version 1 (libmodulemd, yaml_specs); dnf, modularity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpustate.errors import ProbeError
from gpustate.formats import yaml_events
from gpustate.solve.packages import Package
from gpustate.solve.repodata import nevra

_RULES = yaml_events.Rules(ProbeError, depth=30, values=2_000_000, many=True)
#: ``name-epoch:version-release.arch``.
_ARTIFACT = re.compile(r"(.+)-[0-9]+:[^:]*")


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a module, with the packages of all its versions.

    Args:
        module, stream: names: ``nvidia-driver``, ``open-dkms``.
        packages: as ``name-epoch:version-release.arch``.
    """

    module: str
    stream: str
    packages: frozenset[str]

    def __str__(self) -> str:
        return f"{self.module}:{self.stream}"


@dataclass(frozen=True, slots=True)
class Modules:
    """The contents of a ``modules.yaml``.

    Args:
        streams: of all modules.
        defaults: default stream by module.
    """

    streams: tuple[Stream, ...] = ()
    defaults: Mapping[str, str] | None = None


def parse(text: str, place: str) -> Modules:
    """Read a ``modules.yaml``; documents of other kinds are skipped.

    Raises:
        ProbeError: it is not valid YAML, or exceeds the limits.
    """
    found: dict[tuple[str, str], set[str]] = {}
    defaults: dict[str, str] = {}
    for document in yaml_events.documents(text, place, _RULES):
        value: Any = document.data
        if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
            continue
        data: dict[Any, Any] = value["data"]
        if value.get("document") == "modulemd":
            artifacts = data.get("artifacts")
            rpms = artifacts.get("rpms") if isinstance(artifacts, dict) else None
            rows = found.setdefault((_word(data.get("name")), _word(data.get("stream"))), set())
            if isinstance(rpms, list):
                rows.update(row for row in rpms if isinstance(row, str))
        elif value.get("document") == "modulemd-defaults" and data.get("stream") is not None:
            defaults[_word(data.get("module"))] = _word(data.get("stream"))
    streams = (Stream(*key, frozenset(rows)) for key, rows in found.items() if all(key))
    return Modules(tuple(streams), defaults)


def _word(value: Any) -> str:
    """A name; a stream such as ``580`` may be written without quotes."""
    return "" if value is None or isinstance(value, (dict, list)) else str(value)


def enabled_streams(texts: Iterable[str]) -> dict[str, str]:
    """Enabled stream by module, from the files in ``/etc/dnf/modules.d``; empty for a disabled module."""
    found: dict[str, str] = {}
    module, keys = "", dict[str, str]()

    def close() -> None:
        if module and keys.get("state") == "enabled" and keys.get("stream"):
            found[module] = keys["stream"]
        elif module and keys.get("state") == "disabled":
            found[module] = ""

    for line in (line.strip() for text in texts for line in text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            close()
            module, keys = line[1:-1], {}
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            keys[key.strip()] = value.strip()
    close()
    return found


def apply_streams(
    packages: Iterable[Package], known: Iterable[Modules], chosen: Mapping[str, str]
) -> tuple[Package, ...]:
    """Mark packages as forbidden that are in no active stream, or that an active stream hides.

    Args:
        packages: of repositories that module streams apply to.
        known: modules of all repositories.
        chosen: enabled stream by module.
    """
    known = tuple(known)
    active = {m: s for one in known for m, s in (one.defaults or {}).items()} | dict(chosen)
    streams = [stream for one in known for stream in one.streams]
    of: dict[str, list[Stream]] = {}
    names: dict[str, Stream] = {}
    for stream in streams:
        for row in stream.packages:
            of.setdefault(row, []).append(stream)
            match = _ARTIFACT.fullmatch(row)
            if match is not None and active.get(stream.module) == stream.stream:
                names.setdefault(match[1], stream)

    def seen(package: Package) -> Package:
        mine = of.get(nevra(package), [])
        if any(active.get(stream.module) == stream.stream for stream in mine):
            return package
        if mine:
            stream_names = " or ".join(sorted(map(str, mine))[:3])
            return _barred(package, f"module stream {stream_names}, which is not enabled,")
        if package.name in names:
            return _barred(package, f"module stream {names[package.name]}, which has its own,")
        return package

    return tuple(seen(package) for package in packages)


def _barred(package: Package, forbidden_by: str) -> Package:
    return (
        package
        if package.forbidden
        else replace(package, forbidden=True, forbidden_by=forbidden_by)
    )
