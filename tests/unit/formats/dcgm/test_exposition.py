"""An exporter's answer: read strictly, and proven to have every wanted field."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import ProbeError
from gpustate.formats import dcgm
from gpustate.formats.dcgm import shipped
from gpustate.formats.nvml_report import Gpu, MigInstance
from gpustate.formats.words import printable

ANSWER = (Path(__file__).parents[3] / "data/dcgm/exporter-h100-mig.prom").read_text("utf-8")
WHOLE = Gpu(
    0,
    "GPU-7f4a1c52-0b6e-4d3f-9c1a-2e5d8b90a101",
    device_id="2330",
    compute_capability="9.0",
    mig_current=False,
    ecc=True,
    remap_failed=False,
    fabric_state="completed",
)
DIVIDED = replace(
    WHOLE,
    index=1,
    uuid="GPU-7f4a1c52-0b6e-4d3f-9c1a-2e5d8b90a102",
    mig_current=True,
    mig_instances=(MigInstance(1, "3g.40gb", 0), MigInstance(2, "3g.40gb", 4)),
)
GPUS = (WHOLE, DIVIDED)


def find_missing(answer: str, gpus: tuple[Gpu, ...] = GPUS) -> list[str]:
    found = dcgm.find_missing(dcgm.parse(answer, "metrics"), shipped.counters(), gpus)
    return [one.text for one in found]


def without(answer: str, *words: str) -> str:
    lines = answer.split("\n")
    return "\n".join(line for line in lines if not all(word in line for word in words))


def test_numbers_labels_and_escapes_are_read() -> None:
    text = (
        'a{x="1\\"\\\\\\n",y="",} NaN\nb 1.5e3 1700000000000\n# EOF\nc{} +Inf\nd { k = "v" } -.5\n'
    )
    a, b, c, d = dcgm.parse(text, "m")
    assert a.labels == {"x": '1"\\\n', "y": ""}
    assert math.isnan(a.value)
    assert (b.value, c.value, d.value) == (1500.0, math.inf, -0.5)
    assert d.labels == {"k": "v"}


@pytest.mark.parametrize(
    "line",
    [
        "<html>",
        "a",
        "a x",
        "a 1 2 3",
        "a 1 x",
        "a 1_000",
        "a ١",
        "a\u00a01",
        "a{",
        'a{x="1"',
        'a{x="1",',
        'a{x="1" 1',
        "a{x=1} 1",
        'a{x="1" y="2"} 1',
        "a{,} 1",
        'a{x="1",x="2"} 1',
        'a{x="\\t"} 1',
        "first 2",
    ],
)
def test_a_line_that_prometheus_would_refuse_is_named(line: str) -> None:
    with pytest.raises(ProbeError, match=r"^m:2: "):
        dcgm.parse(f"first 1\n{line}\n", "m")


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    said = ""
    try:
        dcgm.parse(text, "m")
    except ProbeError as error:
        said = str(error)
    assert printable(said) == said


def test_a_line_without_end_is_read_or_refused_at_once() -> None:
    many = ",".join(f'l{number}="1"' for number in range(50_000))
    (sample,) = dcgm.parse(f"m{{{many}}} 1", "m")
    assert len(sample.labels) == 50_000
    with pytest.raises(ProbeError):
        dcgm.parse("m{" + " " * 500_000 + "x", "m")


_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)


@given(st.dictionaries(_NAMES, st.text(max_size=8), max_size=4), st.floats(allow_nan=False))
def test_what_is_written_is_read_back(labels: dict[str, str], value: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inner = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    (sample,) = dcgm.parse(f"m{{{inner}}} {value!r}", "m")
    assert (sample.labels, sample.value) == (labels, value)


def test_an_answer_with_everything_lacks_nothing() -> None:
    assert find_missing(ANSWER) == []


def test_every_wanted_field_is_missed_when_it_is_gone() -> None:
    asked = [c for c in shipped.counters() if c.field.id is not None and c.type != "label"]
    assert len(asked) >= 20
    for counter in asked:
        said = find_missing(without(ANSWER, f"{counter.field.name}{{", 'gpu="0"'))
        assert len(said) == 1, counter.field.name
        assert said[0].startswith(
            f"{counter.field.name}: GPU 0: missing, though other fields are exported"
        )


def test_one_gpu_instance_without_a_field_is_missed() -> None:
    (said,) = find_missing(without(ANSWER, "DCGM_FI_DEV_FB_USED{", 'GPU_I_ID="2"'))
    assert said.startswith("DCGM_FI_DEV_FB_USED: GPU 1 GPU instance 2: ")


def test_an_instance_made_after_the_exporter_started_is_missed_whole() -> None:
    said = find_missing(without(ANSWER, 'GPU_I_ID="2"'))
    assert len(said) > 20
    assert all("restart the exporter after MIG changes" in line for line in said)


def test_a_gpu_that_vanished_is_missed_whole() -> None:
    said = find_missing(without(ANSWER, 'gpu="0"'))
    assert all("the GPU is missing" in line for line in said)
    assert len(said) > 20


def test_a_field_that_is_wanted_as_a_label_is_looked_for_as_one() -> None:
    said = find_missing(
        ANSWER.replace('DCGM_FI_DRIVER_VERSION="580.178.04"', 'DCGM_FI_DRIVER_VERSION=""')
    )
    assert [line.partition(":")[0] for line in said] == ["DCGM_FI_DRIVER_VERSION"] * 3


@pytest.mark.parametrize("blank", ["NaN", "9223372036854775794", "140737488355330.0"])
def test_a_number_that_stands_for_not_known_is_no_value(blank: str) -> None:
    answer = ANSWER.replace("} 41\n", f"}} {blank}\n")
    assert answer != ANSWER
    assert {line.partition(":")[0] for line in find_missing(answer)} == {"DCGM_FI_DEV_GPU_TEMP"}


def test_what_a_gpu_cannot_report_is_not_asked_of_it() -> None:
    answer = without(ANSWER, "DCGM_FI_DEV_FABRIC_MANAGER_STATUS{")
    assert find_missing(answer) != []
    assert find_missing(answer, tuple(replace(gpu, fabric_state="") for gpu in GPUS)) == []
