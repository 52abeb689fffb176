"""Bundles are complete, signed, the same bytes for the same input, and whatever is wrong with one is found."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import jsonschema
import pytest
from bundleworld import DATE, Site, stanza
from signingkey import SigningKey

from gpustate.bundle import manifest, reading, upstream, write
from gpustate.bundle.closure import Available, Baseline, package_of, resolve
from gpustate.bundle.manifest import BASE
from gpustate.bundle.offers import Build
from gpustate.errors import ConnectionFailed, RefusedError, UsageError
from gpustate.solve import packages
from gpustate.solve.packages import Repository, Universe

DRIVER = "driver-repository"
SCHEMA = Path(manifest.__file__).parent / "schema" / "bundle.json"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def names(path: Path) -> list[str]:
    found = reading.load(str(path)).manifest.targets[0].versions()
    return sorted(found)


def test_a_bundle_has_what_is_asked_for_and_all_it_needs_but_not_what_every_system_has(
    site: Site, tmp_path: Path
) -> None:
    path = site.bundle(tmp_path / "b.tar")
    assert names(path) == ["app", "libone", "postman"]
    assert reading.check(reading.load(str(path))) == []


@pytest.mark.parametrize("name", ["b.tar", "b"])
def test_the_same_input_gives_the_same_bytes(site: Site, tmp_path: Path, name: str) -> None:
    first, second = (site.bundle(tmp_path / word / name) for word in made(tmp_path, "one", "two"))
    if name == "b.tar":
        assert first.read_bytes() == second.read_bytes()
        return
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert len(files) == 6
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes()


def made(folder: Path, *words: str) -> tuple[str, ...]:
    for word in words:
        (folder / word).mkdir()
    return words


def test_the_manifest_is_as_its_schema_says_and_names_where_everything_is_from(
    site: Site, tmp_path: Path
) -> None:
    bundle = reading.load(str(site.bundle(tmp_path / "b")))
    data = json.loads((tmp_path / "b" / "manifest.json").read_text())
    jsonschema.validate(data, json.loads(SCHEMA.read_text()))
    assert data["date"] == DATE
    assert data["sources"] == [
        {
            "origin": "Example",
            "suite": "/",
            "component": "",
            "site": site.root.as_uri(),
            "signed_by": [site.key.fingerprint],
        }
    ]
    assert manifest.to_text(bundle.manifest) == (tmp_path / "b" / "manifest.json").read_text()
    assert "NVIDIA" in data["licence"]


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("debian12-x86_64/base/app_1.0_amd64.deb", "flip", "its hash does not match the manifest"),
        ("debian12-x86_64/base/app_1.0_amd64.deb", "cut", "bytes, the manifest says"),
        ("debian12-x86_64/base/app_1.0_amd64.deb", "remove", "missing"),
        ("debian12-x86_64/base/Packages", "flip", "its hash does not match the manifest"),
        ("debian12-x86_64/base/Release", "flip", "its hash does not match the manifest"),
        ("debian12-x86_64/base/more.deb", "add", "not in the manifest"),
    ],
)
def test_damage_is_found_and_named(
    site: Site, tmp_path: Path, file: str, damage: str, said: str
) -> None:
    path = site.bundle(tmp_path / "b")
    target = path / file
    data = target.read_bytes() if target.exists() else b""
    if damage == "remove":
        target.unlink()
    else:
        spoilt = {
            "flip": data[:40] + bytes([data[40] ^ 1]) + data[41:] if data else b"",
            "cut": data[:100],
            "add": b"x",
        }
        target.write_bytes(spoilt[damage])
    wrong = reading.check(reading.load(str(path)))
    assert any(said in line and file.rpartition("/")[2] in line for line in wrong), wrong


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"format": "gpustate.lock/1"}',
        '{"format": "gpustate.bundle/2"}',
        '{"format": "gpustate.bundle/1", "format": "gpustate.bundle/1"}',
        '{"format": NaN}',
        "[" * 100_000,
    ],
)
def test_what_is_no_manifest_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        manifest.from_text(text, "b.tar: manifest.json")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("b.tar: manifest.json")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "../../etc/passwd", "expected Release, Packages"),
        ("name", "a\nb", "expected Release, Packages"),
        ("sha256", "00", "expected 64 hexadecimal digits"),
        ("size", -1, "expected a number from 0"),
        ("size", 1.5, "expected a whole number"),
        ("size", True, "expected a whole number"),
    ],
)
def test_a_manifest_may_not_lead_out_of_its_folder(
    site: Site, key: str, value: object, said: str
) -> None:
    data = json.loads(site.made().text)
    data["targets"][0]["repositories"][0]["indexes"][0][key] = value
    with pytest.raises(UsageError, match=said):
        manifest.from_text(json.dumps(data), "x")


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"PK\x03\x04", b"x" * 20000])
def test_what_is_no_bundle_is_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is not a bundle"):
        reading.load(str(path))


def test_a_tar_that_was_cut_is_found(site: Site, tmp_path: Path) -> None:
    path = site.bundle(tmp_path / "b.tar")
    path.write_bytes(path.read_bytes()[:40_000])
    with pytest.raises(UsageError):
        assert reading.check(reading.load(str(path))) == []


def test_links_in_a_tar_are_not_followed(site: Site, tmp_path: Path) -> None:
    path = site.bundle(tmp_path / "b.tar")
    with tarfile.open(path, "a:") as tar:
        info = tarfile.TarInfo("debian12-x86_64/base/app_1.0_amd64.deb")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    assert reading.check(reading.load(str(path))) == []


def test_a_folder_of_somebody_else_is_not_replaced(site: Site, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("x")
    with pytest.raises(UsageError, match="is not a bundle"):
        write.write(site.made(), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis").read_text() == "x"


def test_no_room_for_the_bundle_is_one_line(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_tar", full)
    with pytest.raises(UsageError, match=r"No space left on device\); free disk space"):
        write.write(site.made(), tmp_path / "b.tar")
    assert not list(tmp_path.glob("*.tar*"))


# --- repositories --------------------------------------------------------------------------


def test_a_repository_without_a_pinned_key_is_refused(site: Site) -> None:
    place = site.place()
    with pytest.raises(RefusedError, match="no key is pinned to it"):
        upstream.read(upstream.RepositorySource(place.uri, "/", (), ()), "amd64", site.cache)


def test_a_repository_signed_by_another_key_is_refused_with_both_named(
    site: Site, tmp_path: Path
) -> None:
    other = SigningKey.load(tmp_path / "other.pem")
    place = upstream.RepositorySource(site.root.as_uri(), "/", (), (other.public().encode(),))
    with pytest.raises(RefusedError, match="which is not a key pinned to it"):
        upstream.read(place, "amd64", site.cache)
    both = (other.public().encode(), site.key.public().encode())
    pinned = upstream.RepositorySource(site.root.as_uri(), "/", (), both, (other.fingerprint,))
    with pytest.raises(
        RefusedError, match=f"signed by {site.key.fingerprint}, expected {other.fingerprint}"
    ):
        upstream.read(pinned, "amd64", site.cache)


@pytest.mark.parametrize("old", ["Origin: Example", "Packages"])
def test_a_release_that_was_changed_is_refused(site: Site, old: str) -> None:
    file = site.root / "InRelease"
    file.write_text(file.read_text().replace(old, old[::-1]))
    with pytest.raises(RefusedError, match="its signature does not match its content"):
        site.index()


def test_text_around_what_was_signed_counts_for_nothing(site: Site) -> None:
    file = site.root / "InRelease"
    file.write_text("SHA256:\n 00 1 Packages\n" + file.read_text())
    assert "app" in site.index().stanzas


def test_an_index_or_package_that_was_changed_is_refused(site: Site) -> None:
    (site.root / "app.deb").write_bytes(b"x" * (site.root / "app.deb").stat().st_size)
    with pytest.raises(ConnectionFailed, match="does not match the signed index"):
        site.made()
    file = site.root / "Packages"
    file.write_text(file.read_text().replace("libone", "libtwo"))
    shutil.rmtree(site.cache)
    site.cache.mkdir()
    with pytest.raises(ConnectionFailed, match="does not match the signed index"):
        site.index()


def test_a_package_without_a_hash_goes_into_no_bundle(site: Site) -> None:
    site.publish(["Package: app\nVersion: 1.0\nFilename: app.deb\nSize: 3\n"])
    with pytest.raises(RefusedError, match="no SHA256 or size for app"):
        site.made()


def test_a_copy_for_another_architecture_in_a_flat_repository_is_left_out(site: Site) -> None:
    """NVIDIA's folder for x86_64 has libcuda1 for amd64 and for i386."""
    rows = [stanza("app", b"x", Architecture=name) for name in ("amd64", "i386")]
    site.publish([*rows, stanza("tool", b"x", Architecture="all")])
    stanzas = site.index().stanzas
    assert [package_of(row).architecture for row in stanzas["app"]] == ["amd64"]
    assert "tool" in stanzas


