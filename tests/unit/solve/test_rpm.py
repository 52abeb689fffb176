"""Rpm repositories as data: relations, repodata within limits, module streams, dnf's settings."""

from __future__ import annotations

import pytest
from rpmworld import Rpm, documents, primary

from gpustate.core.queries import Answer
from gpustate.errors import ProbeError, RefusedError
from gpustate.formats import rpmversion
from gpustate.resolver.rpm_indexes import OtherRpmsQuery, RpmDriverQuery, with_others
from gpustate.resolver.rpm_repositories import Repositories, RepositoriesQuery
from gpustate.solve import modules, repodata, rpmrelations, schemes
from gpustate.solve.packages import Package, Repository, Universe
from gpustate.solve.problem import Problem
from gpustate.solve.relations import clause_text
from gpustate.solve.repodata import Location, nevra
from gpustate.solve.request import DriverRequest
from gpustate.solve.solver import NoSolution, Solution, describe_conflict, solve

CUDA = Repository("cuda", "/", "", "https://vendor.test")


def read(*packages: Rpm, leaf: bool = False) -> tuple[Package, ...]:
    return tuple(repodata.parse_primary(primary(packages), CUDA, "primary.xml", leaf=leaf))


def driver(version: str) -> tuple[Rpm, ...]:
    v = f"3:{version}"
    return (
        Rpm("nvidia-driver-cuda", f"{v}-1.el9", (f"nvidia-kmod-common = {v}",)),
        Rpm("nvidia-kmod-common", f"{v}-1.el9", (f"nvidia-kmod = {v}", "/bin/sh")),
        Rpm("kmod-nvidia-open-dkms", f"{v}-1.el9", ("dkms",), (f"nvidia-kmod = {v}",)),
        Rpm("nvidia-fabricmanager", f"{v}-1.el9"),
    )


# --- versions and relations ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.0~rc1", "1.0"),
        ("1.0", "1.0^git1"),
        ("1.0^git1", "1.0.1"),
        ("1.0a", "1.0.1"),
        ("1.9", "1.10"),
        ("580.65.06-1.el9", "1:1-1"),
        ("3:580.65.06-1.el9", "3:580.105.08-1.el9"),
        ("1", "1-1"),
    ],
)
def test_a_version_is_older(older: str, newer: str) -> None:
    assert rpmversion.compare(older, newer) < 0 < rpmversion.compare(newer, older)


def test_a_relation_without_a_release_is_about_all_of_them() -> None:
    assert rpmversion.compare_in_relation("3:580.65.06-2.el9", "3:580.65.06") == 0
    ((relation,),) = rpmrelations.parse("nvidia-kmod = 3:580.65.06")
    assert relation.allows("3:580.65.06-7.el9")
    assert not relation.allows("580.65.06-7.el9")


def test_what_is_provided_without_a_version_meets_every_bound() -> None:
    ((relation,),) = rpmrelations.parse("nvidia-kmod >= 3:580")
    assert relation.satisfied_by("kmod-x", "1-1", [("nvidia-kmod", "")])
    assert not relation.satisfied_by("kmod-x", "1-1", [("nvidia-kmod", "3:570")])


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("libcuda.so.1()(64bit)", ["libcuda.so.1()(64bit)"]),
        ("(a or b >= 2)", ["a | b >= 2"]),
        ("(a and b)", ["a", "b"]),
        ("((a and b) or c)", ["a | c", "b | c"]),
        ("(kernel-devel-matched if kernel)", []),
        ("(a if b else c)", []),
        ("/bin/sh", []),
        ("rpmlib(CompressedFileNames) <= 3.0.4-1", []),
        ("(a or", []),
        ("(" * 500 + "a" + ")" * 500, []),
        ("()", []),
        ("", []),
    ],
)
def test_boolean_dependencies_are_read_as_far_as_a_set_needs_them(
    written: str, read_as: list[str]
) -> None:
    assert [clause_text(clause) for clause in rpmrelations.parse(written)] == read_as


# --- repodata --------------------------------------------------------------------------------

