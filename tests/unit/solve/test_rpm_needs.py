"""What rpm packages need: boolean dependencies as rpm's manual has them."""

from __future__ import annotations

import pytest

from gpustate.solve import rpmneeds
from gpustate.solve.packages import Package, Repository
from gpustate.solve.relations import Relation

HERE = Repository("here")


def world(text: str) -> list[Package]:
    """``a=1+x b``: packages with versions and what they provide."""
    found: list[Package] = []
    for word in text.split():
        label, *provides = word.split("+")
        name, _, version = label.partition("=")
        caps = tuple((p.partition("=")[0], p.partition("=")[2]) for p in provides)
        found.append(Package(name, version or "1", HERE, provides=caps, rpm=True))
    return found


#: A dependency; packages with which it holds; packages with which it does not. After rpm's manual, boolean dependencies.
ROWS = [
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
    ("(SDL1 unless SDL2)", ["SDL1", "SDL2"], [""]),
    ("(SDL1 unless SDL2 else SDL)", ["SDL1", "SDL2 SDL"], ["", "SDL2"]),
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


@pytest.mark.parametrize(("text", "good", "bad"), ROWS)
def test_a_dependency_holds_as_the_manual_says(text: str, good: list[str], bad: list[str]) -> None:
    need = rpmneeds.read(text, "", "")
    assert need is not None
    assert rpmneeds.read(str(need), "", "") == need
    for there, wanted in [*((row, True) for row in good), *((row, False) for row in bad)]:
        packages = world(there)

        def meeting(relation: Relation, packages: list[Package] = packages) -> list[Package]:
            return [one for one in packages if one.meets(relation)]

        assert rpmneeds.holds(need, meeting) is wanted, there


@pytest.mark.parametrize(
    ("name", "flags", "version", "said"),
    [
        ("a", "GE", "1:2-3", "a >= 1:2-3"),
        ("a", ">=", "2", "a >= 2"),
        ("/bin/sh", "", "", "/bin/sh"),
        ("config(a)", "EQ", "1-1", "config(a) = 1-1"),
        ("rpmlib(FileDigests)", "LE", "4.6.0-1", "None"),
    ],
)
def test_plain_requirements_are_read_as_repodata_and_rpm_write_them(
    name: str, flags: str, version: str, said: str
) -> None:
    assert str(rpmneeds.read(name, flags, version)) == said


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "()",
        "(a",
        "(a b)",
        "(a and)",
        "(a if b or c)",
        "(a and b or c)",
        "(a) b",
        "(a if b if c)",
        "(" * 50 + "a" + ")" * 50,
    ],
)
def test_what_is_no_dependency_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"\("):
        rpmneeds.read(text, "", "")