# --- what is needed ------------------------------------------------------------------------


def world(*texts: str, driver: str = "") -> Available:
    index, own = upstream.Index(0), upstream.Index(0)
    for text in texts:
        index.add(text, "file:/x", manifest.Source("Example", "/", "", "file:/x"))
    own.add(driver, "file:/d", manifest.Source("Vendor", "/", "", "file:/d"))
    return Available({DRIVER: [own], BASE: [index]}, {DRIVER: frozenset({"libcuda1"})})


def got(found: dict[str, list[Build]]) -> list[str]:
    return sorted(f"{home}:{one.package}" for home, rows in found.items() for one in rows)


def test_pinned_names_come_from_their_repository_only() -> None:
    where = world(
        stanza("libcuda1", b"", Version="9.0"), driver=stanza("libcuda1", b"", Version="1.0")
    )
    found = resolve(where, [("libcuda1", "")], Baseline())
    assert got(found) == ["driver-repository:libcuda1 1.0"]


def test_what_all_nodes_have_stays_out_and_what_one_lacks_goes_in() -> None:
    where = world(stanza("a", b"", "b (>= 1), c"), stanza("b", b""), stanza("c", b""))

    def node(text: str) -> Universe:
        return Universe(tuple(packages.parse(text, Repository("installed"), leaf=True)))

    old = node("Package: b\nVersion: 0.9\n\nPackage: c\nVersion: 1\n")
    new = node("Package: b\nVersion: 1.1\n\nPackage: c\nVersion: 1\n")
    assert got(resolve(where, [("a", "")], Baseline((new,)))) == ["base:a 1.0"]
    assert got(resolve(where, [("a", "")], Baseline((old, new)))) == ["base:a 1.0", "base:b 1.0"]