REPOMD = (
    f'<repomd xmlns="x"><data type="primary"><checksum type="sha256">{"a" * 64}</checksum>'
    '<location href="repodata/p.xml.gz"/></data>'
    '<data type="modules"><location href="repodata/m.yaml"/></data></repomd>'
)


def test_a_repomd_names_its_files() -> None:
    found = repodata.parse_repomd(REPOMD.encode(), "repomd.xml")
    assert found["primary"] == Location("repodata/p.xml.gz", "sha256", "a" * 64)
    assert found["modules"] == Location("repodata/m.yaml")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not well-formed XML"),
        (b"\0\1", "not well-formed XML"),
        (b"<repomd>", "not well-formed XML"),
        (b"<html/>", "it lists no primary"),
        (REPOMD.replace("repodata/p", "../../etc/p").encode(), "invalid location"),
        (REPOMD.replace("repodata/p", "/etc/p").encode(), "invalid location"),
        (REPOMD.replace("repodata/p", "$(id)").encode(), "invalid location"),
        (b'<?xml version="1.0" encoding="martian"?><a/>', "unsupported encoding"),
        (b"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>", "a document type"),
        (b"<!DOCTYPE a><a/>", "a document type"),
        (b"<a>" * 40, "is nested deeper than 16"),
        (b"<a b='" + b"x" * 70_000 + b"'/>", "an attribute of more than"),
        (b"<a>" + b"x" * 1_100_000 + b"</a>", "a text of more than"),
    ],
)
def test_bad_xml_is_one_clear_error(data: bytes, said: str) -> None:
    with pytest.raises(ProbeError, match=r"^repomd\.xml of x: ") as error:
        repodata.parse_repomd(data, "repomd.xml of x")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_billion_laughs_are_refused_before_the_first() -> None:
    bomb = "<!DOCTYPE m [" + "".join(
        f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "ha"}">' for n in range(9)
    )
    with pytest.raises(ProbeError, match="document type"):
        list(repodata.parse_primary(f"{bomb}]><m>&l8;</m>".encode(), CUDA, "primary.xml"))


def test_packages_are_read_with_all_that_decides() -> None:
    one = Rpm(
        "nvidia-driver-cuda",
        "3:580.65.06-1.el9",
        ("nvidia-kmod = 3:580.65.06", "/bin/sh", "(a or b)"),
        ("libcuda.so.1()(64bit)",),
        ("old < 2",),
        ("nvidia-x11",),
    )
    (package,) = read(one)
    assert (package.version, package.driver, package.rpm) == (
        "3:580.65.06-1.el9",
        "580.65.06",
        True,
    )
    assert [clause_text(clause) for clause in package.depends] == [
        "nvidia-kmod = 3:580.65.06",
        "a | b",
    ]
    assert [str(row) for row in package.conflicts] == ["old < 2", "nvidia-x11"]
    assert ("libcuda.so.1()(64bit)", "") in package.provides
    assert len(package.sha256) == 64
    assert nevra(package) == "nvidia-driver-cuda-3:580.65.06-1.el9.x86_64"


def test_what_is_no_package_is_left_out() -> None:
    odd = [Rpm("a b", "1-1"), Rpm("a;id", "1-1"), Rpm("a", "$(id)-1"), Rpm("a", "1-1", arch="src")]
    assert read(*odd, Rpm("fine", "1-1"))[0].name == "fine"
    assert len(read(*odd, Rpm("fine", "1-1"))) == 1


def test_obsoleting_is_about_names_only() -> None:
    new, old, other = read(
        Rpm("new", "1-1", obsoletes=("old < 2",)),
        Rpm("old", "1-1"),
        Rpm("other", "1-1", provides=("old = 1",)),
    )
    assert new.conflicts_with(old)
    assert not new.conflicts_with(other)


# --- solving ---------------------------------------------------------------------------------


