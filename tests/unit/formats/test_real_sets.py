"""Package lists of real machines are read as what they are, and move as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate.formats import dpkg, driverset
from gpustate.formats.driverset import OPEN, PROPRIETARY

_SETS = Path(__file__).parents[2] / "data/driver-sets/deb"
VENDOR_DEBIAN, DEBIAN = "NVIDIA's repository for Debian", "Debian's archive"
VENDOR, VENDOR_580 = "NVIDIA's repository for Ubuntu", "NVIDIA's repository for Ubuntu, up to 580"
UBUNTU, SERVERS = "Ubuntu's archive, for desktops", "Ubuntu's archive"
#: Scheme, version and module type by the number of the set.
VERDICTS = {
    1: (VENDOR_DEBIAN, "595.58.03", PROPRIETARY),
    2: (VENDOR_DEBIAN, "570.158.01", OPEN),
    3: (VENDOR_DEBIAN, "580.105.08", OPEN),
    4: (VENDOR_DEBIAN, "615.71.09", OPEN),
    6: (DEBIAN, "550.163.01", PROPRIETARY),
    8: (VENDOR_580, "580.65.06", OPEN),
    9: (VENDOR_580, "580.159.03", PROPRIETARY),
    10: (VENDOR, "595.71.05", OPEN),
    11: (UBUNTU, "580.95.05", OPEN),
    12: (VENDOR_580, "580.95.05", OPEN),
    13: (UBUNTU, "580.142", OPEN),
    15: (UBUNTU, "595.71.05", OPEN),
    16: (UBUNTU, "595.84", PROPRIETARY),
    20: (VENDOR, "595.58.03", OPEN),
    24: (VENDOR_580, "580.105.08", PROPRIETARY),
    28: (UBUNTU, "550.120", PROPRIETARY),
    29: (UBUNTU, "580.178.04", OPEN),
    30: (VENDOR_580, "580.159.03", OPEN),
    31: (VENDOR, "595.71.05", OPEN),
    32: (VENDOR_580, "580.65.06", PROPRIETARY),
    41: (VENDOR_580, "550.54.15", OPEN),
    42: (VENDOR_580, "550.54.14", PROPRIETARY),
    43: (SERVERS, "580.159.03", OPEN),
    44: (SERVERS, "550.127.08", PROPRIETARY),
    45: (SERVERS, "580.178.04", PROPRIETARY),
    46: (VENDOR_DEBIAN, "595.45.04", OPEN),
}
PREBUILT = {11, 13, 16, 28, 29, 43, 44}
#: What a driver of another branch leaves on a machine.
REMAINS = {12: "550.163.01", 41: "535.161.07"}


def lines_of(number: int) -> list[str]:
    name = "noble-550-server-container" if number == 44 else f"public-{number:02}"
    return (_SETS / f"{name}.txt").read_text().splitlines()


def rows(number: int, status: str = "ii ") -> str:
    """Rows of ``dpkg-query`` of one machine."""
    listed = [line.split() for line in lines_of(number) if not line.startswith("#")]
    native = "arm64" if any(arch == "arm64" for *_, arch in listed) else "amd64"
    lines = [f"{name}|{arch}|{full}|{status}" for _, name, full, arch in listed]
    return "\n".join(sorted([f"dpkg|{native}|1.22.6|ii ", *lines]))


def os_of(number: int) -> str:
    return lines_of(number)[0].removeprefix("# os: ").partition("-")[0]


def members(number: int) -> dict[str, str]:
    found = dpkg.parse_query(rows(number))
    return {n: p.version for n, p in found.items() if driverset.is_member(n, p.version)}


def moved(number: int, version: str, kind: str, offers: driverset.Versions) -> driverset.Target:
    installed = members(number)
    scheme, _, _ = driverset.complete_set(os_of(number), installed) or pytest.fail("incomplete")
    available = {
        name: (*offers.get(name, ()), *((full,) if (full := installed.get(name)) else ()))
        for name in offers.keys() | installed.keys()
    }
    return driverset.target(
        scheme,
        version,
        kind,
        full=False,
        installed=installed,
        available=available,
        offers=offers,
        use_prebuilt=number in PREBUILT,
    )


def test_every_set_has_a_verdict() -> None:
    names = [path.stem for path in _SETS.glob("public-*.txt")]
    assert sorted({44, *(int(name.removeprefix("public-")) for name in names)}) == list(VERDICTS)


def test_a_fabric_manager_alone_is_no_driver() -> None:
    """H200 on a cloud: Fabric Manager ahead of a 595.71.05 driver."""
    ahead = {"nvidia-fabricmanager": "610.57.04-1ubuntu1"}
    assert driverset.complete_set("ubuntu", ahead) is None


@pytest.mark.parametrize("number", VERDICTS)
def test_a_real_set_is_recognised(number: int) -> None:
    found = driverset.complete_set(os_of(number), members(number))
    assert found is not None
    assert (found[0].name, *found[1:]) == VERDICTS[number]


@pytest.mark.parametrize("number", VERDICTS)
def test_a_real_set_stays_as_it_is(number: int) -> None:
    """Nothing is added that its repository does not have, and nothing leaves but remains of another branch."""
    _, version, module_type = VERDICTS[number]
    installed = members(number)
    offers = {name: (full,) for name, full in installed.items()}
    target = moved(number, version, module_type, offers)
    remains = REMAINS.get(number, "none")
    gone = {
        n
        for n, v in installed.items()
        if v.startswith(remains) or (number in REMAINS and "linux-" in n)
    }
    assert set(target.remove) == gone
    assert target.packages == {n: v for n, v in installed.items() if n not in gone}


@pytest.mark.parametrize("number", [1, 2, 3, 4, 8, 9, 24, 30, 31, 32, 45, 46])
def test_a_real_set_moves_as_a_whole(number: int) -> None:
    """To another version of the same names: every copy, of every architecture."""
    _, version, kind = VERDICTS[number]
    newer = f"{version.partition('.')[0]}.999.01"
    installed = members(number)
    offers = {
        name: (full.replace(version, newer),)
        for name, full in installed.items()
        if version not in name
    }
    target = moved(number, newer, kind, offers)
    # A metapackage of one version stays behind, and with it that version.
    leave = {name for name in installed if version in name}
    assert set(target.remove) == leave
    assert target.packages == {name: full for name, (full,) in offers.items()}


def test_the_metapackage_for_boards_with_nvlink_5_moves_with_the_set() -> None:
    """``nvlink5`` installs Fabric Manager and NVLSM; without its new version the old one would stay in the way."""
    old, new = "595.71.05-1ubuntu1", "595.91.07-1ubuntu1"
    names: list[str] = ["libnvidia-compute", "nvidia-dkms-open", "nvidia-fabricmanager", "nvlink5"]
    installed, offers = dict.fromkeys(names, old), dict.fromkeys(names, (new,))
    assert all(driverset.is_member(name, old) for name in names)
    scheme, _, kind = driverset.complete_set("ubuntu", installed) or pytest.fail("incomplete")
    available = dict.fromkeys(names, (new, old))
    target = driverset.target(
        scheme,
        "595.91.07",
        kind,
        full=False,
        installed=installed,
        available=available,
        offers=offers,
    )
    assert target.packages == dict.fromkeys(names, new)


def test_a_copy_for_another_architecture_has_a_row_of_its_own() -> None:
    found = dpkg.parse_query(rows(3, "hi "))
    assert found["libnvidia-ml1"].held
    assert found["libnvidia-ml1:i386"].version == "580.105.08-1"
    both = "libcuda1|amd64|1-1|hi \nlibcuda1|i386|1-1|ii \n"
    assert dpkg.parse_query(both)["libcuda1"].held
    # The row of dpkg decides, though most rows are of another architecture.
    many = "a|i386|1|ii\nb|i386|1|ii\ndpkg|amd64|1|ii\nb|amd64|1|ii\n"
    assert set(dpkg.parse_query(many)) == {"a:i386", "b:i386", "b", "dpkg"}


def test_a_copy_for_i386_follows_a_change_of_names() -> None:
    """NVIDIA's names for Ubuntu have no branch from 590 on: there, and back."""
    old, new = "580.65.06-0ubuntu1", "595.71.05-1ubuntu1"
    names = ("libnvidia-compute{s}", "nvidia-dkms{s}-open", "libnvidia-compute{s}:i386")
    before, after = (
        {name.replace("{s}", suffix): (build,) for name in names}
        for suffix, build in (("-580", old), ("", new))
    )
    for here, there in ((before, after), (after, before)):
        installed = {name: full for name, (full,) in here.items()}
        scheme, version, kind = driverset.choices("ubuntu", there, full=False)[0]
        target = driverset.target(
            scheme, version, kind, full=False, installed=installed, available={**here, **there}
        )
        assert target.packages == {name: full for name, (full,) in there.items()}


