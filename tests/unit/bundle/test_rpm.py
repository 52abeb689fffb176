"""Bundles of rpm packages: complete, signed, the same bytes for the same input, and read by dnf itself."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from bundleworld import DATE, RPMS, RpmSite, installed
from rpmworld import Rpm
from signingkey import SigningKey

from gpustate.bundle import fetch, manifest, reading, rpmupstream
from gpustate.bundle.rpmupstream import RpmRepositorySource
from gpustate.errors import ConnectionFailed, RefusedError, UsageError

SCHEMA = Path(manifest.__file__).parent / "schema" / "bundle.json"
FOLDER = "rocky9-x86_64/base"


@pytest.fixture
def site(tmp_path: Path) -> RpmSite:
    return RpmSite(tmp_path / "site")


def names(path: Path) -> list[str]:
    return sorted(reading.load(str(path)).manifest.targets[0].versions())


# --- bundles -------------------------------------------------------------------------------


def test_a_bundle_has_what_is_asked_for_and_all_it_needs(site: RpmSite, tmp_path: Path) -> None:
    path = site.bundle(tmp_path / "b.tar")
    assert names(path) == ["app", "glibc", "libone", "postman"]
    assert reading.check(reading.load(str(path))) == []


def test_what_every_node_has_stays_out_and_what_one_lacks_goes_in(
    site: RpmSite, tmp_path: Path
) -> None:
    full = installed(RPMS[2], Rpm("mailx", "1-1", provides=("/usr/bin/mail",)))
    bare = installed(RPMS[2])
    assert names(site.bundle(tmp_path / "a.tar", nodes=[full])) == ["app", "libone"]
    assert names(site.bundle(tmp_path / "b.tar", nodes=[full, bare])) == [
        "app",
        "libone",
        "postman",
    ]


@pytest.mark.parametrize("name", ["b.tar", "b"])
def test_the_same_input_gives_the_same_bytes(site: RpmSite, tmp_path: Path, name: str) -> None:
    for word in ("one", "two"):
        (tmp_path / word).mkdir()
    first, second = (site.bundle(tmp_path / word / name) for word in ("one", "two"))
    pairs = [(first, second)]
    if name == "b":
        pairs = [(p, second / p.relative_to(first)) for p in first.rglob("*") if p.is_file()]
        assert len(pairs) == 7
    for mine, other in pairs:
        assert mine.read_bytes() == other.read_bytes()


def test_the_manifest_is_as_its_schema_says(site: RpmSite, tmp_path: Path) -> None:
    bundle = reading.load(str(site.bundle(tmp_path / "b")))
    data = json.loads((tmp_path / "b" / "manifest.json").read_text())
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    assert data["date"] == DATE
    assert data["sources"][0]["signed_by"] == [site.key.fingerprint]
    assert manifest.to_text(bundle.manifest) == (tmp_path / "b" / "manifest.json").read_text()
    (target,) = bundle.manifest.targets
    assert target.rpm


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_other_hashes_than_sha256_are_followed_to_the_end(tmp_path: Path, algorithm: str) -> None:
    site = RpmSite(tmp_path / "site", sums=algorithm)
    path = site.bundle(tmp_path / "b")
    assert f'type="{algorithm}"' in _primary(path)
    assert reading.check(reading.load(str(path))) == []


def _primary(path: Path) -> str:
    return gzip.decompress((path / FOLDER / "repodata/primary.xml.gz").read_bytes()).decode()


def test_elements_are_taken_over_and_lead_to_the_file_beside_the_repodata(
    site: RpmSite, tmp_path: Path
) -> None:
    text = _primary(site.bundle(tmp_path / "b"))
    assert text.count("<package ") == 4
    assert '<location href="libone-1.0-1.x86_64.rpm"/>' in text
    assert '<rpm:entry name="(locale if desktop)"/>' in text


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("app-1.0-1.x86_64.rpm", "flip", "its hash does not match the manifest"),
        ("app-1.0-1.x86_64.rpm", "remove", "missing"),
        ("repodata/primary.xml.gz", "flip", "its hash does not match the manifest"),
        ("repodata/repomd.xml", "flip", "its hash does not match the manifest"),
        ("repodata/filelists.xml.gz", "add", "not in the manifest"),
    ],
)
def test_damage_is_found_and_named(
    site: RpmSite, tmp_path: Path, file: str, damage: str, said: str
) -> None:
    path = site.bundle(tmp_path / "b")
    target = path / FOLDER / file
    data = target.read_bytes() if target.exists() else b"x"
    if damage == "remove":
        target.unlink()
    else:
        target.write_bytes(data[:40] + bytes([data[-1] ^ 1]) + data[41:])
    wrong = reading.check(reading.load(str(path)))
    assert any(said in line and file in line for line in wrong), wrong


@pytest.mark.parametrize("name", ["repodata/../x", "repodata/a/b", "/repodata/x", "repodata/"])
def test_a_manifest_may_not_lead_out_of_its_folder(site: RpmSite, name: str) -> None:
    data = json.loads(site.made().text)
    data["targets"][0]["repositories"][0]["indexes"][0]["name"] = name
    with pytest.raises(UsageError, match="expected Release, Packages"):
        manifest.from_text(json.dumps(data), "x")


# --- repositories --------------------------------------------------------------------------


def test_metadata_of_another_key_changed_or_not_signed_is_refused(
    site: RpmSite, tmp_path: Path
) -> None:
    other = SigningKey.load(tmp_path / "other.pem")
    place = site.place()
    stranger = RpmRepositorySource(
        "x", place.uri, "", (other.public().encode(),), metadata_signed=True
    )
    with pytest.raises(RefusedError, match="which is not a key pinned to it"):
        rpmupstream.read(stranger, "x86_64", {}, site.cache)
    repomd = site.root / "repodata/repomd.xml"
    repomd.write_text(repomd.read_text().replace("<size>", "<size>1"))
    with pytest.raises(RefusedError, match="its signature does not match its content"):
        site.offers()
    (site.root / "repodata/repomd.xml.asc").unlink()
    with pytest.raises(RefusedError, match="not signed, but repo_gpgcheck requires a signature"):
        site.offers()


def test_a_repository_that_nobody_vouches_for_is_refused(site: RpmSite) -> None:
    with pytest.raises(RefusedError, match="site: neither packages nor metadata are signed"):
        site.offers(metadata_signed=False)
    place = RpmRepositorySource("site", site.root.as_uri(), "", (), metadata_signed=True)
    with pytest.raises(RefusedError, match="site: no key is pinned to it"):
        rpmupstream.read(place, "x86_64", {}, site.cache)


def test_packages_and_repodata_that_were_changed_are_refused(site: RpmSite) -> None:
    file = site.root / "app-1.0-1.rpm"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(ConnectionFailed, match="does not match the signed index"):
        site.made()
    primary = site.root / "repodata/primary.xml.gz"
    primary.write_bytes(primary.read_bytes()[:-1] + b"x")
    shutil.rmtree(site.cache)
    site.cache.mkdir()
    with pytest.raises(ConnectionFailed, match="does not match the signed index"):
        site.offers()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "# x\nhttp://a.example/os/\nhttps://b.example/os\n",
            ["https://b.example/os", "http://a.example/os"],
        ),
        (
            '<metalink><url protocol="http">http://a.example/os/repodata/repomd.xml</url>'
            '<url protocol="https">https://c.example/o&amp;s/repodata/repomd.xml</url></metalink>',
            ["https://c.example/o&s", "http://a.example/os"],
        ),
        ("<html>no</html>", []),
    ],
)
def test_lists_of_mirrors_and_metalinks_are_read(text: str, found: list[str]) -> None:
    assert rpmupstream.parse_mirrors(text) == found


def test_a_mirror_that_does_not_answer_is_passed_over(
    site: RpmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = fetch.fetch_text

    def fetch_text(url: str) -> bytes | None:
        asked.append(url)
        if "//down." in url:
            raise ConnectionFailed("down")
        return real(url.replace("https://up.example", site.root.as_uri()))

    monkeypatch.setattr(fetch, "fetch_text", fetch_text)
    (tmp_path / "list").write_text("https://down.example\nhttps://up.example\n")
    listed = (tmp_path / "list").as_uri()
    place = RpmRepositorySource("x", "", listed, site.place().keys, metadata_signed=True)
    with pytest.raises(ConnectionFailed, match=r"https://up\.example/repodata/primary"):
        rpmupstream.read(place, "x86_64", {}, site.cache)  # the name is not a machine's
    assert [one for one in asked if "down" in one] == ["https://down.example/repodata/repomd.xml"]
    (tmp_path / "list").write_text("https://down.example\n")
    with pytest.raises(ConnectionFailed, match="lists 1 mirrors, none of which responds for x"):
        rpmupstream.read(place, "x86_64", {}, site.cache)


def test_excluded_packages_and_those_of_other_machines_are_none(site: RpmSite) -> None:
    site.publish([*RPMS, Rpm("app", "2-1", arch="i686"), Rpm("src", "1-1", arch="src")])
    assert set(site.offers().stanzas) == {one.name for one in RPMS}
    assert "app" not in site.offers(excluded=("ap*",)).stanzas
    assert set(site.offers(included=("lib*",)).stanzas) == {"libone"}


def test_hashes_that_are_too_weak_are_none() -> None:
    assert set(fetch.SUMS.values()) == {"sha256", "sha384", "sha512"}
