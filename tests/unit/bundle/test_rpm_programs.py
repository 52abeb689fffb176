"""Bundles of real packages: rpmbuild made them, and dnf installs from the index that is built of them."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rpmworld import Rpm, build, needs

from gpustate.bundle import reading, write
from gpustate.bundle.indexes import RPM_FORMAT, FetchedPackage
from gpustate.bundle.manifest import File

FOLDER = "rocky9-x86_64/base"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with real packages, as rpmbuild makes them."""
    needs("rpmbuild", "dnf")
    script = "%install\nmkdir -p %{buildroot}/usr/bin\necho >%{buildroot}/usr/bin/tool\n%post\n:\n"
    rows = [
        Rpm("app", "1-1", ("tool >= 2", "(extra if bash)"), more="%post\n:\n"),
        Rpm("tool", "2-1", more=script, files="/usr/bin/tool\n", arch="noarch"),
        Rpm("bash", "5-1", provides=("/bin/sh",)),
        Rpm("extra", "1-1", ("/usr/bin/tool",)),
    ]
    folder = tmp_path_factory.mktemp("real") / "packages"
    build(rows, folder, tmp_path_factory.mktemp("build") / "scratch")
    return folder


def real_bundle(real: Path, tmp_path: Path) -> Path:
    packages: list[FetchedPackage] = []
    for path in sorted(real.glob("*.rpm")):
        words = ["rpm", "-qp", "--nosignature", "--qf", RPM_FORMAT, str(path)]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        data = path.read_bytes()
        file = File(path.name, hashlib.sha256(data).hexdigest(), len(data))
        packages.append(FetchedPackage(file, "base", text, path))
    write.write(
        write.prepare([write.Selection("rocky9", "x86_64", (), {}, packages)]), tmp_path / "b"
    )
    return tmp_path / "b"


def test_the_index_has_what_rpm_prints(real: Path, tmp_path: Path) -> None:
    path = real_bundle(real, tmp_path)
    assert reading.check(reading.load(str(path))) == []
    xml = gzip.decompress((path / FOLDER / "repodata/primary.xml.gz").read_bytes()).decode()
    assert '<rpm:entry name="(extra if bash)"/>' in xml
    assert '<rpm:entry name="tool" flags="GE" epoch="0" ver="2"/>' in xml
    assert "<file>/usr/bin/tool</file>" in xml
    assert "rpmlib(" not in xml


def test_dnf_itself_installs_from_a_bundle_and_from_nothing_else(
    real: Path, tmp_path: Path
) -> None:
    from gpustate.formats.rpmrepos import render_repo
    from gpustate.ops.upload import BUNDLE_FOLDER, ONLY_BUNDLE

    path = real_bundle(real, tmp_path)
    home = tmp_path / "node"
    (home / "repos.d").mkdir(parents=True)
    (tmp_path / "root/var/log").mkdir(parents=True)
    (tmp_path / "dnf.conf").write_text(
        "[main]\n[outside]\nname=x\nbaseurl=http://192.0.2.1/\nenabled=1\n"
    )
    text = render_repo(
        "dnf",
        id="gpustate-bundle-base",
        uri=f"file:{path}/{FOLDER}",
        key_path="",
        packages_signed=False,
        metadata_signed=False,
        priority=99,
    )
    (home / "repos.d/gpustate.repo").write_text(text)
    only = ONLY_BUNDLE.replace(BUNDLE_FOLDER, str(home))
    where = f"-c {tmp_path}/dnf.conf --installroot={tmp_path}/root --setopt=cachedir={tmp_path}/c --releasever=9"

    def dnf(words: str) -> str:
        command = f"cd {tmp_path}; {only}$DNF {where} {words}"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env={**os.environ, "HOME": "/"}
        )
        return done.stdout + done.stderr

    assert "Metadata cache created" in dnf("-y --repo=gpustate-bundle-base makecache")
    said = dnf("-C -y install --downloadonly app")
    assert "Complete!" in said
    for name in ("app", "bash", "extra", "tool"):
        assert f"\n {name} " in said
    assert "outside" not in dnf("-C repolist")

    primary = path / FOLDER / "repodata/primary.xml.gz"
    primary.write_bytes(gzip.compress(gzip.decompress(primary.read_bytes()) + b"\n"))
    shutil.rmtree(tmp_path / "c")
    assert "checksum doesn't match" in dnf("-y --repo=gpustate-bundle-base makecache")
