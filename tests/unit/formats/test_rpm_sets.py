"""Package sets of real machines, as ``rpm -qa`` prints them: what they are read as, and what a move makes of them.

The sets are in tests/data/rpm/sets, each with its source in the first line. NVIDIA's packages for the RHEL family have
epoch 3, which ``rpm -qa`` leaves out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpustate.core.queries import Answer
from gpustate.formats import driverschemes, driverset
from gpustate.states.driver.observed import Apt, AptQuery

SETS = Path(__file__).parents[2] / "data/rpm/sets"
_NVRA = re.compile(r"(.+)-([^-]+-[^-]+)\.(\w+)")
RHEL, G06, G07 = (
    "NVIDIA's rpm repository",
    "NVIDIA's repository for SUSE, up to 580",
    "NVIDIA's repository for SUSE",
)
#: Scheme, version, module type, whether DKMS builds the modules, whether it is the full set; none: foreign.
VERDICTS: dict[str, tuple[str, str, str, bool, bool] | None] = {
    "rocky9-570-open-full": (RHEL, "570.124.06", "open", True, True),
    "rocky8-535-latest-dkms": (RHEL, "535.54.03", "proprietary", True, False),
    "rocky9-615-open-full": (RHEL, "615.71.09", "open", True, True),
    "rhel10-580-redhat-precompiled": (RHEL, "580.178.04", "open", False, False),
    "al2023-570-eks": (RHEL, "570.172.08", "open", True, True),
    "leap16-580-cuda-kmp": (G06, "580.105.08", "open", False, False),
    "sles15sp7-595-kmp": (G07, "595.71.05", "open", False, False),
    "sles15sp7-580-dkms": (G06, "580.173.02", "open", True, False),
    "tumbleweed-570-gfx-32bit": (f"{G06[:-3]}570", "570.133.07", "proprietary", False, False),
    "alma9-610-native": (RHEL, "610.43.02", "open", False, False),
    "alma10-580-native": (RHEL, "580.105.08", "open", False, False),
    "rhel9-575-negativo17": None,
    "el9-570-elrepo": None,
    "fedora43-580-rpmfusion": None,
    "azl3-580": None,
}


def rows(name: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Distribution, and name, architecture and version of each package of a set."""
    head, *lines = (SETS / f"{name}.txt").read_text().splitlines()
    os_id = head.split()[2].rstrip(";")
    epoch = "3:" if os_id in driverschemes.RHEL else ""
    matches = [_NVRA.fullmatch(line) for line in lines if line and not line.startswith("#")]
    return os_id, [(m[1], m[3], epoch + m[2]) for m in matches if m is not None]


def probed(name: str) -> tuple[str, Apt]:
    """The set as a node answers."""
    os_id, packages = rows(name)
    manager = "zypper" if os_id in driverschemes.SUSE else "dnf"
    text = "".join("|".join(row) + "\n" for row in packages)
    answer = f"=rpm {manager}\n{text}=locks\n\n=stream\n=offers\n"
    return os_id, AptQuery(()).parse(Answer(0, answer.encode()))


def members(name: str) -> tuple[str, dict[str, str]]:
    os_id, said = probed(name)
    there = {n: p.version for n, p in said.packages.items()}
    return os_id, {n: v for n, v in there.items() if driverset.is_member(n, v)}


def test_every_set_has_a_verdict() -> None:
    assert {path.stem for path in SETS.glob("*.txt")} == VERDICTS.keys()


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_a_real_set_is_read_as_what_it_is(name: str) -> None:
    os_id, installed = members(name)
    complete = driverset.complete_set(os_id, installed)
    if complete is None:
        assert VERDICTS[name] is None
        return
    scheme, version, kind = complete
    ready = any(map(driverschemes.BUILT_MODULES.match, installed))
    full = (scheme.full_open if kind == "open" else scheme.full_proprietary) in installed
    verdict = (scheme.name, version, kind, scheme.dkms and not ready, full)
    assert verdict == VERDICTS[name]


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_nothing_of_a_real_set_is_taken_for_an_interrupted_installation(name: str) -> None:
    """Neither 32-bit copies nor modules for two kernels are."""
    assert probed(name)[1].twice == ()


def test_an_old_and_a_new_version_of_one_architecture_are_an_interrupted_installation() -> None:
    answer = (
        "=rpm dnf\n"
        "libnvidia-ml|x86_64|3:580.65.06-1.el9\nlibnvidia-ml|x86_64|3:580.178.04-1.el9\n"
        "nvidia-driver-libs|i686|3:580.65.06-1.el9\nnvidia-driver-libs|i686|3:580.178.04-1.el9\n"
        "nvidia-driver-libs|x86_64|3:580.178.04-1.el9\n=locks\n\n=stream\n=offers\n"
    )
    twice = AptQuery(()).parse(Answer(0, answer.encode())).twice
    assert twice == ("libnvidia-ml", "nvidia-driver-libs.i686")


