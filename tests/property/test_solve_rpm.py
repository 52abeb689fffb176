"""Rpm versions against the rpm program; random rpm repositories against every combination, and libsolv."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from bundleworld import installed
from hypothesis import given, settings
from hypothesis import strategies as st
from rpmworld import Rpm, compared, installable, needs, needs_libsolv, primary
from shares import everything

from gpustate.bundle import rpmclosure
from gpustate.bundle.closure import Available
from gpustate.bundle.manifest import BASE, Source
from gpustate.bundle.offers import Offers
from gpustate.bundle.rpmupstream import RpmBuild
from gpustate.bundle.upstream import RepositorySource
from gpustate.errors import RefusedError
from gpustate.formats import rpmversion
from gpustate.solve import rpmprimary
from gpustate.solve.closure import Closure
from gpustate.solve.packages import Package, Repository, Universe
from gpustate.solve.repodata import parse_primary

MANY = 60 if everything() else 6

# --- versions ------------------------------------------------------------------------------

PIECE = st.sampled_from(
    ["0", "1", "9", "10", "007", ".", ".", "~", "^", "a", "rc", "el9", "_", "+", "Z", "..", "~~"]
)
LABEL = st.builds(
    lambda first, rest: first + "".join(rest),
    st.sampled_from(["0", "1", "580", "a"]),
    st.lists(PIECE, max_size=5),
)
VERSION = st.builds(
    lambda epoch, version, release: f"{epoch}{version}{release}",
    st.sampled_from(["", "", "0:", "3:"]),
    LABEL,
    st.just("") | LABEL.map(lambda label: f"-{label}"),
)


@given(pairs=st.lists(st.tuples(VERSION, VERSION), min_size=60, max_size=90))
@settings(max_examples=MANY * 2, deadline=None)
def test_versions_compare_as_rpm_compares_them(pairs: list[tuple[str, str]]) -> None:
    needs("rpm")
    signs = [(n > 0) - (n < 0) for n in (rpmversion.compare(a, b) for a, b in pairs)]
    assert list(zip(pairs, signs, strict=True)) == list(zip(pairs, compared(pairs), strict=True))


@given(rows=st.lists(VERSION, max_size=12))
@settings(max_examples=MANY * 4, deadline=None)
def test_versions_are_in_one_order(rows: list[str]) -> None:
    ordered = sorted(rows, key=rpmversion.version_key)
    for a, b in itertools.combinations(ordered, 2):
        assert rpmversion.compare(a, b) <= 0 <= rpmversion.compare(b, a)


# --- repositories --------------------------------------------------------------------------

#: Two builds of one driver among them.
VERSIONS = ("3:570.211.01-1.el9", "3:580.65.06-1.el9", "3:580.65.06-2.el9", "3:595.58.03-1.el9")
BOUNDS = (*VERSIONS, "3:570.211.01", "3:580.65.06", "580.65.06", "3:595.58.03")
FAMILY = ("kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-kmod-common")
TOOL, VIRTUAL = "nvidia-modprobe", "nvidia-kmod"
NAMES = (*FAMILY, TOOL, VIRTUAL, "nothing")
ROOTS = ("kmod-nvidia-open-dkms", "nvidia-driver-cuda")
SIGNS = ("=", "<", "<=", ">", ">=")

RELATION = st.builds(
    lambda name, bound: f"{name} {bound[0]} {bound[1]}" if bound else name,
    st.sampled_from(NAMES),
    st.none() | st.tuples(st.sampled_from(SIGNS), st.sampled_from(BOUNDS)),
)
NEEDED = RELATION | st.builds(lambda a, b: f"({a} or {b})", RELATION, RELATION)
PROVIDED = st.sampled_from([VIRTUAL, *(f"{VIRTUAL} = {bound}" for bound in BOUNDS[:5])])


@st.composite
def repositories(draw: st.DrawFn) -> tuple[Rpm, ...]:
    found: list[Rpm] = []
    for name in (*FAMILY, TOOL):
        builds = draw(st.lists(st.sampled_from(VERSIONS), min_size=1, max_size=3, unique=True))
        for version in builds:
            some = draw(st.integers(0, 5))
            found.append(
                Rpm(
                    name,
                    version,
                    requires=tuple(draw(st.lists(NEEDED, max_size=2))) if some < 3 else (),
                    provides=(draw(PROVIDED),) if draw(st.booleans()) else (),
                    conflicts=(draw(RELATION),) if some == 0 else (),
                    obsoletes=(draw(RELATION),) if some == 1 else (),
                )
            )
    return tuple(found)


# The oracle: nothing of the solver's, and every combination.

Number = tuple[int, tuple[int, ...], str]


def number(version: str) -> Number:
    match = re.fullmatch(r"(?:(\d+):)?([\d.]+)(?:-(.*))?", version)
    assert match is not None
    return int(match[1] or 0), tuple(map(int, match[2].split("."))), match[3] or ""


def allows(version: str, sign: str, bound: str) -> bool:
    a, b = number(version), number(bound)
    if not (a[2] and b[2]):
        a, b = (*a[:2], ""), (*b[:2], "")
    return {"=": a == b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[sign]


def met(relation: str, one: Rpm, *, provided: bool = True) -> bool:
    if relation.startswith("("):
        return any(met(part, one) for part in relation[1:-1].split(" or "))
    name, sign, bound = (*relation.split(), "", "")[:3]
    if one.name == name and (not sign or allows(one.version, sign, bound)):
        return True
    for row in one.provides if provided else ():
        there, _, version = row.partition(" = ")
        if there == name and (not sign or not version or allows(version, sign, bound)):
            return True
    return False


def is_set(chosen: tuple[Rpm, ...], driver: str) -> bool:
    if not {*ROOTS} <= {one.name for one in chosen}:
        return False
    for one in chosen:
        if one.name in FAMILY and number(one.version)[1] != number(driver)[1]:
            return False
        if not all(any(met(row, other) for other in chosen) for row in one.requires):
            return False
        others = [other for other in chosen if other is not one]
        if any(met(row, other) for row in one.conflicts for other in others):
            return False
        if any(met(row, other, provided=False) for row in one.obsoletes for other in others):
            return False
    return True


def combinations(packages: tuple[Rpm, ...]) -> Iterator[tuple[Rpm, ...]]:
    names = dict.fromkeys(package.name for package in packages)
    builds = [[None, *(p for p in packages if p.name == name)] for name in names]
    for row in itertools.product(*builds):
        yield tuple(one for one in row if one is not None)


DRIVERS = ("570.211.01", "580.65.06", "595.58.03")


def found_by_us(packages: tuple[Rpm, ...], driver: str) -> tuple[Package, ...] | None:
    read = tuple(parse_primary(primary(packages), Repository("one"), "primary.xml"))
    assert len(read) == len(packages)
    return Closure(Universe(read), driver, "one", ROOTS).find()


@given(packages=repositories(), driver=st.sampled_from(DRIVERS))
@settings(max_examples=MANY * 20, deadline=None)
def test_a_set_is_found_exactly_where_some_combination_is_one(
    packages: tuple[Rpm, ...], driver: str
) -> None:
    found = found_by_us(packages, driver)
    assert (found is not None) is any(is_set(chosen, driver) for chosen in combinations(packages))
    if found is not None:
        names = {(one.name, one.version) for one in found}
        chosen = tuple(one for one in packages if (one.name, one.version) in names)
        assert len(chosen) == len(found)
        assert is_set(chosen, driver)


@given(
    cases=st.lists(st.tuples(repositories(), st.sampled_from(DRIVERS)), min_size=25, max_size=25)
)
@settings(max_examples=MANY // 3, deadline=None)
def test_libsolv_finds_a_set_in_the_same_repositories(
    cases: list[tuple[tuple[Rpm, ...], str]],
) -> None:
    """libsolv knows nothing of mixed sets: it is shown the packages of the driver's version only."""
    needs_libsolv()
    shown = [
        [
            one
            for one in packages
            if one.name not in FAMILY or number(one.version)[1] == number(driver)[1]
        ]
        for packages, driver in cases
    ]
    ours = [found_by_us(packages, driver) is not None for packages, driver in cases]
    assert ours == installable([(packages, ROOTS) for packages in shown])