def test_an_essential_package_goes_in_where_a_version_of_it_is_wanted() -> None:
    where = world(stanza("a", b"", "libc6 (>= 1)"), stanza("libc6", b"", Essential="yes"))
    assert got(resolve(where, [("a", "")], Baseline(essential=True))) == [
        "base:a 1.0",
        "base:libc6 1.0",
    ]


def test_what_nobody_offers_is_refused_with_who_needs_it() -> None:
    where = world(stanza("a", b"", "b (>= 2) | z"), stanza("b", b""))
    with pytest.raises(RefusedError, match=r"^a 1.0 needs b \(>= 2\) \| z, which no repository"):
        resolve(where, [("a", "")], Baseline())
    with pytest.raises(RefusedError, match=r"no repository offers b 7 \(available: 1.0\)"):
        resolve(where, [("b", "7")], Baseline())


def test_packages_that_clash_are_refused_with_both_named() -> None:
    where = world(stanza("a", b"", Conflicts="b"), stanza("b", b""))
    with pytest.raises(
        RefusedError, match=r"b 1.0 \(requested\) and a 1.0 \(requested\) cannot be"
    ):
        resolve(where, [("a", ""), ("b", "")], Baseline())


def test_a_relation_of_at_least_a_version_takes_the_version_of_who_asks() -> None:
    """libcuda1 of NVIDIA's repository asks for a library with ``>=``, and the newest is of another driver."""
    where = world(
        stanza("driver", b"", "library (>= 1.0)"),
        *(stanza("library", b"", Version=version) for version in ("1.0", "2.0")),
    )
    wanted = ["base:driver 1.0", "base:library 1.0"]
    assert got(resolve(where, [("driver", "")], Baseline())) == wanted
