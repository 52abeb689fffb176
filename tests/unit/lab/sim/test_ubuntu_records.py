"""The simulated archive of Ubuntu against what public records say of the real one (tests/data/ubuntu/archive.yaml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from gpustate.formats import driverschemes, driverset
from gpustate_lab.sim import ubuntu_archive, ubuntu_packages
from gpustate_lab.sim.deb import Package
from gpustate_lab.sim.native import Builder
from gpustate_lab.sim.ubuntu_packages import Driver, UbuntuSet
from tests.unit.lab.sim.conftest import NoCompiler

RECORDS: dict[str, Any] = yaml.load(
    (Path(__file__).parents[3] / "data/ubuntu/archive.yaml").read_text(), yaml.CSafeLoader
)
RELEASES = {release.codename: release for release in ubuntu_packages.RELEASES.values()}
#: Packages that the lab has not.
MISSING = {
    "xserver-xorg-video-nvidia{s}",
    "ocl-icd-libopencl1",
    "libnvidia-egl-wayland1",
    "adduser",
}
#: Names that only one package may have, and no other package of the lab provides.
FOREIGN = {"libnvidia-egl-gbm1"}
#: What dependencies of real packages come from when they are built.
LIBRARIES = {"libc6", "passwd"}
KERNEL = "5.15.0-56-generic"


def one_set(version: str, branch: str, release: str = "noble") -> UbuntuSet:
    upstream, _, revision = version.partition("-")
    driver = Driver(upstream, 13000, branch.endswith("-server"), revision.rpartition(".")[2])
    return ubuntu_packages.archive_set(RELEASES[release], driver, cast(Builder, NoCompiler()))


def simulated(version: str, branch: str, release: str) -> dict[str, Package]:
    """Packages of a driver by name, with branch and version left open."""
    found = one_set(version, branch, release)
    return {opened(package.name, found): package for package in found.packages()}


def opened(text: str, found: UbuntuSet) -> str:
    return (
        text.replace(found.package_version, "{full}")
        .replace(found.version, "{v}")
        .replace(found.suffix, "{s}")
    )


def name_of(relation: str) -> str:
    return relation.split(" ")[0]


@pytest.mark.parametrize(
    "row", RECORDS["sources"], ids=lambda row: f"{row['branch']} {row['release']}"
)
def test_a_driver_has_the_names_and_relations_of_the_real_one(row: dict[str, Any]) -> None:
    recorded: dict[str, dict[str, list[str]]] = RECORDS["relations"][row["family"]]
    packages = simulated(row["version"], row["branch"], row["release"])
    found = one_set(row["version"], row["branch"], row["release"])
    assert set(packages) == set(recorded) - MISSING
    for name, package in packages.items():
        for field in ("depends", "provides", "conflicts"):
            wanted = {one for one in recorded[name].get(field, ()) if name_of(one) not in MISSING}
            have = (
                package.depends if field == "depends" else package.relations.get(field.title(), ())
            )
            mine = {opened(one, found) for one in have}
            mine -= LIBRARIES | ({name_of(one) for one in row.get("differs", ())} & MISSING)
            assert mine == wanted, (name, field)


def test_differences_between_branches_are_about_packages_that_the_lab_has_not() -> None:
    said = {line.split(" ")[-1] for row in RECORDS["sources"] for line in row.get("differs", ())}
    assert said <= MISSING | FOREIGN


@pytest.mark.parametrize(
    "row", RECORDS["ended"], ids=lambda row: f"{row['branch']} {row['release']}"
)
def test_an_ended_branch_has_empty_packages_that_install_the_next_one(row: dict[str, Any]) -> None:
    upload = row["version"].rpartition(".")[2]
    last = one_set(row["version"], row["branch"], row["release"])
    empty = ubuntu_packages.transitional(last, upload, row["successor"])
    named = {opened(package.name, last) for package in empty}
    assert named == {n for n in RECORDS["relations"][535] if "firmware" not in n} - MISSING
    for package in empty:
        assert package.files == {}
        assert package.depends == (
            package.name.replace(
                last.suffix, last.suffix.replace(last.branch, str(row["successor"]))
            ),
        )
    (tools,) = (package for package in empty if package.name.startswith("nvidia-utils-"))
    told = driverset.parse_relations(f"{tools.name}|{row['version']}||{tools.depends[0]}\n")
    assert told.successor(tools.name, row["version"]) == row["successor"]


def test_every_branch_that_is_asked_for_is_recorded() -> None:
    for release in ("jammy", "noble"):
        found = {row["branch"] for row in RECORDS["sources"] if row["release"] == release}
        assert {f"{b}{k}" for b in (535, 550, 570, 580, 590) for k in ("", "-server")} <= found


def test_every_driver_of_the_archive_is_in_a_record() -> None:
    recorded = {version.rpartition("-")[2] for version in RECORDS["firmware"]}
    recorded |= {page["version"].partition("-")[0] for page in RECORDS["pages"]}
    recorded |= {row["version"].partition("-")[0] for row in RECORDS["sources"]}
    drivers = {one.version for some in ubuntu_archive.DRIVERS.values() for one in some}
    assert drivers <= recorded
    branches = {row["branch"]: row["version"] for row in RECORDS["ended"]}
    for some in ubuntu_archive.ENDED.values():
        for driver, upload, successor in some:
            row = branches[f"{driver.version[:3]}-server"]
            assert (row.partition("-")[0], row.rpartition(".")[2]) == (driver.version, upload)
            assert successor in {
                one["successor"] for one in RECORDS["ended"] if one["version"] == row
            }


def report(package: str) -> dict[str, Any]:
    (found,) = (row for row in RECORDS["reports"] if row["package"] == package)
    return cast("dict[str, Any]", found)


def test_signed_modules_depend_on_what_the_real_ones_do() -> None:
    row = report(f"linux-modules-nvidia-515-server-{KERNEL}")
    found = one_set("515.86.01-0ubuntu0.22.04.1", "515-server", "jammy")
    *_, modules = found._prebuilt_of("", KERNEL, {})
    mine = [one.replace(modules.version, row["version"]) for one in modules.depends]
    assert modules.name == row["package"]
    assert sorted(mine) == sorted(row["depends"])


@pytest.mark.parametrize(
    ("machine", "branch", "upload"),
    [
        ("noble-550-server-container", "550-server", "+1"),
        ("noble-570-server-open-signed", "570-server", ""),
        ("public-11", "580", ""),
        ("public-13", "580", "+1000"),
        ("public-28", "550", "+1"),
        ("public-29", "580", "+1"),
    ],
)
def test_signed_modules_of_one_kernel_are_the_packages_that_a_machine_has(
    machine: str, branch: str, upload: str
) -> None:
    path = Path(__file__).parents[3] / f"data/driver-sets/deb/{machine}.txt"
    rows = [line.split()[1:3] for line in path.read_text().splitlines() if " linux-" in line]
    named = r"linux-(modules|objects|signatures)-nvidia-(.*-)?(\d+\.\d+\.\d+-\d+-[a-z]+)"
    installed = {name: version for name, version in rows if re.fullmatch(named, name)}
    (kernel,) = {match[3] for name in installed if (match := re.fullmatch(named, name))}
    driver = Driver(f"{branch[:3]}.1", 13000, branch.endswith("-server"), modules=upload)
    found = ubuntu_packages.archive_set(RELEASES["noble"], driver, cast(Builder, NoCompiler()))
    kind = "-open" if any("-open-" in name for name in installed) else ""
    *parts, modules = found._prebuilt_of(kind, kernel, {})
    signatures = {need.split()[0] for need in modules.depends if "signatures" in need}
    assert {*(part.name for part in parts), modules.name, *signatures} == set(installed)
    assert {
        version.endswith(upload) and ("+" in version) == bool(upload)
        for version in installed.values()
    } == {True}


def test_signed_modules_for_kernels_of_clouds_have_the_kernels_name() -> None:
    row = report("linux-modules-nvidia-570-server-open-6.8.0-1053-gcp")
    archive = driverschemes.of("ubuntu")[0]
    assert archive.built_for(row["kernel"], "570.211.01", "open") == (row["package"],)
    follows = report("linux-modules-nvidia-580-server-open-aws")
    assert driverset.any_version_fits(follows["package"])
    assert driverset.is_member(follows["package"], "6.8.0-1044.46")


def test_packages_that_follow_a_kernel_stand_in_for_dkms() -> None:
    row = report("linux-modules-nvidia-595-generic-hwe-22.04")
    found = one_set("595.84-0ubuntu0.22.04.1", "595", "jammy")
    proprietary, free = found.meta_modules(KERNEL, "generic-hwe-22.04")
    assert proprietary.name == row["package"]
    assert list(proprietary.relations["Provides"]) == row["provides"]
    folder = report("linux-modules-nvidia-595-open-generic")["folder"]
    (modules,) = found._prebuilt_of("-open", KERNEL, {"nvidia": Path("x")})
    assert free.depends[0].startswith(modules.name)
    assert list(modules.files) == [f"usr/lib/modules/{KERNEL}/{folder}/nvidia.ko"]


def pages(what: str) -> list[dict[str, Any]]:
    return [page for page in RECORDS["pages"] if page["what"] == what and "depends" in page]


def drawn(page: dict[str, Any]) -> tuple[str, str]:
    """The package of a page, and branch and flavour in its name."""
    name: str = page["page"].rpartition("/")[2]
    match = re.search(r"-(\d{3}(-server)?)", name)
    assert match is not None
    return name, match[1]


@pytest.mark.parametrize(
    "page", [*pages("part"), *pages("component")], ids=lambda page: page["page"]
)
def test_a_part_of_a_driver_depends_on_what_its_page_in_the_archive_says(
    page: dict[str, Any],
) -> None:
    name, branch = drawn(page)
    branch = branch if branch.endswith("-server") else f"{branch}-server"
    found = one_set(f"{page['version'].partition('-')[0]}-0ubuntu0.24.04.1", branch)
    every = [*found.packages(), *ubuntu_packages.archive_components(found)]
    (mine,) = (package for package in every if package.name == name)
    assert {*mine.depends} >= {*page["depends"]}


@pytest.mark.parametrize("page", pages("ended"), ids=lambda page: page["page"])
def test_an_ended_branch_is_seen_wherever_its_packages_come_from(page: dict[str, Any]) -> None:
    name, _ = drawn(page)
    (successor,) = page["depends"]
    assert re.sub(r"\d{3}(?=-server|$)", "", name) == re.sub(r"\d{3}(?=-server|$)", "", successor)


@pytest.mark.parametrize(
    "page", [*pages("modules"), *pages("follows")], ids=lambda page: page["page"]
)
def test_signed_modules_depend_on_what_their_page_in_the_archive_says(page: dict[str, Any]) -> None:
    name, branch = drawn(page)
    kernel = re.search(r"\d+\.\d+\.\d+-\d+-generic", page["depends"][0])
    driver = re.search(r"nvidia-kernel-common-\S+ \(>= ([0-9.]+)\)", " ".join(page["depends"]))
    assert kernel is not None
    upstream = driver[1] if driver else "575.64.03"
    found = one_set(f"{upstream}-0ubuntu0.24.04.1", branch)
    kind = "-open" if "-open-" in name else ""
    if page["what"] == "modules":
        packages = found._prebuilt_of(kind, kernel[0], {})
    else:
        packages = found.meta_modules(kernel[0], name.rpartition(f"{branch}{kind}-")[2])
    (mine,) = (package for package in packages if package.name == name)
    needs = {one.replace(mine.version, page["version"]) for one in mine.depends}
    assert needs >= {*page["depends"]}


def test_components_are_those_of_the_archive() -> None:
    for page in RECORDS["pages"]:
        wanted = "multiverse" if "fabricmanager" in page["page"] else "restricted"
        assert page["component"] == wanted, page


def test_nvidias_own_packages_have_their_revisions() -> None:
    packages = {
        package.name: package.version
        for package in ubuntu_packages.vendor_packages(cast(Builder, NoCompiler()))
    }
    recorded = {row["package"]: row["version"] for row in RECORDS["reports"] if "version" in row}
    mine = packages["nvidia-fabricmanager-570"], packages["nvidia-firmware-570-570.211.01"]
    theirs = recorded["nvidia-fabricmanager-550"], recorded["nvidia-firmware-550-550.54.15"]
    assert [one.partition("-")[2] for one in mine] == [one.partition("-")[2] for one in theirs]