# --- bundles -------------------------------------------------------------------------------


def bundle_of(packages: tuple[Rpm, ...], node: tuple[Rpm, ...]) -> tuple[Rpm, ...] | None:
    """The packages of a bundle for the roots and one node; ``None`` when it is refused."""
    listed = rpmprimary.parse(primary(packages), Repository("one"), "primary.xml", ("x86_64",))
    offers = Offers(0)
    place = RepositorySource("file:/x", "/", (), ())
    for entry in listed:
        build = RpmBuild(entry, place, Source("one", "/", "", "file:/x"), signed=False)
        names = dict.fromkeys(name for name, _ in entry.package.provides)
        offers.add_build(entry.package.name, build, names)
    nodes = (installed(*node),) if node else ()
    try:
        found = rpmclosure.resolve(Available({BASE: [offers]}), [(r, "") for r in ROOTS], nodes)
    except RefusedError:
        return None
    chosen = {str(build.package) for build in found[BASE]}
    return tuple(one for one in packages if f"{one.name} {one.version}" in chosen)


def newest(packages: tuple[Rpm, ...], name: str) -> Rpm:
    return max((one for one in packages if one.name == name), key=lambda one: number(one.version))


def is_consistent(chosen: tuple[Rpm, ...]) -> bool:
    for one in chosen:
        if not all(any(met(row, other) for other in chosen) for row in one.requires):
            return False
        others = [other for other in chosen if other is not one]
        if any(met(row, other) for row in one.conflicts for other in others):
            return False
        if any(met(row, other, provided=False) for row in one.obsoletes for other in others):
            return False
    return True


