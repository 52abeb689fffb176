"""Which packages are kept for a rollback."""

from __future__ import annotations

import re

import pytest

from gpustate.formats import drivernames
from gpustate.ops.packages import OURS


@pytest.mark.parametrize("os_id", ["debian", "ubuntu"])
def test_every_package_that_a_driver_may_have_is_kept(os_id: str) -> None:
    names = (
        *drivernames.pin_names(os_id),
        *drivernames.TOOLKIT_NAMES,
        "libgdrapi",
        "gds-tools-12-9",
    )
    assert len(names) > 80
    assert [name for name in names if not re.search(OURS, name)] == []


@pytest.mark.parametrize("name", ["libc6", "linux-headers-6.1.0-9-amd64", "containerd", "gdm3"])
def test_no_other_package_is_kept(name: str) -> None:
    assert not re.search(OURS, name)
