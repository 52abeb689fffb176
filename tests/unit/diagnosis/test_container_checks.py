"""Each way in which a container does not get its GPUs is recognised by what programs print."""

from __future__ import annotations

from dataclasses import replace

import pytest
from containerresults import GPUS, OF_CRUN, RESULTS, SHIM, ran

from gpustate.diagnosis import chain, container_checks


def test_every_kind_has_an_example() -> None:
    names = [kind.name for kind in container_checks.KINDS]
    assert len(names) == len(set(names)) >= 15
    assert set(names) == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_a_failure_is_recognised_and_has_evidence_and_a_next_step(name: str) -> None:
    found = container_checks.failure(RESULTS[name], GPUS)
    assert found is not None
    assert found.kind.name == name
    assert found.kind.summary in found.evidence
    assert found.kind.remedy
    assert len(found.evidence) < 800


@pytest.mark.parametrize("name", ["dev-char", "hook-devices"])
def test_of_many_devices_two_are_named(name: str) -> None:
    devices = tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for number in range(124))
    kind = replace(RESULTS[name], unlisted=devices, hooked=devices if RESULTS[name].hooked else ())
    found = container_checks.failure(kind, GPUS)
    assert found is not None
    assert found.evidence.count("nvidia-cap") <= 3 * 2
    assert len(found.evidence) < 400


@pytest.mark.parametrize(
    ("way", "old"),
    [
        ("podman 4.3.1", True),
        ("podman 5.0.3", True),
        ("podman 5.1.0", False),
        ("docker 25.0.3", True),
        ("docker 26.0.1", True),
        ("docker 26.1.0", False),
        ("containerd 1.7.24, handler nvidia", False),
    ],
)
def test_a_runtime_that_reads_only_older_specifications_is_named(way: str, old: bool) -> None:
    error = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
    found = container_checks.failure(replace(RESULTS["cdi-unresolved"], way=way, error=error), GPUS)
    assert found is not None
    assert found.kind.name == ("cdi-version" if old else "cdi-unresolved")
    assert ("no-additional-gids-for-device-nodes" in found.kind.remedy) is old


def test_a_missing_shim_is_recognised_by_either_text_of_containerd() -> None:
    # containerd 1.7.24, with and without the shim's path in its memory.
    later = "ctr: failed to start shim: start failed: : fork/exec /usr/bin/containerd-shim-runc-v2: no such file or directory: unknown"
    assert container_checks.classify(later).name == "shim-missing"


@pytest.mark.parametrize(("name", "text"), OF_CRUN)
def test_a_failure_is_recognised_by_the_words_of_crun(name: str, text: str) -> None:
    assert container_checks.classify(f"{SHIM}crun: {text}: unknown").name == name


def test_a_container_with_every_gpu_has_no_failure() -> None:
    assert container_checks.failure(ran(), GPUS) is None
    assert container_checks.failure(replace(ran(), cuda_ok=0), GPUS) is None  # no kernel was wanted


def test_what_was_injected_is_named_when_something_is_missing() -> None:
    found = container_checks.failure(RESULTS["gpus-missing"], GPUS)
    assert found is not None
    assert "1 of 2; not GPU-bbbbbbbb" in found.evidence
    assert "injected: nvidia0, nvidiactl; libcuda.so.580.65.06" in found.evidence


def test_the_first_container_that_failed_is_the_cause() -> None:
    observed = chain.ChainObservation(
        containers=(ran(), RESULTS["hook-failed"], RESULTS["disk-full"])
    )
    found = container_checks.first_failure(observed)
    assert found is not None
    assert found.kind.name == "hook-failed"


def test_a_long_text_keeps_its_end_where_the_reason_is() -> None:
    text = 'time="2026-11-23T16:21:53Z" level=error msg="x" ' + "y " * 500 + "the reason"
    assert container_checks.short(text).endswith("the reason")
    assert "level=error" not in container_checks.short(text[:60])
