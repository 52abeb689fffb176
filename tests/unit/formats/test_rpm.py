"""What rpm, dnf and zypper print, read as data."""

from __future__ import annotations

import subprocess

import pytest

from gpustate.core.queries import Answer, Candidates, Packages
from gpustate.formats import rpm
from gpustate.formats.dpkg import Candidate, Package


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.65.06-1.el9", "580.65.06-1.el9"),
        ("3:580.65.06-1.el9", "3:580.65.06-1.el9"),
        ("0:1.17.8-1", "1.17.8-1"),
        ("(none):1-1", None),
        ("1.17.8", None),
        ("1-1; rm -rf /", None),
        ("", None),
    ],
)
def test_a_version_has_its_epoch_only_where_it_has_one(text: str, version: str | None) -> None:
    assert rpm.version(text) == version


def test_installed_packages_are_read_and_what_is_no_row_is_not() -> None:
    text = (
        "nvlsm|x86_64|2025.10.11-1\nlibnvidia-container1|x86_64|0:1.17.8-1\n"
        "kernel-devel|x86_64|5.14.0-9.el9\nkernel-devel|x86_64|5.14.0-10.el9\n"
        "error: rpmdb open failed\n|x86_64|1-1\n-rf|x86_64|1-1\n\x00\udcff|x|1-1\n"
    )
    found = rpm.parse_query(text, held=("nvlsm",))
    assert found == {
        "nvlsm": Package("nvlsm", "2025.10.11-1", "x86_64", "hi"),
        "libnvidia-container1": Package("libnvidia-container1", "1.17.8-1", "x86_64", "ii"),
        "kernel-devel": Package("kernel-devel", "5.14.0-10.el9", "x86_64", "ii"),
    }
    assert found["nvlsm"].held
    assert found["nvlsm"].installed
    assert not found["nvlsm"].broken


@pytest.mark.parametrize(
    ("entry", "held"),
    [
        ("nvidia-open-3:580.65.06-1.el9.*", True),
        ("nvidia-open-3:580.65.06-1.el9.x86_64", True),
        ("nvidia-open-3:580.65.06-1.el9", True),
        ("nvidia-open-3:580.*", True),
        ("nvidia-open-3:580.105.08-1.el9.*", False),
        ("nvidia-open-0:580.65.06-1.el9.*", False),
        ("nvidia-open-580.65.06-1.el9.*", False),  # means epoch 0
        ("!nvidia-open-3:580.65.06-1.el9.*", False),
        ("# nvidia-open-3:580.65.06-1.el9.*", False),
        ("nvidia-open", False),  # allows every version
        ("", False),
    ],
)
def test_an_entry_of_versionlock_holds_only_what_is_installed(entry: str, held: bool) -> None:
    there = rpm.parse_query("nvidia-open|x86_64|3:580.65.06-1.el9\n")
    found = rpm.held_by_dnf(rpm.versionlocks(f"# Added lock on Sat\n{entry}\n"), there)
    assert found == ({"nvidia-open"} if held else set())


LOCK = "type: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: {}\n"


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (LOCK.format("nvlsm"), {"nvlsm"}),
        (f"\n{LOCK.format('other')}\n\n{LOCK.format('nv*')}", {"nvlsm"}),
        (LOCK.format("nvlsm").replace("package", "patch"), set()),
        (LOCK.format("nvlsm") + "version: < 3\n", set()),
        (LOCK.format("nvlsm") + "repo: site\n", set()),
        ("", set()),
        ("\x00garbage", set()),
    ],
)
def test_locks_of_zypper_hold_by_name(text: str, held: set[str]) -> None:
    assert rpm.held_by_zypper(text, rpm.parse_query("nvlsm|x86_64|2-1\nbash|x86_64|5-1\n")) == held


def test_a_32_bit_copy_is_a_package_of_its_own() -> None:
    rows = "libnvidia-ml|x86_64|3:580.65.06-1.el9\nlibnvidia-ml|i686|3:580.65.06-1.el9\n"
    there = rpm.parse_query(rows)
    assert {name: one.arch for name, one in there.items()} == {
        "libnvidia-ml": "x86_64",
        "libnvidia-ml.i686": "i686",
    }
    both = frozenset(there)
    assert rpm.held_by_dnf(("libnvidia-ml-3:580.65.06-1.el9.*",), there) == both
    assert rpm.held_by_zypper(LOCK.format("libnvidia-ml"), there) == both
    offers = rpm.parse_repoquery(
        "libnvidia-ml|3:595.91.07-1.el9|cuda|x86_64\nlibnvidia-ml|3:580.65.06-1.el9|cuda|i686\n"
    )
    assert {name: found[0].version for name, found in offers.items()} == {
        "libnvidia-ml": "3:595.91.07-1.el9",
        "libnvidia-ml.i686": "3:580.65.06-1.el9",
    }


