"""Bundles of rpm packages: complete, signed, the same bytes for the same input, and read by dnf itself."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import jsonschema
import pytest
from bundleworld import DATE, RPMS, RpmSite
from rpmworld import Rpm, build, index, needs

from gpustate.bundle import fetch, manifest, reading, rpmclosure, rpmupstream, write
from gpustate.bundle.closure import World
from gpustate.bundle.manifest import BASE, DRIVER
from gpustate.bundle.rpmclosure import Installed
from gpustate.bundle.rpmupstream import RpmPlace
from gpustate.bundle.signing import SigningKey
from gpustate.bundle.upstream import Place
from gpustate.errors import ConnectionFailed, RefusedError, UsageError
from gpustate.run.rpmbundled import QUERY, parse_installed

SCHEMA = Path(manifest.__file__).parent / "schema" / "bundle.json"
FOLDER = "rocky9-x86_64/base"


@pytest.fixture
def site(tmp_path: Path) -> RpmSite:
    return RpmSite(tmp_path / "site")


def names(path: Path) -> list[str]:
    return sorted(reading.load(str(path)).manifest.targets[0].versions())


def installed(*packages: Rpm) -> Installed:
    """A node that has some packages, as rpm tells of it."""
    lines: list[str] = []
    for one in packages:
        epoch, version, release = one.evr
        lines.append(f"={one.name}|{epoch}:{version}-{release}|{one.arch}")
        lines.append(f"+{one.name}|{one.version}")
        lines += [p if p.startswith("/") else f"+{p}|" for p in one.provides]
        for need in one.requires:
            words = need.split() if not need.startswith("(") else [need]
            lines.append(f"-{words[0]}|{'|'.join(words[1:] or ['', ''])}")
    return parse_installed("\n".join(lines), "node")


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
        assert len(pairs) == 9
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
        ("app-1.0-1.x86_64.rpm", "flip", "its content is not what the manifest says"),
        ("app-1.0-1.x86_64.rpm", "remove", "is not there"),
        ("repodata/primary.xml.gz", "flip", "its content is not what the manifest says"),
        ("repodata/repomd.xml", "flip", "its content is not what the manifest says"),
        ("repodata/repomd.xml.asc", "flip", "its content is not what the manifest says"),
        ("repodata/filelists.xml.gz", "add", "is not in the manifest"),
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


def test_repodata_that_somebody_signed_anew_or_packed_anew_is_found(
    site: RpmSite, tmp_path: Path
) -> None:
    """Whoever changes package, repodata and manifest alike still has not got the key."""
    path = site.bundle(tmp_path / "b")
    forged = RpmSite(tmp_path / "other").bundle(tmp_path / "forged")
    for name, said in (
        ("repodata/repomd.xml.asc", "not the key pinned to it"),
        ("repodata/primary.xml.gz", "is not the index that is signed"),
    ):
        shutil.rmtree(path)
        site.bundle(path)
        target = path / FOLDER / name
        if name.endswith(".asc"):
            shutil.copy(forged / FOLDER / name, target)
        else:
            target.write_bytes(gzip.compress(b"<metadata/>"))
        text = json.loads((path / "manifest.json").read_text())
        row = next(r for r in text["targets"][0]["repositories"][0]["indexes"] if r["name"] == name)
        row["sha256"] = _sha256(target)
        row["size"] = target.stat().st_size
        (path / "manifest.json").write_text(json.dumps(text))
        (wrong,) = reading.check(reading.load(str(path)))
        assert said in wrong


def _sha256(path: Path) -> str:
    done = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


@pytest.mark.parametrize("name", ["repodata/../x", "repodata/a/b", "/repodata/x", "repodata/"])
def test_a_manifest_may_not_lead_out_of_its_folder(site: RpmSite, name: str) -> None:
    data = json.loads(site.made().text)
    data["targets"][0]["repositories"][0]["indexes"][0]["name"] = name
    with pytest.raises(UsageError, match="wanted a plain word"):
        manifest.from_text(json.dumps(data), "x")


# --- repositories --------------------------------------------------------------------------


def test_metadata_of_another_key_changed_or_not_signed_is_refused(
    site: RpmSite, tmp_path: Path
) -> None:
    other = SigningKey.load(tmp_path / "other.pem")
    place = site.place()
    stranger = RpmPlace("x", place.uri, "", (other.public().encode(),), metadata_signed=True)
    with pytest.raises(RefusedError, match="which is not the key pinned to it"):
        rpmupstream.read(stranger, "x86_64", {}, site.cache)
    repomd = site.root / "repodata/repomd.xml"
    repomd.write_text(repomd.read_text().replace("<size>", "<size>1"))
    with pytest.raises(RefusedError, match="its signature does not fit its content"):
        site.offers()
    (site.root / "repodata/repomd.xml.asc").unlink()
    with pytest.raises(RefusedError, match="is not signed, and repo_gpgcheck wants that it is"):
        site.offers()


def test_a_repository_that_nobody_vouches_for_is_refused(site: RpmSite) -> None:
    with pytest.raises(RefusedError, match="site: nothing of it is signed"):
        site.offers(metadata_signed=False)
    place = RpmPlace("site", site.root.as_uri(), "", (), metadata_signed=True)
    with pytest.raises(RefusedError, match="site: no key is pinned to it"):
        rpmupstream.read(place, "x86_64", {}, site.cache)


def test_packages_and_repodata_that_were_changed_are_refused(site: RpmSite) -> None:
    file = site.root / "app-1.0-1.rpm"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(ConnectionFailed, match="not what the signed index says"):
        site.made()
    primary = site.root / "repodata/primary.xml.gz"
    primary.write_bytes(primary.read_bytes()[:-1] + b"x")
    shutil.rmtree(site.cache)
    site.cache.mkdir()
    with pytest.raises(ConnectionFailed, match="not what the signed index says"):
        site.offers()


def test_mirrors_and_metalinks_lead_to_the_repository(site: RpmSite, tmp_path: Path) -> None:
    found: list[str] = []
    (tmp_path / "list").write_text("# x\nhttp://a.example/os/\nhttps://b.example/os\n")
    (tmp_path / "meta").write_text(
        '<metalink><url protocol="http">http://a.example/os/repodata/repomd.xml</url>'
        '<url protocol="https">https://c.example/o&amp;s/repodata/repomd.xml</url></metalink>'
    )
    for name in ("list", "meta"):
        place = site.place()
        asked = RpmPlace("x", "", (tmp_path / name).as_uri(), place.keys, metadata_signed=True)
        found.append(rpmupstream._mirror(asked, lambda _: None))
    assert found == ["https://b.example/os", "https://c.example/o&s"]


def test_excluded_packages_and_those_of_other_machines_are_none(site: RpmSite) -> None:
    site.publish([*RPMS, Rpm("app", "2-1", arch="i686"), Rpm("src", "1-1", arch="src")])
    assert set(site.offers().stanzas) == {one.name for one in RPMS}
    assert "app" not in site.offers(excluded=("ap*",)).stanzas
    assert set(site.offers(included=("lib*",)).stanzas) == {"libone"}


# --- what is needed ------------------------------------------------------------------------


def closed(site: RpmSite, *roots: str, nodes: Iterable[Installed] = ()) -> list[str]:
    wanted = [(name, version) for name, _, version in (root.partition("=") for root in roots)]
    world = World({BASE: [site.offers()]})
    found = rpmclosure.close(world, wanted, tuple(nodes))
    return sorted(str(one.package) for rows in found.values() for one in rows)


def site_of(tmp_path: Path, *packages: Rpm) -> RpmSite:
    return RpmSite(tmp_path / f"site{len(list(tmp_path.iterdir()))}", packages)


def test_what_hangs_on_a_condition_comes_where_the_condition_holds(tmp_path: Path) -> None:
    a = Rpm("a", "1-1", ("(b if c)", "(d if c else e)", "(f unless c)"))
    site = site_of(tmp_path, a, *(Rpm(name, "1-1") for name in "bcdef"))
    assert closed(site, "a") == ["a 1-1", "e 1-1", "f 1-1"]
    assert closed(site, "a", nodes=[installed(Rpm("c", "0-1"))]) == ["a 1-1", "b 1-1", "d 1-1"]
    # The condition comes to hold while packages are added.
    late = site_of(
        tmp_path, Rpm("a", "1-1", ("(b if c)", "x")), Rpm("x", "1-1", ("c",)), *site_rows("bc")
    )
    assert closed(late, "a") == ["a 1-1", "b 1-1", "c 1-1", "x 1-1"]


def site_rows(words: str) -> list[Rpm]:
    return [Rpm(name, "1-1") for name in words]


def test_with_and_without_are_about_one_package(tmp_path: Path) -> None:
    two = (
        Rpm("new", "1-1", provides=("tool = 3", "fast")),
        Rpm("old", "1-1", provides=("tool = 1", "fast")),
        Rpm("slow", "1-1", provides=("tool = 2",)),
    )
    a = Rpm("a", "1-1", ("(tool >= 1 with tool < 2)",))
    assert closed(site_of(tmp_path, a, *two), "a") == ["a 1-1", "old 1-1"]
    b = Rpm("b", "1-1", ("(tool without fast)",))
    assert closed(site_of(tmp_path, b, *two), "b") == ["b 1-1", "slow 1-1"]
    c = Rpm("c", "1-1", ("(nothing or (new and slow))",))
    assert closed(site_of(tmp_path, c, *two), "c") == ["c 1-1", "new 1-1", "slow 1-1"]


def test_a_dependency_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    site = site_of(tmp_path, Rpm("a", "1-1", ("(b and or c)",)))
    with pytest.raises(RefusedError, match=r"a 1-1 needs \(b and or c\), which cannot be read"):
        closed(site, "a")


def test_what_needs_the_old_version_of_a_replaced_package_goes_along(tmp_path: Path) -> None:
    node = installed(
        Rpm("glibc", "2.34-1"),
        Rpm("glibc-langpack-en", "2.34-1", ("glibc = 2.34-1",)),
        Rpm("bystander", "1-1", ("glibc",)),
    )
    packages = (
        Rpm("app", "1-1", ("glibc >= 2.35",)),
        Rpm("glibc", "2.35-1"),
        Rpm("glibc-langpack-en", "2.35-1", ("glibc = 2.35-1",)),
        Rpm("bystander", "2-1"),
    )
    found = closed(site_of(tmp_path, *packages), "app", nodes=[node])
    assert found == ["app 1-1", "glibc 2.35-1", "glibc-langpack-en 2.35-1"]
    with pytest.raises(
        RefusedError,
        match=r"glibc-langpack-en 2.34-1 is installed and needs glibc = 2.34-1, which would be",
    ):
        closed(site_of(tmp_path, *packages[:2]), "app", nodes=[node])


def test_headers_of_several_kernels_stand_side_by_side(tmp_path: Path) -> None:
    rows = [
        row
        for v in ("5.14-1", "5.14-2")
        for row in (
            Rpm("kernel-devel", v),
            Rpm("kernel-devel-matched", v, (f"kernel-devel = {v}", f"kernel-core = {v}")),
        )
    ]
    nodes = [installed(Rpm("kernel-core", v)) for v in ("5.14-1", "5.14-2")]
    roots = [f"{row.name}={row.version}" for row in rows]
    found = closed(site_of(tmp_path, *rows), *roots, nodes=nodes)
    assert found == sorted(f"{row.name} {row.version}" for row in rows)


def test_packages_that_nodes_have_in_another_version_are_preferred(tmp_path: Path) -> None:
    tools = ("coreutils", "coreutils-single")
    packages = [Rpm(name, "9-1", provides=("ls = 9",)) for name in tools]
    packages.append(Rpm("a", "1-1", ("ls >= 9",)))
    node = installed(Rpm("coreutils-single", "8-1", provides=("ls = 8",)))
    assert closed(site_of(tmp_path, *packages), "a", nodes=[node])[1] == "coreutils-single 9-1"


@pytest.mark.parametrize(
    ("packages", "roots", "said"),
    [
        ([Rpm("a", "1-1", ("b >= 2",)), Rpm("b", "1-1")], ["a"], "^a 1-1 needs b >= 2, which no"),
        ([Rpm("b", "1-1")], ["b=7-1"], r"no repository offers b 7-1 \(there are 1-1\)"),
        (
            [Rpm("a", "1-1", ("/usr/share/x",))],
            ["a"],
            r"needs /usr/share/x, which .* \(repodata has the files of some folders only\)",
        ),
        (
            [Rpm("a", "1-1", conflicts=("b",)), Rpm("b", "1-1")],
            ["a", "b"],
            r"b 1-1 \(asked for\) and a 1-1 \(asked for\) cannot be installed together",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_who_needs_it(
    tmp_path: Path, packages: list[Rpm], roots: list[str], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        closed(site_of(tmp_path, *packages), *roots)


def test_pinned_names_come_from_their_repository_only(tmp_path: Path) -> None:
    base, vendor = site_of(tmp_path, Rpm("dkms", "9-1")), site_of(tmp_path, Rpm("dkms", "3-1"))
    offers = {DRIVER: [vendor.offers()], BASE: [base.offers()]}
    world = World(offers, {DRIVER: frozenset({"dkms"})})
    found = rpmclosure.close(world, [("dkms", "")], ())
    assert [(home, str(one.package)) for home, (one,) in found.items()] == [(DRIVER, "dkms 3-1")]


# --- the real programs ---------------------------------------------------------------------


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


def real_place(real: Path, key: bytes | None = None) -> RpmPlace:
    keys = (key or (real.parent / "key.asc").read_bytes(),)
    return RpmPlace("real", real.as_uri(), "", keys, packages_signed=True)


def real_bundle(real: Path, tmp_path: Path, place: RpmPlace | None = None) -> Path:
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    offers = rpmupstream.read(place or real_place(real), "x86_64", {}, cache)
    builds = rpmclosure.close(World({BASE: [offers]}), [("app", "")], ())
    chosen = write.Chosen("rocky9", "x86_64", (), {}, builds, offers.date)
    made = write.make([chosen], SigningKey.load(tmp_path / "key.pem"), cache)
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
    with pytest.raises(RefusedError, match=r"real/.*rpm: it is signed by .*|not the key pinned"):
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
    said = "payload is not what its signed header says" if damage == "payload" else "not fit its"
    with pytest.raises(RefusedError, match=said):
        real_bundle(world, tmp_path)


def test_what_is_no_package_is_refused_in_one_line(real: Path, tmp_path: Path) -> None:
    from gpustate.bundle import rpmfile

    whole = next(real.glob("tool-*.rpm")).read_bytes()
    place = place_of(real)
    for data in (b"", b"x" * 500, whole[:96], whole[:200], whole[:96] + b"\x8e\xad\xe8\x01" * 9):
        (tmp_path / "x.rpm").write_bytes(data)
        with pytest.raises(RefusedError, match=r"x\.rpm is no rpm package"):
            rpmfile.check(tmp_path / "x.rpm", "x.rpm", place)


def place_of(real: Path) -> Place:
    key = (real.parent / "key.asc").read_bytes()
    return Place(real.as_uri(), "/", (), (key,))


def test_dnf_itself_installs_from_a_bundle_and_from_nothing_else(
    real: Path, tmp_path: Path
) -> None:
    from gpustate.ops.upload import BUNDLE_FOLDER, ONLY_BUNDLE
    from gpustate.text.rpmrepos import render_repo

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
        key_path=f"{path}/key.asc",
        packages_signed=False,
        metadata_signed=True,
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

    repomd = path / FOLDER / "repodata/repomd.xml"
    repomd.write_text(repomd.read_text().replace("<revision>", "<revision>1"))
    shutil.rmtree(tmp_path / "c")
    assert "Bad GPG signature" in dnf("-y --repo=gpustate-bundle-base makecache")


def test_rpm_says_what_is_installed_in_the_words_that_are_read(real: Path) -> None:
    files = [str(path) for path in real.glob("*.rpm")]
    done = subprocess.run(
        ["rpm", "-qp", "--nosignature", "--qf", QUERY, *files],
        capture_output=True,
        text=True,
        check=True,
    )
    node = parse_installed(done.stdout, "node")
    assert [p.name for p in node.packages.packages].count("tool") == 1
    needs = {name: [str(need) for need in rows] for (name, _), rows in node.needs.items()}
    assert "(extra if bash)" in needs["app"]
    assert "tool >= 2" in needs["app"]
    assert not any("rpmlib" in row for rows in needs.values() for row in rows)
    tool = next(p for p in node.packages.packages if p.name == "tool")
    assert ("/usr/bin/tool", "") in tool.provides


def test_hashes_that_are_too_weak_are_none() -> None:
    assert set(fetch.SUMS.values()) == {"sha256", "sha384", "sha512"}