@given(packages=repositories())
@settings(max_examples=MANY * 10, deadline=None)
def test_a_bundle_is_complete_and_refused_only_where_no_combination_is(
    packages: tuple[Rpm, ...],
) -> None:
    roots = {newest(packages, name) for name in ROOTS}
    found = bundle_of(packages, ())
    possible = (set(c) for c in combinations(packages) if is_consistent(c))
    assert (found is not None) is any(roots <= chosen for chosen in possible)
    if found is not None:
        assert roots <= set(found)
        assert is_consistent(found)


@given(packages=repositories(), numbers=st.sets(st.integers(0, 11), max_size=3))
@settings(max_examples=MANY * 10, deadline=None)
def test_with_the_bundle_a_node_has_a_consistent_set_of_packages(
    packages: tuple[Rpm, ...], numbers: set[int]
) -> None:
    """The node has some packages in older versions than the repository, consistent among themselves."""
    names = dict.fromkeys(packages[n % len(packages)].name for n in sorted(numbers))
    node = tuple(Rpm(name, "3:470.1-1.el9", provides=(f"{name}-old",)) for name in names)
    found = bundle_of(packages, node)
    roots = {newest(packages, name) for name in ROOTS}
    kept = [[None, one] for one in node]
    whole = [
        (*chosen, *(one for one in rest if one is not None))
        for chosen in combinations(packages)
        for rest in itertools.product(*kept)
    ]
    possible = [
        set(c)
        for c in whole
        if len({one.name for one in c}) == len(c)
        and {one.name for one in node} <= {one.name for one in c} | obsoleted(c)
        and is_consistent(c)
    ]
    assert (found is not None) is any(roots <= chosen for chosen in possible)
    if found is not None:
        assert any(roots <= c and c - set(node) <= set(found) for c in possible)


def obsoleted(chosen: tuple[Rpm, ...]) -> set[str]:
    """Names of installed packages that some of these obsolete."""
    old = [Rpm(name, "3:470.1-1.el9") for name in NAMES]
    return {
        one.name
        for one in old
        if any(met(row, one, provided=False) for other in chosen for row in other.obsoletes)
    }
