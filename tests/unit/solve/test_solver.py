"""The solver on repositories made by hand: which set it finds, and what it says when there is none."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from solveworld import B200, DEBIAN, H100, V100, VENDOR, debian, problem, stanza, universe, vendor

from gpustate.solve import branches, packages, relations
from gpustate.solve.closure import Closure
from gpustate.solve.packages import Package, Repository
from gpustate.solve.request import DriverRequest
from gpustate.solve.solver import NoSolution, Solution, describe_conflict, solve

NEWEST = universe((vendor("595.91.07") + vendor("580.178.04") + vendor("580.65.06"), VENDOR))
BOTH = universe((vendor("580.65.06"), VENDOR), (debian("535.261.03"), DEBIAN))


def found(*words: object, **more: object) -> Solution:
    made = solve(problem(*words, **more))  # type: ignore[arg-type]
    assert isinstance(made, Solution), describe_conflict(made)
    return made


def conflict(*words: object, **more: object) -> NoSolution:
    made = solve(problem(*words, **more))  # type: ignore[arg-type]
    assert isinstance(made, NoSolution), made
    return made


# --- sets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "version"),
    [
        (DriverRequest(), "595.91.07"),
        (DriverRequest(branch=580), "580.178.04"),
        (DriverRequest(version="580.65.06"), "580.65.06"),
        (DriverRequest(channel="latest"), "595.91.07"),
        (DriverRequest(channel="latest-lts"), "580.178.04"),
        (DriverRequest(channel="latest-production"), "595.91.07"),
        (DriverRequest(channel="latest", branch=580), "580.178.04"),
    ],
)
def test_the_newest_driver_wins_that_is_wanted(wanted: DriverRequest, version: str) -> None:
    made = found(wanted, NEWEST, H100)
    assert made.candidate.version == version
    assert {package.version for package in made.packages} == {f"{version}-1"}


def test_the_newest_long_term_branch_is_620() -> None:
    assert branches.in_channel("620.22", "latest-lts")
    assert branches.support_ended("620.22", "2029-09") is None
    assert branches.support_ended("615.71.09", "2026-11") == "past"


def test_a_set_has_everything_its_packages_need_and_nothing_of_the_other_modules() -> None:
    names = {package.name for package in found(DriverRequest(branch=595), NEWEST, H100).packages}
    assert names == {
        *("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "firmware-nvidia-gsp"),
        *("libcuda1", "libnvidia-ml1", "nvidia-persistenced"),
    }


def test_a_volta_gpu_gets_the_last_branch_that_drives_it_with_proprietary_modules() -> None:
    made = found(DriverRequest(channel="latest"), NEWEST, V100)
    assert (made.candidate.version, made.candidate.module_type) == ("580.178.04", "proprietary")


@pytest.mark.parametrize(
    "wanted", [DriverRequest(), DriverRequest(branch=535), DriverRequest(branch=580)]
)
def test_two_repositories_never_give_one_set(wanted: DriverRequest) -> None:
    made = found(wanted, BOTH, H100)
    assert len({package.repository.origin for package in made.packages}) == 1
    assert len({package.driver for package in made.packages} - {""}) == 1


def test_the_same_driver_stays_under_the_names_that_are_there() -> None:
    offered = universe((vendor("580.65.06"), VENDOR), (debian("580.65.06"), DEBIAN))
    for scheme in ("NVIDIA's repository for Debian", "Debian's archive"):
        assert found(DriverRequest(), offered, H100, scheme=scheme).candidate.scheme.name == scheme


def test_a_driver_that_the_matrix_blocks_is_passed_over() -> None:
    made = found(
        DriverRequest(branch=580),
        NEWEST,
        H100,
        blocks=lambda version, kind: (("bad", "it is"),) if version == "580.178.04" else (),
    )
    assert made.candidate.version == "580.65.06"


def test_the_fabric_manager_is_part_of_the_set_where_it_is_wanted() -> None:
    offered = universe((vendor("580.65.06") + vendor("570.211.01"), VENDOR))
    for branch, name in ((580, "nvidia-fabricmanager"), (570, "nvidia-fabricmanager-570")):
        made = found(DriverRequest(branch=branch, fabric_manager=True), offered, H100)
        assert name in {package.name for package in made.packages}


# --- conflicts -------------------------------------------------------------------------------


def test_a_branch_that_nobody_offers_is_one_fact() -> None:
    made = conflict(DriverRequest(branch=570), NEWEST, H100)
    assert [reason.text for reason in made.reasons] == ["the policy requests branch 570"]
    assert made.offered[0] == "595.91.07 open (NVIDIA)"


def test_a_gpu_without_the_requested_modules_is_the_fact() -> None:
    made = conflict(DriverRequest(module_type="proprietary"), NEWEST, B200)
    assert [reason.kind for reason in made.reasons] == ["gpu"]
    assert "blackwell" in made.reasons[0].text


def test_rules_of_the_matrix_are_named_with_their_reason() -> None:
    made = conflict(
        DriverRequest(branch=580),
        NEWEST,
        H100,
        blocks=lambda version, kind: (("bad-one", "it hangs"),),
    )
    assert [reason.text for reason in made.reasons] == ["compatibility rule bad-one: it hangs"]


def test_open_modules_that_lag_behind_are_named_with_their_version() -> None:
    offered = universe((debian("535.309.01", "535.261.03"), DEBIAN))
    made = conflict(DriverRequest(module_type="open"), offered, H100)
    assert {reason.text for reason in made.reasons} == {
        "Debian offers nvidia-smi at 535.309.01 only",
        "Debian offers nvidia-open-kernel-dkms at 535.261.03 only",
    }


def test_what_nobody_offers_is_named_with_who_needs_it() -> None:
    offered = universe((vendor("580.65.06"), VENDOR), others=("libc6",))
    text = describe_conflict(conflict(DriverRequest(module_type="open"), offered, H100))
    assert "nvidia-kernel-open-dkms 580.65.06-1 needs dkms, which no repository offers" in text


def test_a_pin_that_forbids_everything_is_the_fact() -> None:
    offered = universe((vendor("580.65.06"), VENDOR), pinned_away=("NVIDIA",))
    made = conflict(DriverRequest(), offered, H100)
    assert [reason.text for reason in made.reasons] == [
        "a pin of apt forbids the driver's packages of NVIDIA"
    ]


def test_a_fabric_manager_that_is_not_offered_is_the_fact() -> None:
    offered = universe((debian("535.261.03"), DEBIAN))
    made = conflict(DriverRequest(fabric_manager=True), offered, H100)
    assert [reason.text for reason in made.reasons] == ["Debian has no nvidia-fabricmanager"]


def test_an_empty_repository_offers_nothing() -> None:
    assert describe_conflict(conflict(DriverRequest(branch=580), universe(), H100)) == (
        "no driver set for branch 580: no repository of the node offers a driver"
    )


# --- packages --------------------------------------------------------------------------------


def test_packages_that_conflict_are_named_with_who_needs_them() -> None:
    text = (
        stanza("a", "1", "b (= 1), c") + stanza("b", "1") + stanza("c", "1", more="Conflicts: b\n")
    )
    search = Closure(universe((text, VENDOR)), "1", "", ("a",))
    assert search.find() is None
    assert search.problem == "a 1 needs c, c 1 cannot be installed together with b 1"


def test_alternatives_and_packages_that_stand_in_are_gone_back_over() -> None:
    text = (
        stanza("a", "1", "x | y, z")
        + stanza("b", "1", more="Provides: x\nConflicts: z\n")
        + stanza("y", "1")
        + stanza("z", "1")
    )
    made = Closure(universe((text, VENDOR)), "1", "", ("a",)).find()
    assert made is not None
    assert {package.name for package in made} == {"a", "y", "z"}


def test_fields_of_an_index_are_read_as_they_are_written() -> None:
    text = (
        "Package: x\nVersion: 1:2-3\nDepends: a (>= 1) | b:any,\n c:i386 (<< 2)\n"
        "Provides: p (= 7), q\nSize: 12\nSHA256: " + "F" * 64 + "\n\nVersion: 1\n\nPackage: Bad\n"
    )
    (one,) = packages.parse(text, Repository("o"))
    assert [relations.clause_text(clause) for clause in one.depends] == [
        "a (>= 1) | b",
        "c:i386 (<< 2)",
    ]
    assert one.provides == (("p", "7"), ("q", ""))
    assert (one.size, one.sha256) == (12, "f" * 64)


@pytest.mark.parametrize(
    ("relation", "satisfied"),
    [("p", True), ("p (= 7)", True), ("p (>= 8)", False), ("q", True), ("q (>= 1)", False)],
)
def test_a_provided_name_has_the_version_that_is_given_with_it(
    relation: str, satisfied: bool
) -> None:
    one = Package("x", "1", Repository("o"), provides=(("p", "7"), ("q", "")))
    assert one.satisfies(relations.parse(relation)[0][0]) is satisfied


@pytest.mark.parametrize("text", ["", "\0\n\n\n", "Package:\n", ":\n", " x\n\n: y\n", "a: b\n" * 9])
def test_an_index_of_nonsense_has_no_packages(text: str) -> None:
    assert not list(packages.parse(text, Repository("o")))


def test_twenty_situations_cost_well_under_a_second() -> None:
    versions = [f"{branch}.{n}.01" for branch in (570, 580, 595) for n in range(60, 74)]
    offered = universe(("".join(map(vendor, versions)), VENDOR))
    before = time.process_time()
    for number in range(20):
        wanted = DriverRequest(branch=(570, 580, 595)[number % 3], fabric_manager=number % 2 == 0)
        assert isinstance(solve(replace(problem(wanted, offered, H100))), Solution)
    assert time.process_time() - before < 1.0