def moved(name: str, version: str, offers: tuple[str, ...], **more: bool) -> driverset.Target:
    """The set moved to a version, of which the repository has the scheme's own packages and some others.

    Args:
        offers: names, with 32-bit copies.
    """
    os_id, installed = members(name)
    complete = driverset.complete_set(os_id, installed)
    assert complete is not None
    build = f"3:{version}-1.el9" if os_id in driverschemes.RHEL else f"{version}-1"
    branch = driverset.branch_of(version)
    scheme = next(one for one in driverschemes.of(os_id) if one.has(branch) and one.dkms)
    kinds = [scheme.required(branch, "open", full=f, prebuilt=False) for f in (False, True)]
    names = {*kinds[0], *kinds[1], *scheme.wanted, *offers}
    available = {n: (v,) for n, v in installed.items()}
    for one in names:
        available[one] = (*available.get(one, ()), build)
    return driverset.target(
        scheme, version, "open", full=False, installed=installed, available=available, **more
    )


BESIDE = {
    "libnvidia-nscq-570": "libnvidia-nscq",
    "libnvsdm-570": "libnvsdm",
    "nvidia-fabric-manager": "nvidia-fabricmanager",
    "nvidia-imex-570": "nvidia-imex",
}


@pytest.mark.parametrize("version", ["580.178.04", "595.91.07"])
def test_fabric_manager_and_its_like_move_up_under_their_new_names(version: str) -> None:
    target = moved("al2023-570-eks", version, tuple(BESIDE.values()))
    for old, new in BESIDE.items():
        assert driverset.driver_version(target.packages[new]) == version
        assert old in target.remove


def test_fabric_manager_and_its_like_move_back_under_their_old_names(tmp_path: Path) -> None:
    os_id, installed = members("al2023-570-eks")
    scheme = driverschemes.of(os_id)[0]
    newer = {BESIDE.get(n, n): "3:595.91.07-1.amzn2023" for n in installed}
    available = {n: (v,) for n, v in newer.items()}
    for name, version in installed.items():
        available[name] = (*available.get(name, ()), version)
    back = driverset.target(
        scheme, "570.172.08", "open", full=False, installed=newer, available=available
    )
    assert back.packages == installed


def test_display_libraries_of_suse_move_to_the_next_generation() -> None:
    name = "tumbleweed-570-gfx-32bit"
    kept = [n for n in members(name)[1] if "-G06" in n and "-kmp" not in n]
    assert "nvidia-gl-G06-32bit" in kept
    new = {n.replace("-G06", "-G07") for n in kept}
    target = moved(name, "595.91.07", tuple(new))
    assert new < target.packages.keys()
    assert not any("-G06" in n for n in target.packages)


def test_32_bit_copies_move_with_the_set() -> None:
    """The copies of the negativo17 set beside NVIDIA's own driver; they leave where the repository has none."""
    os_id, installed = members("rocky9-570-open-full")
    copies = [n for n in members("rhel9-575-negativo17")[1] if n.endswith(".i686")]
    assert len(copies) == 5
    scheme = driverschemes.of(os_id)[0]
    installed |= dict.fromkeys(copies, "3:570.124.06-1.el9")
    build = "3:580.178.04-1.el9"
    for offered in (copies, copies[:2]):
        names = {n for n in installed if not n.endswith(".i686") or n in offered}
        available = {n: ("3:570.124.06-1.el9", *([build] if n in names else [])) for n in installed}
        target = driverset.target(
            scheme, "580.178.04", "open", full=True, installed=installed, available=available
        )
        assert target.packages == dict.fromkeys(names, build)
        assert set(target.remove) == set(copies) - set(offered)


@pytest.mark.parametrize("name", ["alma9-610-native", "alma10-580-native"])
def test_a_distributors_modules_are_kept_or_replaced_and_never_both(name: str) -> None:
    os_id, installed = members(name)
    complete = driverset.complete_set(os_id, installed)
    assert complete is not None
    _, version, _ = complete
    dkms = moved(name, version, ())
    assert not any(map(driverschemes.BUILT_MODULES.match, dkms.packages))
    assert "kmod-nvidia-open-dkms" in dkms.packages
    ready = moved(
        name,
        version,
        (),
        use_prebuilt=True,
    )
    assert set(ready.packages) == installed.keys()


def test_what_only_looks_like_the_driver_is_no_part_of_it() -> None:
    _, said = probed("rocky8-535-latest-dkms")
    strangers = set(said.packages) - set(members("rocky8-535-latest-dkms")[1])
    assert strangers == {
        *("nvidia-mig-manager", "datacenter-gpu-manager", "nvidia-gds-12-2", "nvidia-fs"),
        *("dnf-plugin-nvidia", "nvidia-fs-dkms", "nvidia-gds"),
    }
