"""The driver's pins with real apt, over a repository of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpustate.core.queries import Answer, Candidates
from gpustate.formats import aptsources, rpm
from gpustate.states.driver import files
from gpustate.states.driver.observed import AptQuery
from gpustate.states.driver.repositories import sort

OLD, NEW = "580.178.04-1", "595.91.07-1"
#: Package, with the source that it is built from where that has another name.
SOURCES = {
    "libcuda1": "nvidia-graphics-drivers",
    "libnvidia-nvvm704": "nvidia-graphics-drivers",
    "nvidia-persistenced": "",
    "nvidia-fabricmanager": "fabric-manager",
    "libnvidia-nscq": "",
    "cuda-drivers": "",
    "nvidia-driver-of-next-year": "nvidia-graphics-drivers",
    "nvidia-driver-cuda": "nvidia-graphics-drivers",
    "nvidia-kernel-open-dkms": "nvidia-graphics-drivers",
}
OTHERS = {"nvidia-container-toolkit": ("1.19.0-1", "1.20.0-1"), "dkms": ("3.0.10-8", "3.0.11-1")}


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """Configuration of an apt that has its folders below ``tmp_path`` and knows amd64 and i386."""
    if shutil.which("apt-cache") is None:
        pytest.skip("apt is not installed")
    rows = [
        (name, version, arch, source)
        for name, source in SOURCES.items()
        for version in (OLD, NEW)
        for arch in ("amd64", "i386")
    ]
    rows += [(name, version, "amd64", "") for name, some in OTHERS.items() for version in some]
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "Packages").write_text(
        "\n".join(
            f"Package: {name}\nVersion: {version}\nArchitecture: {arch}\nMulti-Arch: same\n"
            + (f"Source: {source}\n" if source else "")
            + f"Filename: ./{name}_{version}_{arch}.deb\nSize: 1\nSHA256: {'0' * 64}\n"
            for name, version, arch, source in rows
        )
    )
    for name in (
        "etc/preferences.d",
        "etc/sources.list.d",
        "state/lists/partial",
        "cache/archives/partial",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "status").write_text("")
    (tmp_path / "etc/sources.list").write_text(f"deb [trusted=yes] file:{folder} ./\n")
    configuration = tmp_path / "apt.conf"
    configuration.write_text(
        f'Dir::Etc "{tmp_path}/etc"; Dir::State "{tmp_path}/state"; Dir::Cache "{tmp_path}/cache";\n'
        f'Dir::State::status "{tmp_path}/status"; APT::Sandbox::User "root";\n'
        'APT::Architecture "amd64"; APT::Architectures { "amd64"; "i386"; };\n'
    )
    run(configuration, "apt-get", "update")
    return configuration


def run(configuration: Path, *words: str) -> str:
    done = subprocess.run(
        words,
        env={"APT_CONFIG": str(configuration), "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def priorities(configuration: Path) -> Mapping[str, dict[str, int]]:
    names = [f"{name}{arch}" for name in SOURCES for arch in ("", ":i386")]
    text = run(configuration, "apt-cache", "policy", *names, *OTHERS)
    found = aptsources.parse_policy(text)
    return {name: {one.version: one.priority for one in offers} for name, offers in found.items()}


def test_pins_reach_every_package_of_the_drivers_sources_and_no_other(apt: Path) -> None:
    (apt.parent / "etc/preferences.d/gpustate-driver").write_text(files.pin_text("580.178.04"))
    found = priorities(apt)
    assert set(found) == {f"{n}{a}" for n in SOURCES for a in ("", ":i386")} | set(OTHERS)
    for name, versions in found.items():
        own = files.PIN_PRIORITY if name.partition(":")[0] in SOURCES else 500
        assert next(iter(reversed(versions.values()))) == own, name
        assert next(iter(versions.values())) == 500, name


def test_empty_packages_of_an_ended_branch_are_pinned_away_by_their_source(apt: Path) -> None:
    text = files.pin_text("580.178.04", {"-550-server": NEW})
    assert "Package: src:nvidia-graphics-drivers-550-server:any\n" in text
    (apt.parent / "etc/preferences.d/gpustate-driver").write_text(
        text.replace("drivers-550-server", "drivers")
    )
    for name, versions in priorities(apt).items():
        away = SOURCES.get(name.partition(":")[0]) == "nvidia-graphics-drivers"
        assert versions.get(NEW, -1) == (-1 if away or name in OTHERS else 500)


@pytest.mark.parametrize(
    ("files_of_pins", "allowed", "pinned_away"),
    [
        ({}, {OLD, NEW}, None),
        ({"site": (NEW, -1)}, {OLD}, "site"),
        ({"site.pref": (OLD, 1001)}, {OLD}, "site.pref"),
        # apt prefers the newest version of both.
        ({"site": (OLD, 600)}, {OLD, NEW}, None),
        # apt does not read it.
        ({"site.bak": (NEW, -1)}, {OLD, NEW}, None),
        # The first file decides.
        ({"00first": (NEW, 500), "site": (NEW, -1)}, {OLD, NEW}, None),
    ],
)
def test_a_version_is_kept_away_by_the_file_that_apt_heeds(
    apt: Path,
    files_of_pins: Mapping[str, tuple[str, int]],
    allowed: set[str],
    pinned_away: str | None,
) -> None:
    preferences = apt.parent / "etc/preferences.d"
    for name, (version, priority) in files_of_pins.items():
        pin = f"Package: src:nvidia-graphics-drivers\nPin: version {version}\nPin-Priority: {priority}\n"
        (preferences / name).write_text(pin)
    query = Candidates(("libcuda1", "dkms"))
    setting = f"pm=apt\nAPT_KEY=1\nG={apt.parent}/g SYS=/sys\n"
    script = query.script().replace(rpm.FAMILY, setting)
    done = run(apt, "sh", "-c", script.replace("/etc/apt/preferences.d", str(preferences)))
    candidates = query.parse(Answer(0, done.encode()))
    path = str(preferences / pinned_away) if pinned_away else ""
    forbidden = {one.version: one.forbidden_by for one in candidates["libcuda1"]}
    assert forbidden == {version: "" if version in allowed else path for version in (OLD, NEW)}
    assert {one.forbidden_by for one in candidates["dkms"]} == {""}
    script = AptQuery(tuple((os_id, (*SOURCES,)) for os_id in ("debian", "ubuntu"))).script()
    script = script.replace("/etc/apt/preferences.d", str(preferences))
    done = run(apt, "sh", "-c", f"{setting}{script}")
    offers = sort("debian", AptQuery(()).parse(Answer(0, done.encode())))
    assert {*offers.allowed["libcuda1"]} == allowed
    assert {*offers.pinned_away.values()} == ({path} if path else set())
    assert offers.elsewhere == {}