def problem(wanted: DriverRequest, packages: tuple[Package, ...]) -> Problem:
    dkms = read(Rpm("dkms", "3.2.1-1.el9", arch="noarch"), leaf=True)
    return Problem(wanted, Universe((*packages, *dkms)), "rocky", lambda branch, kind: ("open", ""))


def test_a_driver_is_solved_from_rpms_with_its_epoch() -> None:
    packages = read(*driver("580.65.06"), *driver("580.105.08"), *driver("595.58.03"))
    found = solve(problem(DriverRequest(branch=580, fabric_manager=True), packages))
    assert isinstance(found, Solution)
    assert {p.version for p in found.packages} == {"3:580.105.08-1.el9"}
    assert {p.name for p in found.packages} == {p.name for p in driver("x")}


def test_every_distribution_with_dnf_has_a_scheme_and_others_have_theirs() -> None:
    for os_id in schemes.RPM_SYSTEMS:
        assert [scheme.os_id for scheme in schemes.of(os_id)] == [os_id]
    assert {scheme.os_id for scheme in schemes.of("debian")} == {"debian"}
    assert schemes.of("plan9") == ()


# --- module streams --------------------------------------------------------------------------


def stream(name: str, *versions: str) -> dict[str, object]:
    rows = [nevra(p) for version in versions for p in read(*driver(version))]
    data = {"name": "nvidia-driver", "stream": name, "artifacts": {"rpms": rows}}
    return {"document": "modulemd", "version": 2, "data": data}


DEFAULT = {
    "document": "modulemd-defaults",
    "version": 1,
    "data": {"module": "nvidia-driver", "stream": "580-open"},
}
PACKAGES = read(*driver("580.65.06"), *driver("595.58.03"))
STREAMS = [stream("580-open", "580.65.06"), stream("open-dkms", "580.65.06", "595.58.03")]


@pytest.mark.parametrize(
    ("rows", "settings", "there"),
    [
        (STREAMS, "", set[str]()),
        ([*STREAMS, DEFAULT], "", {"580.65.06"}),
        (STREAMS, "[nvidia-driver]\nstream=580-open\nstate=enabled\n", {"580.65.06"}),
        (STREAMS, "[nvidia-driver]\nstream=open-dkms\nstate=enabled\n", {"580.65.06", "595.58.03"}),
        ([*STREAMS, DEFAULT], "[nvidia-driver]\nstream=\nstate=disabled\n", set[str]()),
        ([stream("580-open", "580.65.06"), DEFAULT], "", {"580.65.06"}),
        ([], "", {"580.65.06", "595.58.03"}),
    ],
)
def test_packages_are_there_while_a_stream_of_theirs_is_active(
    rows: list[dict[str, object]], settings: str, there: set[str]
) -> None:
    known = [modules.parse(documents(rows), "modules.yaml")]
    found = modules.apply_streams(PACKAGES, known, modules.enabled_streams([settings]))
    assert {package.driver for package in found if not package.forbidden} == there


def test_a_stream_that_would_have_it_is_named() -> None:
    known = [modules.parse(documents(STREAMS), "modules.yaml")]
    packages = modules.apply_streams(PACKAGES, known, {"nvidia-driver": "580-open"})
    found = solve(problem(DriverRequest(branch=595), packages))
    assert isinstance(found, NoSolution)
    assert (
        "module stream nvidia-driver:open-dkms, which is not enabled, forbids"
        in describe_conflict(found)
    )


@pytest.mark.parametrize("content", ["{", "a: [", "\x01", "[" * 100, "a: 1\na: 2", "&a [*a]"])
def test_a_bad_modules_file_is_one_clear_error(content: str) -> None:
    with pytest.raises(ProbeError, match=r"^modules\.yaml"):
        modules.parse(content, "modules.yaml")


@pytest.mark.parametrize("content", ["", "- 1", "data: 1", "document: modulemd\ndata: {}", "3"])
def test_documents_of_another_kind_say_nothing(content: str) -> None:
    assert modules.parse(content, "modules.yaml").streams == ()


# --- dnf's settings --------------------------------------------------------------------------