@pytest.mark.parametrize("tools", [(), ("nvidia-utils{s}", "nvidia-compute-utils{s}")])
@pytest.mark.parametrize(
    ("suffix", "build"), [("-580", "580.105.08-0ubuntu1"), ("", "595.71.05-1ubuntu1")]
)
def test_nvidias_repository_for_ubuntu_is_taken_with_and_without_tools(
    tools: tuple[str, ...], suffix: str, build: str
) -> None:
    """Sources disagree whether it has them from 580.95.05 on: what is offered is installed."""
    names = (f"libnvidia-compute{suffix}", f"nvidia-dkms{suffix}-open", "nvidia-persistenced")
    more = tuple(name.replace("{s}", suffix) for name in tools)
    offers = dict.fromkeys((*names, *more), (build,))
    scheme, version, kind = driverset.choices("ubuntu", offers, full=False)[0]
    target = driverset.target(scheme, version, kind, full=False, installed={}, available=offers)
    assert kind == OPEN
    assert target.packages == dict.fromkeys(sorted((*names, *more)), build)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("os_id", ["debian", "ubuntu"])
def test_empty_packages_are_no_proprietary_driver(os_id: str, full: bool) -> None:
    """NVIDIA's repositories have names of proprietary modules from 615 on, that install the open ones or nothing."""
    names = driverset.names_to_query(os_id, (610, 615))
    offers = dict.fromkeys(names, ("615.71.09-2", "610.57.04-2"))
    found = {(v, kind) for _, v, kind in driverset.choices(os_id, offers, full=full)}
    assert ("610.57.04", PROPRIETARY) in found
    assert ("615.71.09", OPEN) in found
    assert ("615.71.09", PROPRIETARY) not in found


def test_tools_of_debians_archive_come_in_versions_of_their_own() -> None:
    """Debian 12 as it was on 2026-11-28."""
    build = "535.309.01-0+deb12u1"
    names = ("nvidia-smi", "libcuda1", "libnvidia-ml1", "nvidia-kernel-dkms", "nvidia-cuda-mps")
    offers = {**dict.fromkeys(names, (build,)), "nvidia-persistenced": ("535.171.04-1~deb12u1",)}
    scheme, version, kind = driverset.choices("debian", offers, full=False)[0]
    target = driverset.target(scheme, version, kind, full=False, installed={}, available=offers)
    assert target.packages == {name: full for name, (full,) in sorted(offers.items())}
