from __future__ import annotations

import pytest

from gpustate.errors import InventoryError
from gpustate.inventory.ranges import expand


@pytest.mark.parametrize(
    ("pattern", "names", "port"),
    [
        ("gpu", ["gpu"], None),
        ("gpu:22", ["gpu"], 22),
        ("gpu[01:03]:2222", ["gpu01", "gpu02", "gpu03"], 2222),
        ("[2001:db8::1]:22", ["2001:db8::1"], 22),
        ("[2001:db8::1]", ["2001:db8::1"], None),
        ("2001:db8::1:22", ["2001:db8::1:22"], None),
        ("fe80::1%eth0", ["fe80::1%eth0"], None),
        ("a[1:2][x:y]", ["a1x", "a1y", "a2x", "a2y"], None),
        ("[a:c]", ["a", "b", "c"], None),
    ],
)
def test_a_pattern_stands_for_names_and_a_port(
    pattern: str, names: list[str], port: int | None
) -> None:
    assert expand(pattern, "x") == (names, port)


@pytest.mark.parametrize(
    "pattern", ["", ".", "..", "a b", "a/b", "a\n", "é[a:é]", "a[ab:c]", "[:]"]
)
def test_what_names_no_node_is_refused(pattern: str) -> None:
    with pytest.raises(InventoryError, match=r"^x: "):
        expand(pattern, "x")
