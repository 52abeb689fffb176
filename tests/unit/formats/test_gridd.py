"""gridd.conf is merged, and restored to the byte whatever it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpustate.formats import gridd

WANTED = {"FeatureType": "1", "ServerAddress": "licence.example"}
TEMPLATE = (
    "# Description: Set License Server Address\n#ServerAddress=\n\nFeatureType=0\n# EnableUI=TRUE\n"
)
SMI = """
    GPU Virtualization Mode
        Virtualization Mode               : VGPU
    vGPU Software Licensed Product
        Product Name                      : NVIDIA Virtual Compute Server
        License Status                    : {}
"""

line = st.sampled_from(
    ["FeatureType=0", "FeatureType = 2", "ServerPort=7070", "# text", "", "FeatureType=1", "  X=ü"]
)


def test_foreign_keys_and_comments_stay() -> None:
    text = gridd.merge(TEMPLATE + "EnableUI=FALSE\n", WANTED)
    assert gridd.values(text) == {**WANTED, "EnableUI": "FALSE"}
    assert "# Description: Set License Server Address\n" in text


def test_a_file_that_is_right_already_is_not_touched() -> None:
    text = "FeatureType=1\nServerAddress = licence.example\n"
    assert gridd.merge(text, WANTED) == text


def test_a_changed_wish_starts_from_the_file_as_it_was() -> None:
    first = gridd.merge(TEMPLATE, WANTED)
    second = gridd.merge(first, {"FeatureType": "4"})
    assert gridd.values(second) == {"FeatureType": "4"}
    assert gridd.restore(second) == TEMPLATE


@given(lines=st.lists(line, max_size=8), ending=st.booleans())
def test_any_file_comes_back_to_the_byte(lines: list[str], ending: bool) -> None:
    text = "\n".join(lines) + ("\n" if ending and lines else "")
    merged = gridd.merge(text, WANTED)
    assert gridd.restore(merged) == text
    assert gridd.merge(merged, WANTED) == merged
    assert {key: gridd.values(merged)[key] for key in WANTED} == WANTED


def test_the_licence_is_read_without_its_expiry() -> None:
    text = SMI.format("Licensed (Expiry: 2026-11-22 8:0:0 GMT)") + SMI.format(
        "Unlicensed (Restricted)"
    )
    assert gridd.license_status(text) == ("Licensed", "Unlicensed")
    assert gridd.modes(text) == ("VGPU", "VGPU")
    assert gridd.license_status("") == ()
