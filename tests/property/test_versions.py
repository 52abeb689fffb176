"""Versions of packages compare as dpkg and rpm compare them."""

from __future__ import annotations

import itertools
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rpmworld import compared, needs
from shares import tries

from gpustate.formats import rpmversion
from gpustate.formats.dpkg import compare_versions

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
@settings(max_examples=tries(200, 12), deadline=None)
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


RPM_PIECE = st.sampled_from(
    ["0", "1", "9", "10", "007", ".", ".", "~", "^", "a", "rc", "el9", "_", "+", "Z", "..", "~~"]
)
RPM_LABEL = st.builds(
    lambda first, rest: first + "".join(rest),
    st.sampled_from(["0", "1", "580", "a"]),
    st.lists(RPM_PIECE, max_size=5),
)
RPM_VERSION = st.builds(
    lambda epoch, version, release: f"{epoch}{version}{release}",
    st.sampled_from(["", "", "0:", "3:"]),
    RPM_LABEL,
    st.just("") | RPM_LABEL.map(lambda label: f"-{label}"),
)


@given(pairs=st.lists(st.tuples(RPM_VERSION, RPM_VERSION), min_size=60, max_size=90))
@settings(max_examples=tries(120, 12), deadline=None)
def test_versions_compare_as_rpm_compares_them(pairs: list[tuple[str, str]]) -> None:
    needs("rpm")
    signs = [(n > 0) - (n < 0) for n in (rpmversion.compare(a, b) for a, b in pairs)]
    assert list(zip(pairs, signs, strict=True)) == list(zip(pairs, compared(pairs), strict=True))


@given(rows=st.lists(RPM_VERSION, max_size=12))
@settings(max_examples=tries(240, 24), deadline=None)
def test_versions_are_in_one_order(rows: list[str]) -> None:
    ordered = sorted(rows, key=rpmversion.version_key)
    for a, b in itertools.combinations(ordered, 2):
        assert rpmversion.compare(a, b) <= 0 <= rpmversion.compare(b, a)
