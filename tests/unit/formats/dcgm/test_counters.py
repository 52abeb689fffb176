"""The counters file, and what GPUs can report of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import UsageError
from gpustate.formats import dcgm
from gpustate.formats.dcgm import fields, shipped
from gpustate.formats.nvml_report import Gpu
from gpustate.formats.words import printable

UPSTREAM = Path(__file__).parents[5] / "shared" / "upstream" / "dcgm-exporter"
H100 = Gpu(
    0,
    "GPU-1",
    name="NVIDIA H100 80GB HBM3",
    device_id="2330",
    compute_capability="9.0",
    mig_current=False,
    ecc=True,
    remap_pending=False,
    remap_failed=False,
    fabric_state="completed",
)
T4 = Gpu(
    1,
    "GPU-2",
    name="Tesla T4",
    device_id="1eb8",
    compute_capability="7.5",
    ecc=False,
    mig_current=None,
)


@pytest.mark.parametrize("name", ["default-counters.csv", "dcp-metrics-included.csv"])
def test_the_exporters_own_files_are_read_and_so_is_what_is_commented_out_in_them(
    name: str,
) -> None:
    path = UPSTREAM / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = path.read_text("utf-8")
    found = dcgm.read(text, name)
    assert len(found) == 26
    lines = text.splitlines()
    for counter in found:
        assert lines[counter.line - 1].startswith(counter.field.name)
    # The profiling fields of PCIe stand there twice, once as a comment.
    enabled = {
        line.split(",")[0].removeprefix("# ").strip(): line.removeprefix("# ")
        for line in lines
        if line.startswith(("# DCGM_", "DCGM_"))
    }
    asked = dcgm.read("\n".join(enabled.values()), name)
    assert len(asked) > 50
    assert {one.field.id for one in asked} >= {100, 150, 230, 311, 395, 1001}


def test_the_file_of_gpustate_is_read_and_written_back() -> None:
    found = shipped.counters()
    again = dcgm.read(dcgm.as_text(found, "head"), "again")
    assert [replace(one, line=0) for one in again] == [replace(one, line=0) for one in found]
    assert any("," in one.help for one in found), "one help text needs its quotes"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("DCGM_FI_DEV_GPU_TMP, gauge, x", "did you mean DCGM_FI_DEV_GPU_TEMP?"),
        ("nonsense, gauge, x", "nonsense is not a DCGM field"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "has 2 columns"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, in C, now", "has 4 columns"),
        ("DCGM_FI_DEV_GPU_TEMP, guage, x", "'guage' is not a metric type"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, a "b" c', "double quote in a column"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "a, b"', "directly after the comma"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge,"a', "does not end at a comma"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge\t, x", "is not a metric type"),
        ("DCGM_FI_DEV_GPU_TEMP\t, gauge, x", "is not a DCGM field"),
        ("   ", "remove the blanks from the empty line"),
        ("  # DCGM_FI_DEV_GPU_TEMP, gauge, x", "is not a DCGM field"),
        ("\x1b[2J, gauge, x", "is not a DCGM field"),
    ],
)
def test_a_line_that_would_keep_the_exporter_from_starting_is_named(line: str, said: str) -> None:
    text = f"# head\nDCGM_FI_DEV_SM_CLOCK, gauge, x\n{line}\n"
    with pytest.raises(UsageError) as caught:
        dcgm.read(text, "my.csv")
    assert str(caught.value).startswith("my.csv:3: ")
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)


ANSWERS = json.loads((Path(__file__).parents[3] / "data/dcgm/counters-answers.json").read_text())
#: Refused here although the exporter starts with it, and why.
STRICTER = (
    ("contains no field", "an exporter without a metric is a mistake"),
    ("is not a DCGM field", "the header's marks of a range (DCGM_FI_UNKNOWN, DCGM_FI_FIRST_...)"),
    ("is not a metric type", "the exporter checks no type of its own counters, Prometheus does"),
)


#: The exporter whose answers are recorded.
RECORDED = "4.8.2"


def test_the_exporters_parser_and_ours_agree_on_recorded_answers() -> None:
    accepted = refused = 0
    for answer in ANSWERS["answers"]:
        checked = dcgm.check(answer["text"], "f")
        newer = [one for one in checked.counters if not fields.is_known(one.field, RECORDED)]
        wrong = (*checked.errors, *newer)
        if wrong:
            why = str(wrong[0])
            assert answer["refused"] or any(text in why for text, _ in STRICTER), answer["text"]
            refused += 1
            continue
        assert not answer["refused"], answer["text"]
        accepted += 1
        theirs: dict[int | str, tuple[str, str, str]] = {}
        for name, kind, told in answer["counters"]:
            field = fields.find(name)
            assert field is not None
            line = " ".join(part.strip(" ") for part in told.split("\n"))
            theirs.setdefault(field.id or name, (name, kind, line))
        ours = {(one.field.name, one.type, one.help) for one in checked.counters}
        assert ours == set(theirs.values()), answer["text"]
    assert accepted > 60
    assert refused > 80


def test_what_is_written_is_read_by_the_exporter() -> None:
    """The recorded answers hold gpustate's own file: the exporter starts with it."""
    (answer,) = [a for a in ANSWERS["answers"] if a["text"] == shipped.counters_file()]
    assert not answer["refused"]
    assert len(answer["counters"]) == len(shipped.counters())
    text = dcgm.as_text(shipped.counters(), "head")
    assert ',"Fabric: 0 none, 1' in text
    assert ', "' not in text


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        ("{SM}, gauge, x\n{SM}, gauge, y\n", 2, "is a duplicate of line 1"),
        ("{SM}, gauge, x\ndcgm_sm_clock, gauge, y\n", 2, "as DCGM_FI_DEV_SM_CLOCK"),
        ('{SM}, gauge,"over\ntwo lines"\n', 1, "spans lines"),
    ],
)
def test_what_the_exporter_takes_and_does_not_do_is_a_warning(
    lines: str, line: int, said: str
) -> None:
    checked = dcgm.check(lines.replace("{SM}", "DCGM_FI_DEV_SM_CLOCK"), "my.csv")
    assert not checked.errors
    assert len(checked.counters) == 1
    assert "\n" not in checked.counters[0].help
    (warning,) = checked.warnings
    assert warning.place == f"my.csv:{line}"
    assert said in str(warning)


