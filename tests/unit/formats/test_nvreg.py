"""Parameters of the nvidia module."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.formats import nvreg


@pytest.mark.parametrize(
    ("name", "value", "branch"),
    [
        ("NVreg_RestrictProfilingToAdminUsers", 0, 535),
        ("NVreg_DeviceFileMode", "0666", 580),
        ("NVreg_DeviceFileMode", "0x1b6", 580),
        ("NVreg_ResmanDebugLevel", -1, 580),
        ("NVreg_CoherentGPUMemoryMode", "driver", 580),
        ("NVreg_RegistryDwords", "RMBug=1;X=2", 570),
        ("NVreg_TCEBypassMode", 1, 550),
        ("NVreg_SomethingQuiteElse", "whatever", 580),
        ("NVreg_CoherentGPUMemoryMode", "numa", 700),
        ("nvidia-uvm.uvm_disable_hmm", "Y", 580),
    ],
)
def test_what_a_driver_takes_is_let_be(name: str, value: int | str, branch: int) -> None:
    assert nvreg.problem(name, value, branch) is None


@pytest.mark.parametrize(
    ("name", "value", "branch", "says"),
    [
        ("NVreg_CoherentGPUMemoryMode", "driver", 570, "which was added in 580"),
        ("NVreg_CreateImexChannel0", 1, 550, "which was added in 555"),
        ("NVreg_TCEBypassMode", 1, 580, "which was removed after 565"),
        ("NVreg_RestrictProfilingToAdminUser", 0, 580, "did you mean NVreg_RestrictProfilingTo"),
        ("NVreg_nvlinkdisable", 1, 580, "did you mean NVreg_NvLinkDisable"),
        ("NVreg_CoherentGPUMemoryMode", "numaa", 580, "must be driver or numa"),
        ("NVreg_EnableMSI", "yes", 580, "must be a number"),
        ("NVreg_EnableMSI", "089", 580, "must be a number"),
        ("NVreg_EnableMSI", 2**31, 580, "does not fit into a signed 32-bit integer"),
        ("NVreg_EnableMSI", "", 580, "must be a number"),
    ],
)
def test_what_it_does_not_take_is_named(
    name: str, value: int | str, branch: int, says: str
) -> None:
    assert says in (nvreg.problem(name, value, branch) or "")


def test_a_branch_nobody_looked_at_is_judged_by_the_value_only() -> None:
    assert nvreg.problem("NVreg_CoherentGPUMemoryMode", "driver", 470) is None
    assert nvreg.problem("NVreg_nvlinkdisable", 1, 700) is None
    assert nvreg.problem("NVreg_EnableMSI", "yes", 700)


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from(["d", "#x", "#o"]))
def test_every_number_of_32_bits_passes(number: int, form: str) -> None:
    text = format(number, form).replace("0o", "0")
    assert nvreg.problem("NVreg_EnableMSI", text, 580) is None
