"""What rpm packages need in turn goes into a bundle: conditions, files, what nodes have, what would break on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from bundleworld import RpmSite, installed
from rpmworld import Rpm

from gpustate.bundle import rpmclosure
from gpustate.bundle.closure import World
from gpustate.bundle.manifest import BASE, DRIVER
from gpustate.bundle.rpmclosure import Installed
from gpustate.errors import RefusedError


def closed(site: RpmSite, *roots: str, nodes: Iterable[Installed] = ()) -> list[str]:
    wanted = [(name, version) for name, _, version in (root.partition("=") for root in roots)]
    world = World({BASE: [site.offers()]})
    found = rpmclosure.close(world, wanted, tuple(nodes))
    return sorted(str(one.package) for rows in found.values() for one in rows)


def site_of(tmp_path: Path, *packages: Rpm) -> RpmSite:
    return RpmSite(tmp_path / f"site{len(list(tmp_path.iterdir()))}", packages)


def test_what_hangs_on_a_condition_comes_where_the_condition_holds(tmp_path: Path) -> None:
    a = Rpm("a", "1-1", ("(b if c)", "(d if c else e)", "(f unless c)"))
    site = site_of(tmp_path, a, *(Rpm(name, "1-1") for name in "bcdef"))
    assert closed(site, "a") == ["a 1-1", "e 1-1", "f 1-1"]
    assert closed(site, "a", nodes=[installed(Rpm("c", "0-1"))]) == ["a 1-1", "b 1-1", "d 1-1"]
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
    with pytest.raises(RefusedError, match=r"a 1-1 needs \(b and or c\), which cannot be read"):
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
        match=r"glibc-langpack-en 2.34-1 is installed and needs glibc = 2.34-1, which would be",
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
        ([Rpm("a", "1-1", ("b >= 2",)), Rpm("b", "1-1")], ["a"], "^a 1-1 needs b >= 2, which no"),
        ([Rpm("b", "1-1")], ["b=7-1"], r"no repository offers b 7-1 \(there are 1-1\)"),
        (
            [Rpm("a", "1-1", ("/usr/share/x",))],
            ["a"],
            r"needs /usr/share/x, which .* \(repodata has the files of some folders only\)",
        ),
        (
            [Rpm("a", "1-1", conflicts=("b",)), Rpm("b", "1-1")],
            ["a", "b"],
            r"b 1-1 \(asked for\) and a 1-1 \(asked for\) cannot be installed together",
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
    world = World(offers, {DRIVER: frozenset({"dkms"})})
    found = rpmclosure.close(world, [("dkms", "")], ())
    assert [(home, str(one.package)) for home, (one,) in found.items()] == [(DRIVER, "dkms 3-1")]
