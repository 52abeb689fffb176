"""Fingerprints are those that gpg shows (``gpg --show-keys --with-colons``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate.formats import openpgp

DATA = Path(__file__).parents[2] / "data/openpgp"
ONE = "A3FB3B055795FE15146BA362F42952F29AD30799"
TWO = "460C155D771CC1C2D98CA06AAD7C01FEC04CC0E6"


def test_one_key_gives_the_fingerprint_of_its_primary_key() -> None:
    assert openpgp.fingerprints((DATA / "one.asc").read_text()) == (ONE,)


def test_several_blocks_give_each_key_once() -> None:
    text = (DATA / "both.asc").read_text()
    assert openpgp.fingerprints(text + text) == (TWO, ONE)


def test_a_key_that_expires_says_when() -> None:
    key = (DATA / "expired.asc").read_text() + (DATA / "one.asc").read_text()
    assert openpgp.expiries(key) == {"E2A898F43881B9B32502E7474B4FEFB310C3A467": 1714564800}
    assert openpgp.expiries("no key") == openpgp.expiries(key[:200]) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no public key"),
        ("<html>not found</html>", "no public key"),
        (openpgp.BEGIN + "\n\nAAAA\n", "END PGP"),
        (f"{openpgp.BEGIN}\n\n!!!!\n{openpgp.END}\n", "base64"),
        (f"{openpgp.BEGIN}\n\nAAAA\n{openpgp.END}\n", "OpenPGP packets"),
        (f"{openpgp.BEGIN}\n\nmQENBA==\n{openpgp.END}\n", "truncated"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        openpgp.fingerprints(text)