def test_a_name_that_no_released_exporter_knows_is_a_warning_with_the_one_it_knows() -> None:
    found = dcgm.check("DCGM_FI_DEV_CPU_UTIL_RATIO, gauge, x\n", "my.csv")
    (warning,) = found.too_new
    assert warning.place == "my.csv:1"
    assert "newer than 4.8.3; its name in older releases is DCGM_FI_DEV_CPU_UTIL_TOTAL" in str(
        warning
    )
    assert not dcgm.check(shipped.counters_file(), "f").too_new


def test_the_names_of_the_exporters_first_releases_are_fields() -> None:
    """``etc/1.x-compatibility-metrics.csv`` of dcgm-exporter is a file of these."""
    old = [name for name in fields.ids() if name.startswith("dcgm_")]
    assert len(old) == 41
    checked = dcgm.check("".join(f"{name}, gauge, x\n" for name in old), "f")
    assert len(checked.counters) == 41
    assert not checked.errors


@given(st.text(alphabet=st.sampled_from('DCGM_FI,gauge" \t#\n\ré\x1b\u2028')) | st.text())
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    said = ""
    try:
        dcgm.read(text, "f")
    except UsageError as error:
        said = str(error)
    assert printable(said) == said


def test_a_line_without_end_is_refused_at_once() -> None:
    for line in (
        " " * 500_000 + '"x"y',
        '"' * 500_001,
        "DCGM_FI_DEV_GPU_TEMP," * 50_000,
        "A" * 500_000 + ",gauge,x",
    ):
        with pytest.raises(UsageError):
            dcgm.read(line, "f")


def test_a_file_with_the_line_ends_of_windows_is_read() -> None:
    text = shipped.counters_file().replace("\n", "\r\n")
    assert dcgm.read(text, "f") == shipped.counters()


def test_a_file_that_asks_for_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^my\.csv: contains no field"):
        dcgm.read("# only a comment\n\n", "my.csv")


def test_a_field_has_one_id_and_one_need_under_all_its_names() -> None:
    for old, new, number in (
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", 150),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED", 395),
        ("DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", 391),
    ):
        first, second = fields.find(old), fields.find(new)
        assert first is not None
        assert second is not None
        assert (first.id, first.feature) == (second.id, second.feature) == (number, first.feature)
    own = fields.find("DCGM_EXP_XID_ERRORS_COUNT")
    assert own is not None
    assert own.id is None


def lacking(name: str, gpu: Gpu) -> str:
    text = f"{name}, gauge, x\n"
    return "; ".join(one.text("f") for one in dcgm.unfit(dcgm.read(text, "f"), [gpu]))


def test_an_h100_can_report_everything_that_gpustate_asks_for() -> None:
    assert dcgm.unfit(shipped.counters(), [H100]) == ()


@pytest.mark.parametrize(
    ("name", "gpu", "because"),
    [
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", replace(T4, compute_capability="6.1"), "Volta"),
        (
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            replace(T4, name="NVIDIA GeForce RTX 4090"),
            "data-centre",
        ),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", T4, "ECC is off"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", replace(T4, ecc=None), "no ECC memory"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", T4, "row remapping needs Ampere"),
        ("DCGM_FI_DEV_RETIRED_PENDING", H100, "instead of page retirement"),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", T4, "T4 has no NVLink"),
        (
            "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
            replace(H100, device_id="2901", compute_capability="10.0"),
            "NVLink 5",
        ),
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", T4, "Hopper or newer"),
        ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", replace(H100, fabric_state=""), "no NVLink fabric"),
        ("DCGM_FI_DEV_GPU_UTIL", replace(H100, mig_current=True), "in MIG mode"),
    ],
)
def test_a_field_that_a_gpu_cannot_report_is_named_with_its_line_and_reason(
    name: str, gpu: Gpu, because: str
) -> None:
    said = lacking(name, gpu)
    assert said.startswith(f"f:1: {name}: GPU {gpu.index}: ")
    assert because in said


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_RETIRED_PENDING", "DCGM_FI_PROF_SM_ACTIVE"])
def test_a_turing_gpu_reports_retired_pages_and_profiling(name: str) -> None:
    assert lacking(name, T4) == ""


def test_a_gpu_of_which_nothing_is_known_is_accused_of_nothing() -> None:
    assert dcgm.unfit(shipped.counters(), [Gpu(0)]) == ()


def test_gpus_with_the_same_reason_share_a_line() -> None:
    wanted = dcgm.read("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, x\n", "f")
    (only,) = dcgm.unfit(wanted, [H100, T4, replace(T4, index=2)])
    assert only.gpus == (1, 2)
