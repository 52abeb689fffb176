"""Bundles for nodes with apt: which part of the bundle a package goes to."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundleworld import stanza

from gpustate import NodeFacts
from gpustate.bundle.manifest import Source
from gpustate.bundle.upstream import Index, RepositorySource
from gpustate.core.policy import build
from gpustate.formats import aptsources
from gpustate.resolver.deb_bundles import Case, Read, select
from gpustate.states.driver import DriverInstalled
from gpustate.states.repository import DriverRepository

FACTS = NodeFacts(
    os_id="ubuntu",
    os_version="24.04",
    os_codename="noble",
    machine="x86_64",
    package_manager="apt",
    kernel="6.8.0-106-generic",
)
FULL = "580.178.04-0ubuntu0.24.04.1"
SOURCES = (
    "Types: deb\nURIs: http://archive.example/ubuntu/\nSuites: noble noble-updates\n"
    "Components: main{more}\nSigned-By: /k.gpg\n\n"
    "Types: deb\nURIs: http://archive.example/mirror/\nSuites: /\nSigned-By: /k.gpg\n"
)


class Archive(Read):
    """A repository by its suite: the driver is in ``noble-updates``, the linker in ``noble``."""

    def index(self, place: RepositorySource, architecture: str) -> Index:
        key = (place, architecture)
        if key in self.known:
            return self.known[key]
        found = self.known[key] = Index(1)
        packages: dict[str, tuple[str, str]] = {}
        if place.suite == "noble" and "main" in place.components:
            packages["binutils"] = ("2.42-1", "")
        if place.suite == "noble-updates" and "restricted" in place.components:
            packages |= {
                "libnvidia-compute-580-server": (FULL, "binutils"),
                "nvidia-utils-580-server": (FULL, ""),
                "linux-modules-nvidia-580-server-open-6.8.0-106-generic": ("6.8.0-106.106", ""),
            }
        for name, (version, depends) in packages.items():
            text = stanza(name, name.encode(), depends, Version=version)
            found.add(text, place.uri, Source("Ubuntu", place.suite, "", place.uri))
        return found


@pytest.mark.parametrize("more", [" restricted", ""])
def test_a_driver_of_the_distributions_archive_is_in_the_part_of_its_repository(
    more: str, tmp_path: Path
) -> None:
    sources = aptsources.parse_sources({"/etc/apt/x.sources": SOURCES.replace("{more}", more)})
    states = (
        build(DriverRepository, {"origin": "distribution"}),
        build(DriverInstalled, {"branch": 580, "precompiled": True, "module_type": "open"}),
    )
    case = Case(FACTS, states, sources, {"/k.gpg": b""}, ("6.8.0-106-generic",))
    found = select(case, Archive(tmp_path))
    parts = {
        part: [one.package.name for one in rows if one.package is not None]
        for part, rows in found.stanzas.items()
    }
    assert parts == {
        "driver-repository": [
            "libnvidia-compute-580-server",
            "nvidia-utils-580-server",
        ],
        "base": ["binutils", "linux-modules-nvidia-580-server-open-6.8.0-106-generic"],
    }
