"""Whatever a node answers, it is explained: a cause or none, in text, and never an error of ours."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate.diagnosis import chain_probe
from gpustate.explain import clues, script, walk
from gpustate.explain.causes import View
from gpustate.formats.nvml_report import Gpu, NvmlFacts

#: Keys that the fragment prints, taken from its own text.
KEYS = sorted(
    set(re.findall(r"""(?:printf '|print "|echo |s/\^/|installed=|')([a-z_.]+)=""", script.SCRIPT))
)
VALUES = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "",
            "|",
            "1",
            "0",
            "a|b",
            "a|b|c",
            "a|1|ii ",
            "nvidia|570.86.15-1|ii ",
            "/dev/nvidia0|1",
            "-1",
        ]
    ),
    st.sampled_from(
        [
            '{"a": 1}',
            "{}",
            "[]",
            '{"nvidia.com/gpu": ["GPU-a"]}',
            '{"nvidia.com/gpu": 7}',
            '{"spec": 3}',
        ]
    ),
    st.sampled_from(
        ['{"status": {"conditions": [1, {"type": "Ready"}], "capacity": {"nvidia.com/gpu": "x"}}}']
    ),
    st.sampled_from(
        [
            '{"spec": {"unschedulable": true, "taints": [{"key": null}, 4]}, "metadata": {"labels": {"a": 1}}}'
        ]
    ),
    st.sampled_from(
        [
            "NodeName=a State=IDLE+DRAIN Reason=gres/gpu count",
            "fabric.service",
            "nvidia-fabricmanager",
        ]
    ),
)
LINES = st.lists(
    st.tuples(
        st.sampled_from([*KEYS, "unit.Id", "unit.ActiveState", "unit.SubState", "unit.end", "why"]),
        VALUES,
    )
)
SEEN_KEYS = (
    "pci",
    "gpu",
    "on_disk",
    "library",
    "package",
    "major",
    "node",
    "containerd",
    "handler",
    "cdi",
    "device",
    "ctk",
    "version",
)
SEEN = st.lists(st.tuples(st.sampled_from(SEEN_KEYS), VALUES))
NVML = st.sampled_from(
    [
        NvmlFacts(),
        NvmlFacts(error=12),
        NvmlFacts(
            source="nvml",
            gpus=(Gpu(0, uuid="GPU-a", pci="0000:1b:00.0", fabric_state="in progress"),),
        ),
        NvmlFacts(
            source="nvml", gpus=(Gpu(0, error=15), Gpu(1, mig_current=True, mig_pending=True))
        ),
    ]
)


def test_the_keys_are_found() -> None:
    assert len(KEYS) > 35
    assert {"secure_boot", "kube_node", "exposed", "complete"} <= set(KEYS)


@settings(max_examples=tries(150, 50))
@given(lines=LINES, seen=SEEN, nvml=NVML)
def test_any_answer_is_explained(
    lines: list[tuple[str, str]], seen: list[tuple[str, str]], nvml: NvmlFacts
) -> None:
    found = clues.parse("".join(f"{key}={value}\n" for key, value in lines))
    text = "".join(f"{key}={value}\n" for key, value in seen)
    diagnosis = walk.diagnose(View(chain_probe.parse(text, nvml), found))
    assert all(check.evidence for check in diagnosis.checks)
    assert (diagnosis.broken is None) == (diagnosis.name == "")
    if diagnosis.broken is not None:
        assert diagnosis.broken.remedy
        assert len(diagnosis.checks) + len(diagnosis.open) == len(walk.LINKS)
