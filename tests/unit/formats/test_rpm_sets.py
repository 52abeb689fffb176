"""Rpm package sets of real machines (tests/data/driver-sets), moved to other branches, and what is installed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate.core.queries import Answer
from gpustate.formats import driverschemes, driverset
from gpustate.states.driver.observed import AptQuery

SETS = Path(__file__).parents[2] / "data/driver-sets/rpm"


def listed(name: str) -> tuple[str, list[list[str]]]:
    """Distribution, and name, version and architecture of each package of a set."""
    head, *lines = (SETS / f"{name}.txt").read_text().splitlines()
    os_id = head.removeprefix("# os: ").rpartition("-")[0]
    return os_id, [line.split() for line in lines if not line.startswith("#")]


def twice(rows: list[list[str]]) -> tuple[str, ...]:
    """What a node with these packages says is there in two versions."""
    text = "".join(f"{name}|{arch}|{full}\n" for name, full, arch in rows)
    answer = f"=rpm dnf\n{text}=locks\n\n=stream\n=offers\n"
    return AptQuery(()).parse(Answer(0, answer.encode())).twice


def members(name: str) -> tuple[str, dict[str, str]]:
    os_id, rows = listed(name)
    there = {f"{n}.i686" if arch == "i686" else n: full for n, full, arch in rows}
    return os_id, {n: v for n, v in there.items() if driverset.is_member(n, v)}


@pytest.mark.parametrize("name", sorted(path.stem for path in SETS.glob("*.txt")))
def test_nothing_of_a_real_set_is_taken_for_an_interrupted_installation(name: str) -> None:
    """Neither 32-bit copies nor modules for two kernels are."""
    assert twice(listed(name)[1]) == ()


def test_an_old_and_a_new_version_of_one_architecture_are_an_interrupted_installation() -> None:
    old, new = "3:580.65.06-1.el9", "3:580.178.04-1.el9"
    rows = [
        *(["libnvidia-ml", full, "x86_64"] for full in (old, new)),
        *(["nvidia-driver-libs", full, "i686"] for full in (old, new)),
        ["nvidia-driver-libs", new, "x86_64"],
    ]
    assert twice(rows) == ("libnvidia-ml", "nvidia-driver-libs.i686")


def moved(
    name: str, version: str, offers: tuple[str, ...], *, use_prebuilt: bool = False
) -> driverset.Target:
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
    names = {*kinds[0], *kinds[1], *scheme.optional, *offers}
    available: dict[str, tuple[str, ...]] = {n: (v,) for n, v in installed.items()}
    for one in names:
        available[one] = (*available.get(one, ()), build)
    return driverset.target(
        scheme,
        version,
        "open",
        full=False,
        installed=installed,
        available=available,
        use_prebuilt=use_prebuilt,
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


def test_fabric_manager_and_its_like_move_back_under_their_old_names() -> None:
    os_id, installed = members("al2023-570-eks")
    scheme = driverschemes.of(os_id)[0]
    newer = {BESIDE.get(n, n): "3:595.91.07-1.amzn2023" for n in installed}
    available: dict[str, tuple[str, ...]] = {n: (v,) for n, v in newer.items()}
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
    ready = moved(name, version, (), use_prebuilt=True)
    assert set(ready.packages) == installed.keys()
