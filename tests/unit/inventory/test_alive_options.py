"""How soon a dead connection is noticed, as OpenSSH's options say."""

from __future__ import annotations

import pytest

from gpustate.errors import InventoryError

from .conftest import Write
from .test_connection import of


@pytest.mark.parametrize(
    ("args", "interval_s", "count"),
    [
        ("-o ServerAliveInterval=5 -o ServerAliveCountMax=2", 5.0, 2),
        ("-o ServerAliveInterval=1m", 60.0, None),
        ("-o ServerAliveInterval=0", 0.0, None),
        ("-q", None, None),
    ],
)
def test_it_is_taken_from_the_arguments_of_ssh(
    write: Write, args: str, interval_s: float | None, count: int | None
) -> None:
    found, inventory = of(write, f"ansible_ssh_common_args={args}")
    assert (found.alive_interval_s, found.alive_count) == (interval_s, count)
    assert inventory.notes == ()


@pytest.mark.parametrize("option", ["ServerAliveInterval=soon", "ServerAliveCountMax=-1"])
def test_nonsense_is_named(write: Write, option: str) -> None:
    with pytest.raises(InventoryError, match=f"{option.partition('=')[0]} is .*, wanted a"):
        of(write, f"ansible_ssh_args=-o {option}")
