"""Bundles are complete, the same bytes for the same input, and whatever is wrong with one is found."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from bundleworld import SOURCE, Site, deb, rpm
from rpmworld import Rpm

from gpustate.bundle import manifest, reading, write
from gpustate.bundle.manifest import BASE
from gpustate.bundle.write import Origin, Selection
from gpustate.errors import UsageError

DRIVER = "driver-repository"
SCHEMA = Path(manifest.__file__).parent / "schema" / "bundle.json"


@pytest.fixture(params=["debian12", "rocky9"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    return Site(tmp_path / "site", request.param)


def test_a_bundle_has_what_was_fetched(site: Site, tmp_path: Path) -> None:
    bundle = reading.load(str(site.bundle(tmp_path / "b.tar")))
    assert sorted(bundle.manifest.targets[0].versions()) == ["app", "libone", "postman"]
    assert reading.check(bundle) == []


def test_packages_are_in_the_part_of_their_repository(tmp_path: Path) -> None:
    cuda = "https://mirror.example/cuda"
    debs = [deb(tmp_path, name) for name in ("app", "libcuda1", "nvidia-smi")]
    debs[1] = replace(debs[1], source=f"{cuda}/debian12/x86_64/.")
    origins = {"toolkit-repository": Origin(cuda, frozenset({"nvidia-smi"})), DRIVER: Origin(cuda)}
    rpms = [rpm(tmp_path, Rpm("app", "1-1")), rpm(tmp_path, Rpm("tool", "1-1"), "gpustate-x")]
    bundle = write.prepare(
        [
            Selection("debian12", "x86_64", (), {}, debs, origins),
            Selection("rocky9", "x86_64", (), {}, rpms, {DRIVER: Origin("gpustate-x")}),
        ]
    )
    parts = [
        {one.name: [entry.name for entry in one.entries] for one in target.repositories}
        for target in bundle.manifest.targets
    ]
    assert parts == [
        {BASE: ["app"], "toolkit-repository": ["libcuda1", "nvidia-smi"]},
        {BASE: ["app"], DRIVER: ["tool"]},
    ]


@pytest.mark.parametrize("name", ["b.tar", "b"])
def test_the_same_input_gives_the_same_bytes(site: Site, tmp_path: Path, name: str) -> None:
    first, second = (site.bundle(tmp_path / word / name) for word in made(tmp_path, "one", "two"))
    if name == "b.tar":
        assert first.read_bytes() == second.read_bytes()
        return
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert len(files) == 6
    assert {file.name for file in files} >= {"manifest.json"}
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
    (repository,) = data["targets"][0]["repositories"]
    sources = {row["source"] for row in repository["packages"]}
    assert sources == {SOURCE if site.distribution == "debian12" else "base"}
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
def test_damage_is_found_and_named(tmp_path: Path, file: str, damage: str, said: str) -> None:
    path = Site(tmp_path / "site").bundle(tmp_path / "b")
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
        '{"format": "gpustate.bundle/3"}',
        '{"format": "gpustate.bundle/3", "format": "gpustate.bundle/3"}',
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


def test_links_in_a_tar_are_not_followed(tmp_path: Path) -> None:
    path = Site(tmp_path / "site").bundle(tmp_path / "b.tar")
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
