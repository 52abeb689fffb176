"""The device plugin's configuration as a file of the host."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import Disruption, registry
from gpustate.core.policy import build
from gpustate.errors import PolicyError
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.states.device_plugin import PATH, DevicePluginConfigured
from gpustate.testing import FakeNode, converge

UNIT = "nvidia-device-plugin.service"


def sliced(replicas: int = 4, kind: str = "timeSlicing") -> dict[str, Any]:
    return {"sharing": {kind: {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}}}


def node(*gpus: Gpu, active: bool = False, **files: str) -> FakeNode:
    return FakeNode(
        units={UNIT: "active"} if active else {},
        answers={"GpuFacts": NvmlFacts(gpus=gpus)},
        runs={"reload the configuration": lambda fake: None},
    )


def made(**parameters: Any) -> DevicePluginConfigured:
    state = build(registry.get("device-plugin-config"), parameters)
    assert isinstance(state, DevicePluginConfigured)
    return state


def test_the_file_is_written_once_and_taken_away() -> None:
    fake = node()
    first, last = converge(made(config=sliced()), fake)
    assert first.disruption == Disruption.NONE
    assert "replicas: 4" in fake.files[PATH]
    assert not last
    *_, last = converge(made(ensure="absent"), fake)
    assert PATH not in fake.files
    assert not last


def test_a_plugin_that_runs_is_told_to_read_it() -> None:
    fake = node(active=True)
    first, _ = converge(made(config=sliced()), fake)
    assert first.disruption == Disruption.RELOAD
    assert [step.label for step in fake.done][-1] == f"reload the configuration of {UNIT}"


def test_the_one_of_several_is_chosen_for_the_node() -> None:
    named = {"default": {"version": "v1"}, "a100": sliced(2)}
    fake = node()
    list(converge(made(configs=named, selected="a100"), fake))
    assert "replicas: 2" in fake.files[PATH]
    list(converge(made(configs=named), fake))
    assert "replicas" not in fake.files[PATH]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"config": {"sharin": {}}}, "did you mean sharing"),
        ({"config": {"sharing": {"renameByDefault": True}}}, "to sharing.timeSlicing"),
        ({"config": "x"}, "wanted a configuration"),
        ({"config": {}, "configs": {}}, "not both"),
        ({"configs": {"a": {}, "b": {}}}, "select one of a, b"),
        ({"configs": {"a": {}}, "selected": "b"}, "no configuration b"),
        ({"selected": "b"}, "which is not set"),
        ({"path": "x"}, "not an absolute path"),
    ],
)
def test_a_wrong_configuration_is_an_error_before_any_node(
    parameters: dict[str, Any], words: str
) -> None:
    with pytest.raises(PolicyError, match=words):
        made(**parameters)


def test_mps_that_the_gpus_cannot_do_is_refused() -> None:
    mps = made(config=sliced(17, "mps"))
    old = node(Gpu(0, name="Tesla V100", compute_capability="7.0"))
    assert "at most 16 on Tesla V100" in str(mps.refuse(mps.probe(old)))
    divided = node(Gpu(3, name="A100", compute_capability="8.0", mig_current=True))
    assert "GPU 3 has MIG enabled" in str(mps.refuse(mps.probe(divided)))
    new = node(Gpu(0, name="L4", compute_capability="8.9"))
    assert mps.refuse(mps.probe(new)) is None
