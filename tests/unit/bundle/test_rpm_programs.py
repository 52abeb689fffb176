"""Bundles of real packages: rpmbuild, rpmsign and createrepo_c made them, and dnf and rpm read what comes of it."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rpmworld import Rpm, build, index, needs
from signingkey import SigningKey

from gpustate.bundle import reading, rpmclosure, rpmupstream, write
from gpustate.bundle.closure import Available
from gpustate.bundle.manifest import BASE
from gpustate.bundle.rpmupstream import RpmRepositorySource
from gpustate.bundle.upstream import RepositorySource
from gpustate.errors import RefusedError
from gpustate.resolver.rpm_bundle_nodes import QUERY, parse_installed

FOLDER = "rocky9-x86_64/base"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with real packages and repodata, as rpmbuild, rpmsign and createrepo_c make them, and a key."""
    needs("rpmbuild", "rpmsign", "createrepo_c", "gpg", "dnf")
    from rpmcomponents import sign
    from rpmnodes import repository

    made = repository(tmp_path_factory.mktemp("real") / "world")
    script = "%install\nmkdir -p %{buildroot}/usr/bin\necho >%{buildroot}/usr/bin/tool\n%post\n:\n"
    rows = [
        Rpm("app", "1-1", ("tool >= 2", "(extra if bash)"), more="%post\n:\n"),
        Rpm("tool", "2-1", more=script, files="/usr/bin/tool\n", arch="noarch"),
        Rpm("bash", "5-1", provides=("/bin/sh",)),
        Rpm("extra", "1-1", ("/usr/bin/tool",)),
    ]
    build(rows, made.folder, tmp_path_factory.mktemp("build") / "scratch")
    sign(made)
    index(made.folder)
    (made.folder.parent / "key.asc").write_text(made.key)
    return made.folder


def real_place(real: Path, key: bytes | None = None) -> RpmRepositorySource:
    keys = (key or (real.parent / "key.asc").read_bytes(),)
    return RpmRepositorySource("real", real.as_uri(), "", keys, packages_signed=True)


def real_bundle(real: Path, tmp_path: Path, place: RpmRepositorySource | None = None) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    offers = rpmupstream.read(place or real_place(real), "x86_64", {}, cache)
    builds = rpmclosure.resolve(Available({BASE: [offers]}), [("app", "")], ())
    chosen = write.Selection("rocky9", "x86_64", (), {}, builds, offers.date)
    made = write.prepare([chosen], cache)
    write.write(made, tmp_path / "b")
    return tmp_path / "b"


def test_signed_packages_are_believed_and_the_manifest_says_by_whom(
    real: Path, tmp_path: Path
) -> None:
    bundle = reading.load(str(real_bundle(real, tmp_path)))
    entries = bundle.manifest.targets[0].repositories[0].entries
    assert sorted(one.name for one in entries) == ["app", "bash", "extra", "tool"]
    signers = {one.source.signed_by for one in entries}
    assert len(signers) == 1
    assert signers != {()}
    assert reading.check(bundle) == []


def test_packages_of_another_key_or_of_none_are_refused(real: Path, tmp_path: Path) -> None:
    other = SigningKey.load(tmp_path / "other.pem").public().encode()
    with pytest.raises(RefusedError, match=r"real/.*rpm: signed by .*|not a key pinned"):
        real_bundle(real, tmp_path, real_place(real, other))


@pytest.mark.parametrize("damage", ["payload", "header"])
def test_a_package_that_was_changed_is_refused_whatever_its_repodata_says(
    real: Path, tmp_path: Path, damage: str
) -> None:
    world = tmp_path / "world" / "packages"
    shutil.copytree(real, world)
    shutil.copy(real.parent / "key.asc", tmp_path / "world")
    file = next(world.glob("tool-*.rpm"))
    data = bytearray(file.read_bytes())
    at = len(data) - 3 if damage == "payload" else data.index(b"noarch\0", 4000)
    data[at] ^= 1
    file.write_bytes(data)
    text = gzip.decompress(next(world.glob("repodata/*primary.xml.gz")).read_bytes()).decode()
    before = _sha256(next(real.glob("tool-*.rpm")))
    primary = world / "repodata/primary.xml"
    primary.write_text(text.replace(before, _sha256(file)))
    (world / "repodata/repomd.xml").write_text(
        '<repomd><data type="primary"><checksum type="sha256">'
        f'{_sha256(primary)}</checksum><location href="repodata/primary.xml"/>'
        f"<size>{primary.stat().st_size}</size></data></repomd>"
    )
    said = "payload does not match its signed header" if damage == "payload" else "not match its"
    with pytest.raises(RefusedError, match=said):
        real_bundle(world, tmp_path)


def test_what_is_no_package_is_refused_in_one_line(real: Path, tmp_path: Path) -> None:
    from gpustate.bundle import rpmfile

    whole = next(real.glob("tool-*.rpm")).read_bytes()
    place = place_of(real)
    for data in (b"", b"x" * 500, whole[:96], whole[:200], whole[:96] + b"\x8e\xad\xe8\x01" * 9):
        (tmp_path / "x.rpm").write_bytes(data)
        with pytest.raises(RefusedError, match=r"x\.rpm is not an rpm package"):
            rpmfile.check(tmp_path / "x.rpm", "x.rpm", place)


def place_of(real: Path) -> RepositorySource:
    key = (real.parent / "key.asc").read_bytes()
    return RepositorySource(real.as_uri(), "/", (), (key,))


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


def test_rpm_says_what_is_installed_in_the_words_that_are_read(real: Path) -> None:
    files = [str(path) for path in real.glob("*.rpm")]
    done = subprocess.run(
        ["rpm", "-qp", "--nosignature", "--qf", QUERY, *files],
        capture_output=True,
        text=True,
        check=True,
    )
    node = parse_installed(done.stdout, "node")
    assert [p.name for p in node.packages].count("tool") == 1
    needs = {p.name: [" ".join(filter(None, row)) for row in p.requires] for p in node.packages}
    assert "(extra if bash)" in needs["app"]
    assert "tool >= 2" in needs["app"]
    assert not any("rpmlib" in row for rows in needs.values() for row in rows)
    tool = next(p for p in node.packages if p.name == "tool")
    assert ("/usr/bin/tool", "") in tool.provides


def _sha256(path: Path) -> str:
    done = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]
