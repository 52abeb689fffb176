"""The solver on random repositories, against looking at every combination there is."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import everything

from gpustate.formats.dpkg import compare_versions
from gpustate.formats.driverset import OPEN, PROPRIETARY
from gpustate.solve.packages import Package, Repository, Universe
from gpustate.solve.problem import Problem
from gpustate.solve.relations import Relation
from gpustate.solve.request import DriverRequest
from gpustate.solve.solver import NoSolution, Solution, solve

MANY = 1500 if everything() else 80

# --- versions ------------------------------------------------------------------------------

DIGITS = st.integers(0, 30).map(str) | st.sampled_from(["00", "007", "20220217"])
PIECE = st.sampled_from([".", "+", "~", "a", "rc", "deb12u", "ubuntu", "-", "B", "+b", "~~", "z."])
UPSTREAM = st.lists(DIGITS | PIECE, min_size=0, max_size=6).map("".join)
VERSION = st.builds(
    lambda epoch, first, rest: f"{epoch}{first}{rest}".rstrip("-"),
    st.sampled_from(["", "", "0:", "1:"]),
    DIGITS,
    UPSTREAM,
)


@given(pairs=st.lists(st.tuples(VERSION, VERSION), min_size=20, max_size=40))
@settings(max_examples=200 if everything() else 12, deadline=None)
def test_versions_compare_as_dpkg_compares_them(pairs: list[tuple[str, str]]) -> None:
    script = "".join(
        f"if dpkg --compare-versions '{a}' lt '{b}'; then echo -1; "
        f"elif dpkg --compare-versions '{a}' eq '{b}'; then echo 0; else echo 1; fi\n"
        for a, b in pairs
    )
    try:
        done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no dpkg on this machine")
    if "not found" in done.stderr:
        pytest.skip("no dpkg on this machine")
    expected = [int(line) for line in done.stdout.split()]
    assert [compare_versions(a, b) for a, b in pairs] == expected


# --- repositories --------------------------------------------------------------------------

#: From old to new, so that their places compare as they do.
VERSIONS = ("570.211.01-1", "580.65.06-1", "595.91.07-1")
DKMS = {OPEN: "nvidia-kernel-open-dkms", PROPRIETARY: "nvidia-kernel-dkms"}
FAMILY = (*DKMS.values(), "nvidia-driver-cuda", "libcuda1")
TOOL, VIRTUAL, LEAF = "nvidia-modprobe", "nvidia-kernel-any", "dkms"
ORIGINS = {name: Repository(name, "/", "", f"https://{name}.test") for name in ("one", "two")}

RELATION = st.builds(
    lambda name, bound: Relation(name, *bound),
    st.sampled_from([*FAMILY, TOOL, VIRTUAL, LEAF, "nothing"]),
    st.just(("", "")) | st.tuples(st.sampled_from(["=", ">=", "<<"]), st.sampled_from(VERSIONS)),
)
CLAUSE = st.lists(RELATION, min_size=1, max_size=2).map(tuple)


@st.composite
def repositories(draw: st.DrawFn) -> tuple[Package, ...]:
    found: list[Package] = []
    for name in (*FAMILY, TOOL):
        places = [(v, o) for v in VERSIONS for o in ORIGINS]
        builds = draw(st.lists(st.sampled_from(places), min_size=2, max_size=4, unique=True))
        for version, origin in builds:
            found.append(
                Package(
                    name,
                    version,
                    ORIGINS[origin],
                    "amd64",
                    depends=tuple(draw(st.lists(CLAUSE, max_size=2)))
                    if draw(st.integers(0, 2)) == 0
                    else (),
                    conflicts=tuple(draw(st.lists(RELATION, max_size=1)))
                    if draw(st.integers(0, 5)) == 0
                    else (),
                    provides=((VIRTUAL, ""),) if draw(st.integers(0, 2)) == 0 else (),
                    forbidden=draw(st.integers(0, 19)) == 0,
                )
            )
    if draw(st.booleans()):
        found.append(Package(LEAF, VERSIONS[1], Repository("debian"), leaf=True))
    return tuple(found)


WANTED = st.builds(
    DriverRequest,
    branch=st.sampled_from([None, 570, 580, 595]),
    channel=st.sampled_from([None, None, "latest-lts", "latest-production"]),
    module_type=st.sampled_from(["auto", OPEN, PROPRIETARY]),
)


def no_matter(branch: int, wanted: str) -> tuple[str | None, str]:
    return (OPEN if wanted == "auto" else wanted), ""


# The oracle: nothing of the solver's, and every combination.


def allows(package: Package, relation: Relation) -> bool:
    if package.name != relation.name:
        return not relation.op and (relation.name, "") in package.provides
    have, bound = VERSIONS.index(package.version), relation.version
    at = VERSIONS.index(bound) if bound else 0
    return {"": True, "=": have == at, ">=": have >= at, "<<": have < at}[relation.op]


def is_set(chosen: tuple[Package, ...], version: str, origin: str, roots: tuple[str, ...]) -> bool:
    names = {package.name: package for package in chosen}
    for name in roots:
        if name not in names:
            return False
    for one in chosen:
        family = one.name in FAMILY
        if one.forbidden or (family and (one.version, one.repository.origin) != (version, origin)):
            return False
        for clause in one.depends:
            if not any(allows(other, relation) for other in chosen for relation in clause):
                return False
        if any(o is not one and allows(o, r) for o in chosen for r in one.conflicts):
            return False
    return True


def combinations(packages: tuple[Package, ...]) -> Iterator[tuple[Package, ...]]:
    names = dict.fromkeys(package.name for package in packages)
    builds = [[None, *(p for p in packages if p.name == name)] for name in names]
    for row in itertools.product(*builds):
        yield tuple(one for one in row if one is not None)


KINDS = {570: "latest-production", 580: "latest-lts", 595: "latest-production"}


def newest(packages: tuple[Package, ...], wanted: DriverRequest) -> tuple[str, set[str]] | None:
    """The newest version that any combination gives, and the kinds of modules it can have."""
    all_of_them = list(combinations(packages))
    kinds = [OPEN if wanted.module_type == "auto" else wanted.module_type]
    for version in reversed(VERSIONS):
        branch = int(version[:3])
        if wanted.branch not in (None, branch):
            continue
        if wanted.channel not in (None, KINDS[branch]):
            continue
        good = {
            kind
            for kind in kinds
            for origin in ORIGINS
            for chosen in all_of_them
            if is_set(chosen, version, origin, (DKMS[kind], "nvidia-driver-cuda"))
        }
        if good:
            return version, good
    return None


@given(packages=repositories(), wanted=WANTED)
@settings(max_examples=MANY, deadline=None)
def test_the_set_is_the_newest_of_all_combinations_and_never_mixed(
    packages: tuple[Package, ...], wanted: DriverRequest
) -> None:
    found = solve(Problem(wanted, Universe(packages), "debian", no_matter))
    best = newest(packages, wanted)
    if best is None:
        assert isinstance(found, NoSolution)
        return
    assert isinstance(found, Solution)
    candidate = found.candidate
    assert (candidate.version, {candidate.module_type}) == (best[0].removesuffix("-1"), best[1])
    leaves = tuple(package for package in packages if package.leaf)
    roots = (*candidate.required, *(n for n in (TOOL,) if n in {p.name for p in found.packages}))
    # Leaves are left to the package manager; those that nothing needs may be in conflict.
    some = itertools.chain.from_iterable(
        itertools.combinations(leaves, count) for count in range(len(leaves) + 1)
    )
    wholes = [(*found.packages, *more) for more in some]
    fitting = [w for w in wholes if is_set(w, best[0], candidate.origin, candidate.required)]
    assert fitting
    whole = fitting[0]
    assert len({package.name for package in found.packages}) == len(found.packages)
    for one in found.packages:  # none is there for nothing
        rest = tuple(other for other in whole if other is not one)
        assert one.name in roots or not is_set(rest, best[0], candidate.origin, roots)
