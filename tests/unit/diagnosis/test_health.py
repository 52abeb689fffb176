"""What is well with a GPU and what is not: each finding with a healthy twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nvmljson import to_json

from gpustate.diagnosis import health
from gpustate.formats.nvml_report import Gpu, GpuHealth, NvmlFacts, from_json
from gpustate.formats.xids import Xid

GOOD = GpuHealth(
    recovery_action=0,
    remapped_correctable=3,
    remapped_uncorrectable=1,
    ecc_uncorrectable=0,
    pcie_generation=1,
    pcie_generation_most=5,
    pcie_width=16,
    pcie_width_most=16,
    clock_reasons=1,
    nvlinks=18,
    nvlink_recoveries=0,
)
GPUS = tuple(
    Gpu(
        n,
        f"GPU-{n}",
        f"0000:{n + 1:02x}:00.0",
        name="A100-SXM4-80GB",
        remap_failed=False,
        health=GOOD,
    )
    for n in range(3)
)
NVML = NvmlFacts(source="nvml", gpus=GPUS)


def with_gpu(**more: object) -> NvmlFacts:
    return replace(NVML, gpus=(*GPUS[:2], replace(GPUS[2], **more)))  # type: ignore[arg-type]


def said(**more: object) -> NvmlFacts:
    return with_gpu(health=replace(GOOD, **more))  # type: ignore[arg-type]


def test_healthy_gpus_are_not_accused_not_even_of_an_idle_link() -> None:
    assert health.judge(NVML) == ()
    assert health.judge(replace(NVML, gpus=(replace(GPUS[0], health=None),))) == ()


@pytest.mark.parametrize(
    ("nvml", "what", "level", "evidence"),
    [
        (with_gpu(remap_failed=True), "row-remap", "failed", "row remapping failed"),
        (with_gpu(remap_pending=True), "row-remap", "warning", "is pending until a reset"),
        (said(retired_pages=64), "page-retirement", "failed", "64 pages retired"),
        (said(retirement_pending=True), "page-retirement", "warning", "is pending until a reset"),
        (said(ecc_uncorrectable=2), "ecc", "warning", "2 uncorrectable memory errors"),
        (said(recovery_action=1), "recovery-action", "failed", "a reset of the GPU"),
        (with_gpu(compute_mode="Prohibited"), "compute-mode", "failed", "no program may use it"),
        (said(recovery_action=4), "recovery-action", "warning", "a drain and a reset"),
        (said(pcie_width=8), "pcie-width", "warning", "PCIe x8; GPU and slot support x16"),
        (
            said(pcie_generation=3, clock_reasons=0),
            "pcie-speed",
            "warning",
            "generation 3 under load",
        ),
        (said(clock_reasons=0x48), "clocks", "warning", "hardware slowdown, thermal"),
        (said(nvlinks_down=(3,)), "nvlink", "failed", "17 NVLinks up, 18 on its peers; down: 3"),
        (said(nvlink_recoveries=2), "nvlink-errors", "warning", "recovered 2 times"),
        (with_gpu(error=15, health=None), "no-answer", "failed", "GPU is lost (NVML 15)"),
    ],
)
def test_what_a_gpu_says_of_itself_is_found(
    nvml: NvmlFacts, what: str, level: str, evidence: str
) -> None:
    (found,) = [
        one for one in health.judge(nvml) if one.what != "pcie-speed" or what == "pcie-speed"
    ]
    assert (found.gpu, found.what, found.level) == (2, what, level)
    assert evidence in found.evidence
    assert found.remedy
    assert "INDEX" not in found.remedy


def test_links_that_are_down_on_all_gpus_of_a_model_are_how_they_are_wired() -> None:
    wired = replace(GOOD, nvlinks_down=tuple(range(6)))
    assert health.judge(replace(NVML, gpus=tuple(replace(g, health=wired) for g in GPUS))) == ()


def test_an_xid_fails_a_gpu_unless_its_driver_says_that_nothing_is_to_be_done() -> None:
    log = (Xid("0000:03:00", 95, 2, 100.0, "x"),)
    (fixed,) = health.judge(NVML, log)
    assert (fixed.gpu, fixed.level) == (2, "warning")
    (found,) = health.judge(with_gpu(health=None), log)
    assert (found.gpu, found.level) == (2, "failed")
    assert "Xid 95 ROBUST_CHANNEL_UNCONTAINED_ERROR (RESET_GPU), 2 times" in found.evidence
    assert "docs.nvidia.com" in found.source


def test_xids_of_programs_are_no_finding_and_one_of_a_gpu_that_is_gone_is() -> None:
    assert health.judge(with_gpu(health=None), (Xid("0000:03:00", 13, 9, 1.0, ""),)) == ()
    (found,) = health.judge(NVML, (Xid("0000:99:00", 79, 1, 1.0, ""),))
    assert (found.gpu, found.pci, found.level) == (None, "0000:99:00.0", "failed")


def test_health_travels_with_the_report() -> None:
    nvml = said(nvlinks_down=(3, 4))
    assert from_json(to_json(nvml)) == nvml


def test_cards_with_bridges_are_not_compared_with_one_another() -> None:
    bridged = replace(GPUS[0], name="NVIDIA H100 NVL", fabric_state="not supported")
    down = replace(GOOD, nvlinks_down=tuple(range(18)))
    nvml = replace(NVML, gpus=(bridged, replace(bridged, index=1, health=down)))
    assert health.judge(nvml) == ()


def test_a_kernel_that_ran_since_clears_an_xid_where_the_driver_reports_no_recovery_action() -> (
    None
):
    silent = replace(GPUS[2], health=replace(GOOD, recovery_action=None))
    nvml, xid = replace(NVML, gpus=(silent,)), Xid("0000:03:00", 119, 1, 5.0, "x")
    (bad,) = health.judge(nvml, (xid,))
    (fixed,) = health.judge(nvml, (xid,), {silent.uuid})
    assert (bad.level, fixed.level) == ("failed", "warning")
    assert bad.remedy.endswith("; then: gpustate validate POLICY -l NODE"), (
        "only that shows the reset"
    )
    # What the driver itself requests has the last word.
    asked = replace(silent, health=replace(GOOD, recovery_action=1))
    levels = {
        one.level for one in health.judge(replace(nvml, gpus=(asked,)), (xid,), {silent.uuid})
    }
    assert levels == {"failed"}


@pytest.mark.parametrize(
    ("pci", "number", "severity", "level"),
    [
        ("0000:03:00", 145, "Fatal", "failed"),
        ("0000:03:00", 145, "Nonfatal", "warning"),
        ("0000:99:00", 20034, "Fatal", "failed"),
    ],
)
def test_fatal_errors_of_nvlink_and_nvswitches_fail(
    pci: str, number: int, severity: str, level: str
) -> None:
    log = (Xid(pci, number, 1, 5.0, f"RLW_RXPIPE {severity} XC1 i0 Link 13 (0x1)", severity),)
    for recovery in (0, None):  # a GPU that needs no recovery says nothing of the fabric
        nvml = with_gpu(health=GpuHealth(recovery_action=recovery))
        (finding,) = health.judge(nvml, log)
        assert finding.level == level
        assert severity in finding.text
        assert finding.text.startswith("NVSwitch") == (number > 10_000)
        ran = [gpu.uuid for gpu in nvml.gpus]
        assert not health.failed(health.judge(nvml, log, ran))


def test_a_gpu_that_does_not_answer_has_one_next_step_in_order() -> None:
    log = (Xid("0000:03:00", 79, 1, 100.0, "x"),)
    (found,) = [one for one in health.judge(with_gpu(error=15, health=None), log) if one.gpu == 2]
    assert found.evidence.startswith("GPU is lost (NVML 15); Xid 79 ")
    steps = [found.remedy.index(f"{number}. ") for number in range(1, 5)]
    assert steps == sorted(steps)
