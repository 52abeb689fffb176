"""What rpm packages need in turn goes into a bundle: conditions, files, what nodes have, what would break on them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from bundleworld import RpmSite, installed
from rpmworld import Rpm

from gpustate.bundle import rpmclosure
from gpustate.bundle.closure import Available
from gpustate.bundle.manifest import BASE
from gpustate.bundle.rpmclosure import Installed
from gpustate.errors import RefusedError, UsageError

DRIVER = "driver-repository"


def closed(site: RpmSite, *roots: str, nodes: Iterable[Installed] = ()) -> list[str]:
    wanted = [(name, version) for name, _, version in (root.partition("=") for root in roots)]
    world = Available({BASE: [site.offers()]})
    found = rpmclosure.resolve(world, wanted, tuple(nodes))
    return sorted(str(one.package) for rows in found.values() for one in rows)


def site_of(tmp_path: Path, *packages: Rpm) -> RpmSite:
    return RpmSite(tmp_path / f"site{len(list(tmp_path.iterdir()))}", packages)


def test_what_hangs_on_a_condition_comes_where_the_condition_holds(tmp_path: Path) -> None:
    a = Rpm("a", "1-1", ("(b if c)", "(d if g else e)"))
    site = site_of(tmp_path, a, *(Rpm(name, "1-1") for name in "bcde"))
    assert closed(site, "a") == ["a 1-1", "e 1-1"]
    assert closed(site, "a", nodes=[installed(Rpm("c", "0-1"), Rpm("g", "0-1"))]) == [
        "a 1-1",
        "b 1-1",
        "d 1-1",
    ]
    # The condition comes to hold while packages are added.
    late = site_of(
        tmp_path, Rpm("a", "1-1", ("(b if c)", "x")), Rpm("x", "1-1", ("c",)), *site_rows("bc")
    )
    assert closed(late, "a") == ["a 1-1", "b 1-1", "c 1-1", "x 1-1"]


def site_rows(words: str) -> list[Rpm]:
    return [Rpm(name, "1-1") for name in words]


def test_with_and_without_are_about_one_package(tmp_path: Path) -> None:
    two = (
        Rpm("new", "1-1", provides=("tool = 3", "fast")),
        Rpm("old", "1-1", provides=("tool = 1", "fast")),
        Rpm("slow", "1-1", provides=("tool = 2",)),
    )
    a = Rpm("a", "1-1", ("(tool >= 1 with tool < 2)",))
    assert closed(site_of(tmp_path, a, *two), "a") == ["a 1-1", "old 1-1"]
    b = Rpm("b", "1-1", ("(tool without fast)",))
    assert closed(site_of(tmp_path, b, *two), "b") == ["b 1-1", "slow 1-1"]
    c = Rpm("c", "1-1", ("(nothing or (new and slow))",))
    assert closed(site_of(tmp_path, c, *two), "c") == ["c 1-1", "new 1-1", "slow 1-1"]


def test_a_dependency_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    site = site_of(tmp_path, Rpm("a", "1-1", ("(b and or c)",)))
    with pytest.raises(
        RefusedError, match=r"a 1-1 needs \(b and or c\), which is not a valid boolean"
    ):
        closed(site, "a")


def test_what_needs_the_old_version_of_a_replaced_package_goes_along(tmp_path: Path) -> None:
    node = installed(
        Rpm("glibc", "2.34-1"),
        Rpm("glibc-langpack-en", "2.34-1", ("glibc = 2.34-1",)),
        Rpm("bystander", "1-1", ("glibc",)),
    )
    packages = (
        Rpm("app", "1-1", ("glibc >= 2.35",)),
        Rpm("glibc", "2.35-1"),
        Rpm("glibc-langpack-en", "2.35-1", ("glibc = 2.35-1",)),
        Rpm("bystander", "2-1"),
    )
    found = closed(site_of(tmp_path, *packages), "app", nodes=[node])
    assert found == ["app 1-1", "glibc 2.35-1", "glibc-langpack-en 2.35-1"]
    with pytest.raises(
        RefusedError,
        match=r"package glibc-langpack-en-2.34-1.x86_64 \(installed\) requires glibc = 2.34-1, but none of",
    ):
        closed(site_of(tmp_path, *packages[:2]), "app", nodes=[node])


def test_headers_of_several_kernels_stand_side_by_side(tmp_path: Path) -> None:
    rows = [
        row
        for v in ("5.14-1", "5.14-2")
        for row in (
            Rpm("kernel-devel", v),
            Rpm("kernel-devel-matched", v, (f"kernel-devel = {v}", f"kernel-core = {v}")),
        )
    ]
    nodes = [installed(Rpm("kernel-core", v)) for v in ("5.14-1", "5.14-2")]
    roots = [f"{row.name}={row.version}" for row in rows]
    found = closed(site_of(tmp_path, *rows), *roots, nodes=nodes)
    assert found == sorted(f"{row.name} {row.version}" for row in rows)


def test_packages_that_nodes_have_in_another_version_are_preferred(tmp_path: Path) -> None:
    tools = ("coreutils", "coreutils-single")
    packages = [Rpm(name, "9-1", provides=("ls = 9",)) for name in tools]
    packages.append(Rpm("a", "1-1", ("ls >= 9",)))
    node = installed(Rpm("coreutils-single", "8-1", provides=("ls = 8",)))
    assert closed(site_of(tmp_path, *packages), "a", nodes=[node])[1] == "coreutils-single 9-1"


@pytest.mark.parametrize(
    ("packages", "roots", "said"),
    [
        (
            [Rpm("a", "1-1", ("b >= 2",)), Rpm("b", "1-1")],
            ["a"],
            r"^nothing provides b >= 2 needed by a-1-1\.x86_64; add the repository",
        ),
        ([Rpm("b", "1-1")], ["b=7-1"], r"no repository offers b 7-1 \(available: 1-1\)"),
        (
            [Rpm("a", "1-1", ("/usr/share/x",))],
            ["a"],
            r"nothing provides /usr/share/x needed by a-1-1.* \(repodata lists only files of a few folders\)",
        ),
        (
            [Rpm("a", "1-1", conflicts=("b",)), Rpm("b", "1-1")],
            ["a", "b"],
            r"package a-1-1.x86_64 conflicts with b provided by b-1-1.x86_64; build a bundle for each of them",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_who_needs_it(
    tmp_path: Path, packages: list[Rpm], roots: list[str], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        closed(site_of(tmp_path, *packages), *roots)


def test_pinned_names_come_from_their_repository_only(tmp_path: Path) -> None:
    base, vendor = site_of(tmp_path, Rpm("dkms", "9-1")), site_of(tmp_path, Rpm("dkms", "3-1"))
    offers = {DRIVER: [vendor.offers()], BASE: [base.offers()]}
    world = Available(offers, {DRIVER: frozenset({"dkms"})})
    found = rpmclosure.resolve(world, [("dkms", "")], ())
    assert [(home, str(one.package)) for home, (one,) in found.items()] == [(DRIVER, "dkms 3-1")]


#: A dependency; packages with which it holds; packages with which it does not. After rpm's manual, boolean dependencies.
BOOLEAN = [
    ("(pkgA and pkgB)", ["pkgA pkgB"], ["pkgA", ""]),
    ("(pkgA >= 3.2 or pkgB)", ["pkgA=3.2", "pkgB"], ["pkgA=3.1", ""]),
    ("(myPkg-langCZ if langsupportCZ)", ["", "myPkg-langCZ langsupportCZ"], ["langsupportCZ"]),
    (
        "(myPkg-backend-mariaDB if mariaDB else sqlite)",
        ["sqlite", "mariaDB myPkg-backend-mariaDB"],
        ["", "mariaDB", "mariaDB sqlite"],
    ),
    ("(pkgA-foo with pkgA-bar)", ["x+pkgA-foo+pkgA-bar"], ["x+pkgA-foo y+pkgA-bar", "x+pkgA-foo"]),
    ("(pkgA-foo without pkgA-bar)", ["x+pkgA-foo"], ["x+pkgA-foo+pkgA-bar", ""]),
    ("(pkgA or pkgB or pkgC)", ["pkgC"], [""]),
    ("(pkgA or (pkgB and pkgC))", ["pkgA", "pkgB pkgC"], ["pkgB"]),
    (
        "(supportCZ if (langCZ and locale))",
        ["langCZ", "langCZ locale supportCZ"],
        ["langCZ locale"],
    ),
    ("((pkgA with capB) or (pkgB without capA))", ["pkgA+capB", "pkgB"], ["pkgA", "pkgB+capA"]),
    (
        "(python3dist(six) >= 1.9 with python3dist(six) < 2)",
        ["python3-six+python3dist(six)=1.16"],
        ["python3-six+python3dist(six)=2.1", ""],
    ),
    ("(libfoo.so.1()(64bit) or /usr/bin/foo)", ["x+libfoo.so.1()(64bit)", "y+/usr/bin/foo"], ["x"]),
    (
        "(kernel-devel-uname-r(5.14) if kernel-core)",
        ["", "k+kernel-devel-uname-r(5.14) kernel-core"],
        ["kernel-core"],
    ),
]


def node_of(text: str) -> Installed:
    """``a=1+x b``: packages with versions and what they provide."""
    rows: list[Rpm] = []
    for word in text.split():
        label, *provides = word.split("+")
        name, _, version = label.partition("=")
        caps = tuple(p.replace("=", " = ") for p in provides)
        rows.append(Rpm(name, f"{version or '1'}-1", provides=caps))
    return installed(*rows, Rpm("other", "1-1"))


@pytest.mark.parametrize(("text", "good", "bad"), BOOLEAN)
def test_a_dependency_holds_as_the_manual_says(
    tmp_path: Path, text: str, good: list[str], bad: list[str]
) -> None:
    site = site_of(tmp_path, Rpm("app", "1-1", (text,)))
    for row in good:
        assert closed(site, "app", nodes=[node_of(row)]) == ["app 1-1"], row
    for row in bad:
        with pytest.raises(RefusedError, match=r"needed by app-1-1|requires"):
            closed(site, "app", nodes=[node_of(row)])


@pytest.mark.parametrize("text", ["(", "()", "(a", "(a b)", "(a and)", "(a) b", "(and a)"])
def test_what_is_no_boolean_dependency_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RefusedError, match="which is not a valid boolean dependency"):
        closed(site_of(tmp_path, Rpm("app", "1-1", (text,)), Rpm("a", "1-1")), "app")


def test_packages_of_a_second_architecture_stand_beside_the_first(tmp_path: Path) -> None:
    node = installed(Rpm("glibc", "2.34-1"), Rpm("glibc", "2.34-1", arch="i686"))
    site = site_of(tmp_path, Rpm("app", "1-1", ("glibc >= 2.35",)), Rpm("glibc", "2.35-1"))
    assert closed(site, "app", nodes=[node]) == ["app 1-1", "glibc 2.35-1"]


def test_each_node_gets_what_it_lacks_and_a_node_without_a_kernel_needs_no_headers(
    tmp_path: Path,
) -> None:
    rows = [Rpm("kernel-devel-matched", v, (f"kernel-core = {v}",)) for v in ("5-1", "5-2")]
    site = site_of(tmp_path, *rows, Rpm("app", "1-1", ("lib",)), Rpm("lib", "1-1"))
    roots = ["app", *(f"{row.name}={row.version}" for row in rows)]
    nodes = [
        installed(Rpm("kernel-core", "5-1"), Rpm("lib", "1-1")),
        installed(Rpm("kernel-core", "5-2")),
    ]
    assert closed(site, *roots, nodes=nodes) == sorted(
        ["app 1-1", "lib 1-1", *(f"{row.name} {row.version}" for row in rows)]
    )
    with pytest.raises(
        RefusedError, match=r"nothing provides kernel-core = 5-2 needed by kernel-devel-matched-5-2"
    ):
        closed(site, *roots, nodes=[nodes[0], installed(Rpm("kernel-core", "5-1"))])


def test_a_missing_libsolv_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "solv", None)
    with pytest.raises(UsageError, match=r"solv is not installed.*pip install solv"):
        closed(site_of(tmp_path, Rpm("a", "1-1")), "a")
