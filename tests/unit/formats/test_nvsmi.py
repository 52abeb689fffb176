"""What nvidia-smi prints, read as data."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.formats import nvsmi
from gpustate.formats.nvml_report import MigDevice

DATA = Path(__file__).parents[2] / "data/nvidia"
ROW = (
    "0, GPU-9c73eb7b-8d6d-6c0e-dc13-97873e2ede40, 00000000:07:00.0, NVIDIA A100-SXM4-80GB, 1320620001234, 81920, "
    "580.95.05, Enabled, Enabled, Enabled, Enabled, 8.0, No, No, Completed, Success\n"
)
OLD_ROW = "0, GPU-a, 00000000:3B:00.0, Tesla T4, [N/A], 15360, 470.256.02, Disabled, [N/A], [N/A], Enabled\n"


def table(rows: str, *, status: int = 0, more: str = "") -> str:
    text = rows.removesuffix("\n")  # as a command substitution of the shell leaves it
    return f"smi-status={status}\n{text}\n" + (f"smi-more\n{more}" if status == 0 else "")


def test_a_full_row_is_read() -> None:
    more = (DATA / "smi-version-580.95.05").read_text() + (DATA / "smi-list-a100-mig").read_text()
    facts = nvsmi.parse(table(ROW, more=more))
    assert facts.works
    assert (facts.driver_version, facts.nvml_version, facts.cuda_version) == (
        "580.95.05",
        "580.95",
        "13.0",
    )
    (gpu,) = facts.gpus
    assert (gpu.pci, gpu.memory_mib, gpu.compute_capability) == ("0000:07:00.0", 81920, "8.0")
    assert (gpu.persistence_mode, gpu.mig_current, gpu.mig_pending) == (True, True, True)
    assert (gpu.remap_pending, gpu.remap_failed) == (False, False)
    assert (gpu.fabric_state, gpu.fabric_status) == ("completed", "success")
    assert gpu.mig_devices == (
        MigDevice("MIG-a686709d-6dc2-542a-8851-0d2508448c10", name="MIG 1g.10gb"),
        MigDevice("MIG-53864714-0a66-5df2-9007-9268e30d9a72", name="MIG 1g.10gb"),
    )


def test_a_row_of_an_old_driver_is_read_and_says_nothing_of_the_rest() -> None:
    (gpu,) = nvsmi.parse(table(OLD_ROW)).gpus
    assert (gpu.name, gpu.serial, gpu.mig_current, gpu.persistence_mode) == (
        "Tesla T4",
        "",
        None,
        False,
    )
    assert (gpu.compute_capability, gpu.remap_failed, gpu.fabric_state) == ("", None, "")


def test_versions_are_found_under_the_names_that_610_gives_them() -> None:
    more = (DATA / "smi-version-610.88").read_text()
    assert nvsmi.parse(table("", more=more)).cuda_version == "13.3"
    assert nvsmi.parse(table("", more=more)).driver_version == ""


@pytest.mark.parametrize(
    ("line", "index", "pci"),
    [
        (
            "Unable to determine the device handle for GPU0000:CB:00.0: Unknown Error",
            1,
            "0000:cb:00.0",
        ),
        (
            "Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error",
            1,
            "0000:34:00.0",
        ),
        (
            "Unable to determine the device handle for GPU 0000:08:00.0: GPU is lost.",
            1,
            "0000:08:00.0",
        ),
    ],
)
def test_a_lost_gpu_is_one_gpu_of_many(line: str, index: int, pci: str) -> None:
    facts = nvsmi.parse(table(ROW + line + "\n", status=15))
    assert facts.error is None
    assert not facts.works
    assert [(gpu.index, gpu.pci, gpu.error) for gpu in facts.gpus] == [
        (0, "0000:07:00.0", None),
        (index, pci, 15),
    ]


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (9, 9, "driver not loaded"),
        (12, 12, "library not found"),
        (18, 18, "driver and library versions differ"),
        (124, 10, "timeout"),
        (255, 255, "are incompatible"),
    ],
)
def test_an_exit_code_is_a_fact_of_its_own(status: int, error: int, words: str) -> None:
    facts = nvsmi.parse(table("Failed to initialize NVML\n", status=status))
    assert facts.error == error
    assert words in facts.error_text


@given(st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    nvsmi.parse(text)