def settings(repos: str, *repomds: str, main: str = "", streams: str = "") -> Repositories:
    files = "".join(
        f"\n=repomd|{number}|/var/cache/dnf/{name}-{'0' * 15}{number}/repodata/repomd.xml\n{REPOMD}\n"
        for number, name in enumerate(repomds)
    )
    told = f"x86_64\n=main\n[main]\n{main}=repos\n{repos}=streams\n{streams}\n{files}"
    return RepositoriesQuery().parse(Answer(0, told.encode()))


def test_enabled_repositories_are_those_with_repodata() -> None:
    found = settings(
        "[cuda]\nbaseurl=https://u:secret@vendor.test/x\npriority=10\nexcludepkgs=a b,\n  c\n"
        "[off]\nenabled=0\n[away]\nskip_if_unavailable=1\n",
        "cuda",
        "cuda",
        "stale",
        main="exclude=z\n",
    )
    (row,) = found.checked().rows
    assert (row.name, row.site, row.priority) == ("cuda", "https://vendor.test/x", 10)
    assert row.excluded == ("a", "b", "c", "z")
    assert row.folder.endswith("1")  # the newer of two


def test_a_repository_without_repodata_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"no cached repodata of base.*dnf makecache"):
        settings("[base]\n").checked()


def test_the_folder_of_the_cache_makes_no_difference() -> None:
    assert settings("[a]\n", "a").digest == settings("[a]\n", "x", "a").digest
    assert settings("[a]\n", "a").digest != settings("[a]\npriority=1\n", "a").digest


def test_a_node_without_rpm_has_no_repositories() -> None:
    assert RepositoriesQuery().parse(Answer(69, b"")).digest == ""


@pytest.mark.parametrize(
    "told", [b"", b"x", b"\xff\0", b"x86_64\n=main\n", b"$(id)\n=main\n=repos\n=streams\n"]
)
def test_an_answer_that_makes_no_sense_is_one_clear_error(told: bytes) -> None:
    with pytest.raises(ProbeError, match="dnf's settings"):
        RepositoriesQuery().parse(Answer(0, told))


def answer(repositories: Repositories, *packages: Rpm) -> tuple[Package, ...]:
    body = "".join(one.xml() for one in packages)
    parts = "".join(f"=primary|{row.name}\n{body}\n" for row in repositories.rows)
    return RpmDriverQuery(repositories).parse(Answer(0, parts.encode()))


def test_a_repository_with_a_better_priority_hides_others() -> None:
    both = settings("[a]\npriority=10\n[b]\n", "a", "b")
    found = answer(both, *driver("580.65.06"))
    assert {p.repository.origin for p in found if not p.forbidden} == {"a"}


def test_excluded_packages_are_forbidden() -> None:
    for line in ("excludepkgs=nvidia-*", "includepkgs=dkms", "exclude=*-3:580.65.06-1.el9.x86_64"):
        found = answer(settings(f"[a]\n{line}\n", "a"), *driver("580.65.06"))
        barred = {p.name for p in found if p.forbidden}
        assert "nvidia-driver-cuda" in barred, line


def test_damaged_repodata_and_missing_zstd_are_refused() -> None:
    query = RpmDriverQuery(settings("[a]\n", "a"))
    with pytest.raises(RefusedError, match="repodata of a does not match its repomd"):
        query.parse(Answer(70, b"=damaged|a\n"))
    with pytest.raises(RefusedError, match="install the package zstd"):
        query.parse(Answer(0, b"=primary|a\n=zstd\n"))


def test_what_is_installed_counts_with_what_is_offered() -> None:
    query = OtherRpmsQuery(settings("[a]\n", "a"), ("dkms", "libc.so.6()(64bit)"))
    told = b"=primary|a\n\n=installed|\nglibc|0:2.34-1|x86_64|libc.so.6()(64bit)|\nodd\n"
    (glibc,) = query.parse(Answer(0, told))
    assert (glibc.version, glibc.leaf) == ("2.34-1", True)
    twice = with_others((), (glibc, glibc))
    assert twice == (glibc,)
