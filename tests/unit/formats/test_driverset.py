"""Which packages are a driver, under every naming scheme there is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpustate.formats import drivernames, driverschemes, driverset
from gpustate.formats.driverset import OPEN, PROPRIETARY

MEMBERS = {
    ("libcuda1", "580.65.06-1"): True,
    ("libnvidia-ml1", "535.309.01-1~deb12u1"): True,
    ("libnvidia-nscq-570", "570.211.01-1"): True,
    ("xserver-xorg-video-nvidia", "535.309.01-1~deb12u1"): True,
    ("cuda-drivers-fabricmanager-580", "580.65.06-1"): True,
    ("linux-modules-nvidia-580-server-open-6.8.0-79-generic", "6.8.0-79.79"): True,
    ("nvidia-container-toolkit", "1.18.0-1"): False,
    ("libnvidia-container1", "1.18.0-1"): False,
    ("cuda-compat-12-9", "575.57.08-0ubuntu1"): False,
    ("nvidia-cuda-toolkit", "11.8.89~11.8.0-5"): False,
    ("nvidia-gds", "12.9.1-1"): False,
    ("nvlsm", "2025.10.11-1"): False,
    ("nvlink5", "580.95.05-1"): True,
    ("nvidia-open-570.158.01", "570.158.01-1"): True,
    ("nvidia-firmware-580", "580.105.08-0ubuntu1"): True,
    ("datacenter-gpu-manager-4-core", "1:4.4.1-1"): False,
}


@pytest.mark.parametrize(("name", "version"), sorted(MEMBERS))
def test_a_package_belongs_to_the_driver_by_name_and_version(name: str, version: str) -> None:
    assert driverset.is_member(name, version) is MEMBERS[name, version]


def offered(names: tuple[str, ...], *versions: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names, versions)


NVIDIA_DEBIAN = (
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "nvidia-kernel-dkms",
    "nvidia-persistenced",
    "nvidia-open",
    "cuda-drivers",
)


def first(os_id: str, available: dict[str, tuple[str, ...]], **more: bool) -> tuple[str, str, str]:
    scheme, version, kind = driverset.choices(os_id, available, full=False, **more)[0]
    return scheme.name, version, kind


@pytest.mark.parametrize(
    ("os_id", "names", "version", "scheme"),
    [
        ("debian", NVIDIA_DEBIAN, "580.65.06-1", "NVIDIA's repository for Debian"),
        (
            "debian",
            ("nvidia-smi", "libcuda1", "libnvidia-ml1", "nvidia-kernel-dkms"),
            "550.163.01-2",
            "Debian's archive",
        ),
        (
            "ubuntu",
            ("nvidia-dkms-open", "libnvidia-compute", "nvidia-utils"),
            "595.91.07-1ubuntu1",
            "NVIDIA's repository for Ubuntu",
        ),
        (
            "ubuntu",
            ("nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580"),
            "580.65.06-0ubuntu1",
            "NVIDIA's repository for Ubuntu, up to 580",
        ),
        (
            "ubuntu",
            (
                "nvidia-dkms-580-server-open",
                "libnvidia-compute-580-server",
                "nvidia-utils-580-server",
            ),
            "580.65.06-0ubuntu0.24.04.1",
            "Ubuntu's archive",
        ),
    ],
)
def test_each_repository_is_known_by_its_names(
    os_id: str, names: tuple[str, ...], version: str, scheme: str
) -> None:
    assert first(os_id, offered(names, version))[0] == scheme


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("nvidia-fabricmanager-580", "nvidia-fabricmanager"),
        ("nvidia-firmware-580-580.65.06", "nvidia-firmware-580.65.06"),
        (
            "linux-modules-nvidia-580-open-6.8.0-106-generic",
            "linux-modules-nvidia-open-6.8.0-106-generic",
        ),
        ("linux-signatures-nvidia-6.8.0-110-generic", "linux-signatures-nvidia-6.8.0-110-generic"),
    ],
)
def test_a_component_has_no_branch_and_keeps_its_kernel(name: str, component: str) -> None:
    assert driverset.component(name) == component


def test_a_set_that_is_offered_only_in_part_is_no_choice() -> None:
    # Debian 12: the open modules stayed behind the libraries.
    available = {
        **offered(("nvidia-smi", "libcuda1", "libnvidia-ml1"), "535.309.01-1"),
        **offered(("nvidia-open-kernel-dkms",), "535.261.03-1"),
        **offered(("nvidia-kernel-dkms",), "535.309.01-1"),
    }
    kinds = {kind for _, _, kind in driverset.choices("debian", available, full=False)}
    assert kinds == {PROPRIETARY}


def target(
    version: str, kind: str, installed: Mapping[str, str], available: Mapping[str, tuple[str, ...]]
) -> driverset.Target:
    return driverset.target(
        driverschemes.SCHEMES[0],
        version,
        kind,
        full=False,
        installed=installed,
        available=available,
    )


def test_everything_installed_moves_along_or_goes() -> None:
    available = {
        **offered(
            (*NVIDIA_DEBIAN, "libnvidia-ml1", "libnvidia-nscq"), "580.65.06-1", "570.211.01-1"
        ),
        "libnvidia-nscq-570": ("570.211.01-1",),
        "libnvidia-old1": ("570.211.01-1",),
    }
    installed: Mapping[str, str] = dict.fromkeys(
        (
            "nvidia-driver-cuda",
            "nvidia-kernel-dkms",
            "nvidia-persistenced",
            "libnvidia-ml1",
            "libnvidia-nscq-570",
            "libnvidia-old1",
        ),
        "570.211.01-1",
    )
    chosen = target("580.65.06", OPEN, installed, available)
    assert set(chosen.packages.values()) == {"580.65.06-1"}
    assert chosen.remove == ("libnvidia-nscq-570", "libnvidia-old1", "nvidia-kernel-dkms")
    assert "libnvidia-nscq" in chosen.packages, "the name without a branch takes its place"
    assert "libnvidia-ml1" in chosen.packages
    assert "cuda-drivers" not in chosen.packages


def test_a_rebuilt_package_does_not_move_a_complete_set() -> None:
    available = offered(NVIDIA_DEBIAN, "580.65.06-2", "580.65.06-1")
    installed: Mapping[str, str] = dict.fromkeys(
        ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced"), "580.65.06-1"
    )
    assert target("580.65.06", OPEN, installed, available).packages == installed


SERVER = (
    "nvidia-headless-no-dkms-580-server-open",
    "nvidia-utils-580-server",
    "libnvidia-compute-580-server",
    "nvidia-dkms-580-server-open",
)


def test_tools_of_the_archive_keep_their_own_version() -> None:
    names = ("nvidia-smi", "libcuda1", "libnvidia-ml1", "nvidia-kernel-dkms")
    available = {**offered(names, "535.309.01-1"), "nvidia-modprobe": ("535.161.07-1",)}
    installed = {"nvidia-modprobe": "535.161.07-1"}
    chosen = driverset.target(
        driverschemes.SCHEMES[1],
        "535.309.01",
        PROPRIETARY,
        full=False,
        installed=installed,
        available=available,
    )
    assert chosen.packages["nvidia-modprobe"] == "535.161.07-1"
    assert chosen.remove == ()


def test_prebuilt_modules_take_the_place_of_dkms_for_every_kernel() -> None:
    stem = "linux-modules-nvidia-580-server-open-"
    available = {
        **offered(
            (
                "nvidia-headless-no-dkms-580-server-open",
                "nvidia-utils-580-server",
                "libnvidia-compute-580-server",
            ),
            "580.65.06-0ubuntu1",
        ),
        f"{stem}6.8.0-79-generic": ("6.8.0-79.79",),
    }
    scheme, version, kind = driverset.choices("ubuntu", available, full=False, prebuilt=True)[0]
    chosen = driverset.target(
        scheme,
        version,
        kind,
        full=False,
        installed={"nvidia-dkms-580-server-open": "580.65.06-0ubuntu1"},
        available=available,
        prebuilt=("6.8.0-79-generic",),
        use_prebuilt=True,
    )
    assert chosen.packages[f"{stem}6.8.0-79-generic"] == "6.8.0-79.79"
    assert chosen.remove == ("nvidia-dkms-580-server-open",)


@pytest.mark.parametrize("prebuilt", [True, False])
@pytest.mark.parametrize(("was", "kind"), [("", "open"), ("-open", "proprietary")])
def test_packages_of_the_other_type_go(was: str, kind: str, prebuilt: bool) -> None:
    full = "580.65.06-0ubuntu1"
    kernel = "6.8.0-79-generic"
    both = [
        f"{name}-580-server{end}"
        for name in ("nvidia-headless-no-dkms", "nvidia-kernel-source", "nvidia-dkms")
        for end in ("", "-open")
    ]
    available = {
        **offered((*both, "nvidia-utils-580-server", "libnvidia-compute-580-server"), full),
        **{
            f"linux-modules-nvidia-580-server{end}-{kernel}": ("6.8.0-79.79",)
            for end in ("", "-open")
        },
    }
    there = {
        f"{name}-580-server{was}" for name in ("nvidia-headless-no-dkms", "nvidia-kernel-source")
    }
    scheme = next(one for one in driverschemes.of("ubuntu") if one.prebuilt)
    chosen = driverset.target(
        scheme,
        "580.65.06",
        kind,
        full=False,
        installed=dict.fromkeys(there, full),
        available=available,
        prebuilt=(kernel,),
        use_prebuilt=prebuilt,
    )
    assert set(chosen.remove) == there


@pytest.mark.parametrize(("version", "build"), [("580.173.02", "1"), ("580.178.04", "2")])
def test_signed_modules_are_those_of_the_driver_whatever_their_version_says(
    version: str, build: str
) -> None:
    tail = "nvidia-580-server-open-6.8.0-106-generic"
    names = (
        "nvidia-headless-no-dkms-580-server-open",
        "nvidia-utils-580-server",
        "libnvidia-compute-580-server",
    )
    modules, *others = parts = (
        *(f"linux-{part}-{tail}" for part in ("modules", "objects")),
        "linux-signatures-nvidia-6.8.0-106-generic",
    )
    available = {
        **offered(names, "580.178.04-0ubuntu1", "580.173.02-0ubuntu1"),
        **offered(parts, "6.8.0-106.106+2", "6.8.0-106.106+1"),
    }
    other = ("580.173.02", "1") if build == "2" else ("580.178.04", "2")
    installed = dict.fromkeys(names, f"{other[0]}-0ubuntu1")
    installed |= dict.fromkeys(parts, f"6.8.0-106.106+{other[1]}")
    chosen = driverset.target(
        next(one for one in driverschemes.of("ubuntu") if one.prebuilt),
        version,
        OPEN,
        full=False,
        installed=installed,
        available=available,
        prebuilt=("6.8.0-106-generic",),
        use_prebuilt=True,
        relations=driverset.parse_relations(
            "".join(
                f"{modules}|6.8.0-106.106+{build}|{driver}|{' '.join(others)}\n"
                for build, driver in (("1", "580.173.02"), ("2", "580.178.04"))
            )
        ),
    )
    assert chosen.packages == {
        **dict.fromkeys(names, f"{version}-0ubuntu1"),
        **dict.fromkeys(parts, f"6.8.0-106.106+{build}"),
    }
    assert chosen.remove == ()


META = "linux-modules-nvidia-580-server-open-generic"


@pytest.mark.parametrize("known", [True, False], ids=["its kernel is there", "it is not"])
def test_a_package_that_follows_the_newest_kernel_installs_no_kernel(known: bool) -> None:
    names = (
        "nvidia-headless-no-dkms-580-server-open",
        "nvidia-utils-580-server",
        "libnvidia-compute-580-server",
    )
    mine, newest = (META.replace("generic", f"6.8.0-{n}-generic") for n in ("106", "110"))
    rows = [
        f"{mine}|6.8.0-106.106+1|580.173.02|",
        f"{mine}|6.8.0-106.106+2|580.178.04|",
        f"{META}|6.8.0-106.106+1|580.173.02|{mine}",
        f"{META}|6.8.0-110.110+2|580.178.04|{newest}",
    ]
    available = {
        **offered(names, "580.178.04-0ubuntu1"),
        mine: ("6.8.0-106.106+1", "6.8.0-106.106+2"),
        META: ("6.8.0-106.106+1", "6.8.0-110.110+2"),
        **({newest: ("6.8.0-110.110+2",)} if known else {}),
    }
    chosen = driverset.target(
        next(one for one in driverschemes.of("ubuntu") if one.prebuilt),
        "580.178.04",
        OPEN,
        full=False,
        installed={
            **dict.fromkeys(names, "580.173.02-0ubuntu1"),
            **dict.fromkeys((mine, META), "6.8.0-106.106+1"),
        },
        available=available,
        prebuilt=("6.8.0-106-generic",),
        use_prebuilt=True,
        relations=driverset.parse_relations("\n".join(rows)),
    )
    assert chosen.packages[mine] == "6.8.0-106.106+2"
    assert chosen.packages.get(newest) == ("6.8.0-110.110+2" if known else None)
    assert chosen.remove == (() if known else (META,))


def test_empty_packages_of_an_ended_branch_are_no_driver() -> None:
    relations = driverset.parse_relations(
        "nvidia-utils-570-server|570.211.01-0ubuntu1.24.04.1||nvidia-utils-580-server\n"
        "nvidia-utils-580-server|580.178.04-0ubuntu0.24.04.1||nvidia-utils-580-server\n"
    )
    empty = "570.211.01-0ubuntu1.24.04.1"
    assert relations.branches() == {570: 580}
    for name in ("libnvidia-cfg1-570-server", "nvidia-headless-no-dkms-570-server-open"):
        assert relations.successor(name, empty) == 580
        assert relations.successor(name, "570.211.01-0ubuntu0.24.04.1") is None
    assert relations.successor("nvidia-utils-570", empty) is None
    assert relations.living({"nvidia-utils-570-server": empty, "dkms": "3"}) == {"dkms": "3"}


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("linux-modules-nvidia-580-server-open-6.8.0-110-generic", True),
        ("linux-objects-nvidia-580-server-open-6.8.0-110-generic", True),
        ("linux-signatures-nvidia-6.8.0-110-generic", True),
        ("linux-modules-nvidia-580-server-open-generic", False),
        ("linux-modules-nvidia-580-server-open-generic-hwe-24.04", False),
        ("linux-modules-extra-6.8.0-110-generic", False),
        ("nvidia-firmware-580-server-580.173.02", False),
    ],
)
def test_packages_of_one_kernel_have_its_release_in_their_names(name: str, mine: bool) -> None:
    assert driverset.is_for_kernel(name) == mine


@pytest.mark.parametrize("os_id", ["debian", "ubuntu"])
def test_every_name_of_every_scheme_is_pinned(os_id: str) -> None:
    pinned = set(drivernames.pin_names(os_id))
    assert set(driverset.names_to_query(os_id, drivernames.KNOWN_BRANCHES)) <= pinned
    assert not pinned & set(drivernames.TOOLKIT_NAMES)


@pytest.mark.parametrize(
    ("branch", "kind", "prebuilt", "names"),
    [
        (580, OPEN, False, ("580-open", "open-dkms")),
        (580, PROPRIETARY, False, ("580-dkms", "latest-dkms")),
        (580, PROPRIETARY, True, ("580", "latest")),
        (570, OPEN, True, ("570-open-gpu", "latest-open-gpu")),
    ],
)
def test_a_stream_has_one_kind_of_modules(
    branch: int, kind: str, prebuilt: bool, names: tuple[str, ...]
) -> None:
    assert driverschemes.streams(branch, kind, prebuilt=prebuilt) == names


#: Packages that hold built modules, under names of public repositories; and some that hold none.
BUILT = {
    "nvidia-open-driver-G06-signed-kmp-default": True,
    "nvidia-open-driver-G06-signed-cuda-kmp-azure": True,
    "nvidia-open-driver-G07-signed-cuda-kmp-default": True,
    "nvidia-open-driver-G07-signed-kmp-meta": True,
    "nv-prefer-signed-open-driver": True,
    "nv-prefer-signed-open-driver-G07": True,
    "kmod-nvidia-open-580.126.09-6.12.0-124.8.1": True,
    "kmod-64k-nvidia-open-580.126.09-6.12.0-124.8.1": True,
    "kmod-nvidia-open-dkms": False,
    "kmod-nvidia-latest-dkms": False,
    "nvidia-open-driver-G06": False,
    "nvidia-open-driver-G06-kmp-default": False,
}


@pytest.mark.parametrize(("name", "built"), BUILT.items())
def test_packages_with_built_modules_are_known_by_name(name: str, built: bool) -> None:
    assert bool(driverschemes.BUILT_MODULES.match(name)) is built