def test_what_dnf_offers_is_sorted_as_rpm_compares() -> None:
    text = (
        "nvidia-open|3:580.65.06-1.el9|cuda|noarch\nnvidia-open|3:580.105.08-1.el9|cuda|noarch\n"
        "nvidia-open|3:595.58.03~rc1-1.el9|cuda|noarch\nnvidia-open|0:999-1|site|noarch\nnot a row\n"
    )
    assert [one.version for one in rpm.parse_repoquery(text)["nvidia-open"]] == [
        "3:595.58.03~rc1-1.el9",
        "3:580.105.08-1.el9",
        "3:580.65.06-1.el9",
        "999-1",
    ]


def test_what_zypper_offers_is_read_without_what_is_installed() -> None:
    text = (
        "<?xml version='1.0'?>\n<stream>\n<search-result version=\"0.0\">\n<solvable-list>\n"
        '<solvable status="installed" name="nvlsm" kind="package" edition="1-1" arch="x86_64" repository="(System Packages)"/>\n'
        '<solvable status="other-version" name="nvlsm" kind="package" edition="2-1" arch="x86_64" repository="A &amp; B"/>\n'
        '<solvable status="other-version" name="nvlsm" kind="package" edition="10-1" arch="x86_64" repository="A &amp; B"/>\n'
        '<solvable status="not-installed" name="nvlsm" kind="srcpackage" edition="3-1" arch="noarch" repository="A"/>\n'
        '<solvable name="bad name" kind="package" edition="3-1" repository="A"/><solvable/>\n'
    )
    assert rpm.parse_search(text) == {
        "nvlsm": (Candidate("10-1", "A & B"), Candidate("2-1", "A & B"))
    }


@pytest.mark.parametrize(
    ("release", "manager"),
    [
        ("ID=debian\n", "apt"),
        ("ID=ubuntu\nID_LIKE=debian\n", "apt"),
        ('ID="rhel"\nID_LIKE="fedora"\n', "dnf"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf"),
        ('ID="almalinux"\nID_LIKE="rhel centos fedora"\n', "dnf"),
        ('ID="ol"\nID_LIKE="fedora"\n', "dnf"),
        ('ID="amzn"\nID_LIKE="fedora"\n', "dnf"),
        ('ID="sles"\nID_LIKE="suse"\n', "zypper"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "zypper"),
    ],
)
def test_the_distribution_decides_what_manages_its_packages(release: str, manager: str) -> None:
    script = rpm.FAMILY.replace("/etc/os-release", "/dev/stdin") + 'echo "$pm"'
    read = script.replace(
        "[ ! -r /dev/stdin ] || . /dev/stdin", release.replace("\n", "; ").rstrip("; ")
    )
    done = subprocess.run(["sh", "-c", read], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == manager


@pytest.mark.parametrize(
    ("locks", "manager"), [("nvlsm-0:2-1.*\n", "dnf"), (LOCK.format("nvlsm"), "zypper")]
)
def test_one_ask_serves_every_family(locks: str, manager: str) -> None:
    query = Packages(("nvlsm",))
    answer = f"=rpm {manager}\nnvlsm|x86_64|2-1\n=locks\n{locks}"
    assert query.parse(Answer(0, answer.encode()))["nvlsm"].held
    assert query.parse(Answer(0, b"nvlsm|amd64|2-1|hi \n"))["nvlsm"].held


def test_offers_are_read_from_every_family() -> None:
    query = Candidates(("nvlsm",))
    wanted = {"nvlsm": (Candidate("2-1", "cuda"),)}
    solvable = '<solvable name="nvlsm" kind="package" edition="2-1" repository="cuda"/>'
    assert query.parse(Answer(0, b"=rpm dnf\nnvlsm|0:2-1|cuda|x86_64\n")) == wanted
    assert query.parse(Answer(0, f"=rpm zypper\n{solvable}\n".encode())) == wanted
    assert query.parse(Answer(0, b" nvlsm | 2-1 | cuda\n")) == wanted
    assert query.parse(Answer(0, b"=rpm dnf\n")) == {}
