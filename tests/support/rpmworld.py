"""Rpm repositories for tests: metadata written by hand, packages built with rpmbuild.

Everything is made here: NVIDIA's names and relations, no software of theirs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

SYSTEM_PYTHON = "/usr/bin/python3"
FLAGS = {"=": "EQ", "<": "LT", "<=": "LE", ">": "GT", ">=": "GE"}


def needs(*programs: str) -> None:
    """Skip a test where a program of Debian's packages rpm, dnf, createrepo-c or zstd is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(
                f"{program} is not installed (Debian packages rpm, dnf, createrepo-c, zstd)"
            )


@dataclass(frozen=True)
class Rpm:
    """One package; relations are written as in a spec file: ``name >= 1``."""

    name: str
    version: str  # epoch:version-release
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    obsoletes: tuple[str, ...] = ()
    arch: str = "x86_64"
    more: str = ""  # further sections of its spec file
    files: str = ""  # what of them it owns

    @property
    def evr(self) -> tuple[str, str, str]:
        epoch, colon, rest = self.version.partition(":")
        version, _, release = (rest if colon else self.version).rpartition("-")
        return (epoch if colon else "0"), version, release

    def spec(self) -> str:
        """A spec file that builds it, empty."""
        epoch, version, release = self.evr
        rows = {
            "Requires": self.requires,
            "Provides": self.provides,
            "Conflicts": self.conflicts,
            "Obsoletes": self.obsoletes,
        }
        more = "".join(f"{key}: {one}\n" for key, many in rows.items() for one in many)
        if self.arch == "noarch":
            more += "BuildArch: noarch\n"
        return (
            f"Name: {self.name}\nEpoch: {epoch}\nVersion: {version}\nRelease: {release}\n"
            f"Summary: a <package> & more\nLicense: none\nAutoReqProv: no\n"
            f"{more}%description\nNothing </package> is in it.\n{self.more}%files\n{self.files}"
        )

    def xml(self) -> str:
        """Its element of a primary.xml."""
        epoch, version, release = self.evr
        itself = f"{self.name} = {self.version}"
        parts = "".join(
            f"<rpm:{kind}>{''.join(map(_entry, rows))}</rpm:{kind}>"
            for kind, rows in (
                ("provides", (*self.provides, itself)),
                ("requires", self.requires),
                ("conflicts", self.conflicts),
                ("obsoletes", self.obsoletes),
            )
        )
        digest = f"{abs(hash((self.name, self.version))):064x}"[-64:]
        return (
            f'<package type="rpm"><name>{self.name}</name><arch>{self.arch}</arch>'
            f'<version epoch="{epoch}" ver="{version}" rel="{release}"/>'
            f'<checksum type="sha256" pkgid="YES">{digest}</checksum>'
            f'<summary>x</summary><description/><packager/><url/><time file="1" build="1"/>'
            f'<size package="10" installed="10" archive="10"/>'
            f'<location href="{self.name}-{version}-{release}.rpm"/>'
            f"<format>{parts}</format></package>"
        )


def _entry(relation: str) -> str:
    words = relation.split()
    if relation.startswith("(") or len(words) != 3:
        return f"<rpm:entry name={quoteattr(relation)}/>"
    name, sign, bound = words
    epoch, colon, rest = bound.partition(":")
    version, dash, release = (rest if colon else bound).partition("-")
    more = f" rel={quoteattr(release)}" if dash else ""
    return (
        f'<rpm:entry name={quoteattr(name)} flags="{FLAGS[sign]}" '
        f'epoch="{epoch if colon else 0}" ver={quoteattr(version)}{more}/>'
    )


def primary(packages: Iterable[Rpm]) -> bytes:
    """A primary.xml."""
    rows = "".join(one.xml() for one in packages)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<metadata xmlns="http://linux.duke.edu/metadata/common" '
        f'xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="1">{rows}</metadata>'
    ).encode()


def compared(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """What the rpm program makes of pairs of versions."""
    calls = ",".join(f'rpm.vercmp("{a}","{b}")' for a, b in pairs)
    lua = f"%{{lua:print(table.concat({{{calls}}}, ' '))}}"
    done = subprocess.run(["rpm", "--eval", lua], capture_output=True, text=True, check=True)
    return [int(float(word)) for word in done.stdout.split()]


def build(packages: Iterable[Rpm], folder: Path, scratch: Path) -> None:
    """Build packages with rpmbuild into a folder."""
    specs: dict[str, list[str]] = {}
    scratch.mkdir(parents=True)
    for number, one in enumerate(packages):
        (scratch / f"{number}.spec").write_text(one.spec())
        target = "i686" if one.arch == "i686" else "x86_64"
        specs.setdefault(target, []).append(f"{scratch}/{number}.spec")
    defines = {
        "_topdir": f"{scratch}/top",
        "_rpmdir": str(folder),
        "_rpmfilename": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        "_build_id_links": "none",
        "debug_package": "%{nil}",
    }
    words = [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
    for target, files in specs.items():
        _do("rpmbuild", "-bb", "--quiet", "--target", target, *words, *files)


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words[0]}: {done.stderr[-800:]}"


def index(
    folder: Path,
    *,
    zstd: bool = False,
    modules: str = "",
    patches: str = "",
    primary: Path | None = None,
) -> None:
    """Write the repodata of a folder with createrepo_c; its own zstd is newer than Debian's.

    Args:
        primary: what it says of packages, in place of those that are there.
    """
    _do("createrepo_c", "-q", str(folder))
    if primary is not None:
        _do("modifyrepo_c", "--remove", "primary", str(folder / "repodata"))
        _do("modifyrepo_c", "--mdtype=primary", str(primary), str(folder / "repodata"))
    if modules:
        file = folder / "modules.yaml"
        file.write_text(modules)
        _do("modifyrepo_c", "--mdtype=modules", str(file), str(folder / "repodata"))
    if patches:
        file = folder / "updateinfo.xml"
        file.write_text(patches)
        _do("modifyrepo_c", "--mdtype=updateinfo", str(file), str(folder / "repodata"))
    if zstd:
        data = folder / "repodata"
        (packed,) = data.glob("*primary.xml.gz")
        plain = subprocess.run(["gzip", "-dc", packed], capture_output=True, check=True).stdout
        raw = packed.with_suffix("")
        raw.write_bytes(plain)
        _do("modifyrepo_c", "--remove", "primary", str(data))
        _do("zstd", "-q", "--rm", str(raw))
        _do("modifyrepo_c", "--no-compress", "--mdtype=primary", str(raw) + ".zst", str(data))


def documents(rows: Iterable[dict[str, Any]]) -> str:
    """Documents of a modules.yaml; JSON is YAML."""
    return "".join(f"---\n{json.dumps(row)}\n...\n" for row in rows)


def patches(bundles: Mapping[str, Iterable[Rpm]]) -> str:
    """An updateinfo.xml: security patches by their names, and what each brings."""
    rows = []
    for name, packages in bundles.items():
        parts = ""
        for one in packages:
            epoch, version, release = one.evr
            parts += (
                f'<package name="{one.name}" epoch="{epoch}" version="{version}" release="{release}"'
                f' arch="{one.arch}"><filename>{one.name}-{version}-{release}.{one.arch}.rpm</filename></package>'
            )
        rows.append(
            '<update from="lab" status="stable" type="security" version="1">'
            f"<id>{name}</id><title>{name}</title><severity>Important</severity>"
            '<issued date="1790000000"/><description>x</description>'
            f"<pkglist><collection><name>lab</name>{parts}</collection></pkglist></update>"
        )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<updates>{"".join(rows)}</updates>'
