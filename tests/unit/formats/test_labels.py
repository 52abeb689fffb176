"""GFD's labels: what its own tests expect of each kind of node (NVIDIA/k8s-device-plugin v0.20.0,
internal/lm/*_test.go, internal/vgpu), as facts; its GPU is called MOCKMODEL, 300 MiB, 8.0 without MIG."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpustate.formats import labels
from gpustate.formats.deviceplugin import NO_SHARING, Shared, Sharing
from gpustate.formats.labels import LabelInput, Options, VGpu, compute
from gpustate.formats.nvml_report import Gpu, MigDevice, NvmlFacts

TWICE = Sharing("time-slicing", (Shared("nvidia.com/gpu", 2),))
ENGINES = {
    "engines.copy": "0",
    "engines.decoder": "0",
    "engines.encoder": "0",
    "engines.jpeg": "0",
    "engines.ofa": "0",
}


def full(index: int = 0, **fields: object) -> Gpu:
    values: dict[str, object] = {
        "name": "MOCKMODEL",
        "memory_mib": 300,
        "compute_capability": "8.0",
    }
    return Gpu(index, pci=f"0000:{index:02x}:00.0", **{**values, **fields})  # type: ignore[arg-type]


def divided(index: int, *devices: MigDevice) -> Gpu:
    """A GPU with MIG enabled; GFD's mock of one has no compute capability."""
    return full(index, compute_capability="", mig_current=True, mig_devices=devices)


def mig(profile: str, memory_mib: int = 100, **fields: int) -> MigDevice:
    gi = int(profile.partition("g.")[0])
    given = {"gi_slices": gi, "ci_slices": 2, "multiprocessors": 0, **fields}
    return MigDevice("MIG-1", 0, 0, f"MOCKMODEL MIG {profile}", memory_mib, **given)


def nvml(*gpus: Gpu, **fields: object) -> NvmlFacts:
    values: dict[str, object] = {"driver_version": "400.300", "cuda_version": "8.0", "gpus": gpus}
    return NvmlFacts(source="nvml", driver_loaded=True, **{**values, **fields})  # type: ignore[arg-type]


def told(*gpus: Gpu, strategy: str = "none", sharing: Sharing = NO_SHARING) -> labels.Labels:
    return compute(LabelInput(nvml(*gpus)), Options(strategy, sharing))


def of_gpu(found: labels.Labels) -> dict[str, str]:
    """The labels of ``nvidia.com/gpu`` alone, and the strategy."""
    skipped = ("machine", "mode")
    out = {
        name.removeprefix("nvidia.com/gpu."): value
        for name, value in found.values.items()
        if name.startswith("nvidia.com/gpu.")
    }
    strategy = found.values.get("nvidia.com/mig.strategy")
    out |= {"strategy": strategy} if strategy else {}
    return {name: value for name, value in out.items() if name not in skipped}


def expected(product: str, count: int, replicas: int, sharing: str, **more: str) -> dict[str, str]:
    return {
        "product": product,
        "count": str(count),
        "replicas": str(replicas),
        "sharing-strategy": sharing,
        "memory": "300",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


AMPERE = {"family": "ampere", "compute_major": "8", "compute_minor": "0"}


@pytest.mark.parametrize(
    ("gpus", "sharing", "wanted"),
    [
        ((full(),), NO_SHARING, expected("MOCKMODEL", 1, 1, "none", **AMPERE)),
        ((full(),), TWICE, expected("MOCKMODEL-SHARED", 1, 2, "time-slicing", **AMPERE)),
        ((full(0), full(1)), TWICE, expected("MOCKMODEL-SHARED", 2, 2, "time-slicing", **AMPERE)),
        ((divided(0),), TWICE, expected("MOCKMODEL", 1, 0, "none")),
        ((divided(0), divided(1)), TWICE, expected("MOCKMODEL", 2, 0, "none")),
        (
            (divided(0), full(1)),
            TWICE,
            expected("MOCKMODEL-SHARED", 2, 2, "time-slicing", **AMPERE),
        ),
    ],
)
def test_without_a_mig_strategy_whole_gpus_are_described(
    gpus: tuple[Gpu, ...], sharing: Sharing, wanted: dict[str, str]
) -> None:
    assert of_gpu(told(*gpus, sharing=sharing)) == wanted


INVALID = {**expected("MOCKMODEL-MIG-INVALID", 0, 0, "", strategy="single"), "memory": "0"}


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        ((full(),), expected("MOCKMODEL", 1, 1, "none", strategy="single", **AMPERE)),
        (
            (divided(0, mig("1g.100gb")),),
            {
                **expected("MOCKMODEL-MIG-1g.100gb", 1, 1, "none", strategy="single"),
                **ENGINES,
                "memory": "100",
                "multiprocessors": "0",
                "slices.gi": "1",
                "slices.ci": "2",
            },
        ),
        (
            (
                divided(0, mig("1g.100gb", multiprocessors=12, copy_engines=13, ofa_engines=17)),
                divided(1, mig("1g.100gb", multiprocessors=12, copy_engines=13, ofa_engines=17)),
            ),
            {
                **expected("MOCKMODEL-MIG-1g.100gb", 2, 1, "none", strategy="single"),
                **ENGINES,
                "memory": "100",
                "multiprocessors": "12",
                "engines.copy": "13",
                "engines.ofa": "17",
                "slices.gi": "1",
                "slices.ci": "2",
            },
        ),
        ((divided(0),), INVALID),
        ((divided(0, mig("1g.100gb"), mig("3g.100gb")),), INVALID),
        (
            (divided(0, mig("1g.100gb")), full(1)),
            INVALID | {"family": "ampere", "compute.major": "8", "compute.minor": "0"},
        ),
        (
            (divided(0, mig("1g.100gb")), full(1), divided(2)),
            INVALID | {"family": "ampere", "compute.major": "8", "compute.minor": "0"},
        ),
    ],
)
def test_the_strategy_single_calls_mig_devices_gpus_or_says_that_it_does_not_hold(
    gpus: tuple[Gpu, ...], wanted: dict[str, str]
) -> None:
    assert of_gpu(told(*gpus, strategy="single")) == wanted


def test_the_strategy_mixed_has_labels_for_each_profile_beside_those_of_the_gpu() -> None:
    found = told(
        divided(0, mig("3g.20gb", 20), mig("1g.5gb+me", 5), mig("3g.20gb", 20)), strategy="mixed"
    ).values
    assert found["nvidia.com/mig-3g.20gb.count"] == "2"
    assert found["nvidia.com/mig-3g.20gb.product"] == "MOCKMODEL-MIG-3g.20gb"
    assert found["nvidia.com/mig-1g.5gb.me.memory"] == "5"
    assert found["nvidia.com/gpu.product"] == "MOCKMODEL"
    assert found["nvidia.com/mig.strategy"] == "mixed"


def test_a_shared_profile_has_its_own_replicas() -> None:
    sharing = Sharing("time-slicing", (Shared("nvidia.com/mig-1g.5gb", 3),))
    found = told(divided(0, mig("1g.5gb", 5)), strategy="mixed", sharing=sharing).values
    assert found["nvidia.com/mig-1g.5gb.product"] == "MOCKMODEL-MIG-1g.5gb-SHARED"
    assert found["nvidia.com/mig-1g.5gb.replicas"] == "3"
    assert found["nvidia.com/mig-1g.5gb.sharing-strategy"] == "time-slicing"
    assert found["nvidia.com/gpu.replicas"] == "0"


def test_a_renamed_resource_keeps_its_product_without_the_suffix() -> None:
    renamed = Sharing("time-slicing", (Shared("nvidia.com/gpu", 2),), renamed=True)
    found = told(full(), sharing=renamed).values
    assert (found["nvidia.com/gpu.product"], found["nvidia.com/gpu.replicas"]) == ("MOCKMODEL", "2")


def test_versions_stand_under_their_new_and_their_old_names() -> None:
    observed = LabelInput(nvml(full(), driver_version="580.65.06", cuda_version="13.0"))
    found = compute(observed, Options()).values
    assert found["nvidia.com/cuda.driver-version.full"] == "580.65.06"
    assert found["nvidia.com/cuda.driver-version.revision"] == "06"
    assert found["nvidia.com/cuda.driver.rev"] == "06"
    assert found["nvidia.com/cuda.runtime-version.full"] == "13.0"
    assert found["nvidia.com/cuda.runtime.minor"] == "0"
    assert told(full()).values["nvidia.com/cuda.driver-version.revision"] == ""


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("3.7", "kepler"),
        ("7.0", "volta"),
        ("7.5", "turing"),
        ("8.6", "ampere"),
        ("8.9", "ada-lovelace"),
        ("9.0", "hopper"),
        ("10.3", "blackwell"),
        ("11.0", "undefined"),
        ("12.0", "blackwell"),
        ("13.0", "rubin"),
    ],
)
def test_the_family_is_that_of_the_compute_capability(capability: str, family: str) -> None:
    found = told(full(compute_capability=capability)).values
    assert found["nvidia.com/gpu.family"] == family


@pytest.mark.parametrize(
    ("machine", "label"),
    [
        ("DGXH100\n", "DGXH100"),
        ("Some  Box (R), Inc. X-1", "Some-Box-R-Inc.-X-1"),
        (None, "unknown"),
        ("", ""),  # GFD calls it unknown only where the file cannot be read
        (" \t\n", ""),
    ],
)
def test_the_machine_is_written_as_a_label_can_be(machine: str | None, label: str) -> None:
    found = compute(LabelInput(nvml(full()), machine=machine), Options()).values
    assert found["nvidia.com/gpu.machine"] == label


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        ({"0000:00:00.0": "030200", "0000:01:00.0": "030200"}, "compute"),
        ({"0000:00:00.0": "030000", "0000:01:00.0": "030000"}, "graphics"),
        ({"0000:00:00.0": "030000", "0000:01:00.0": "030200"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_the_mode_is_the_class_all_gpus_have(classes: dict[str, str], mode: str) -> None:
    found = compute(LabelInput(nvml(full(0), full(1)), classes), Options()).values
    assert found["nvidia.com/gpu.mode"] == mode


def test_the_clique_is_named_where_all_attached_gpus_agree() -> None:
    fabric = {
        "fabric_state": "completed",
        "fabric_status": "success",
        "fabric_cluster": "2a0f3cb6-0000-4c2e-9d3e-1f00aa00bb01",
    }
    one, two = full(0, **fabric, fabric_clique=3), full(1, **fabric, fabric_clique=3)
    label = "nvidia.com/gpu.clique"
    assert told(one, two).values[label] == "2a0f3cb6-0000-4c2e-9d3e-1f00aa00bb01.3"
    other = full(1, **fabric, fabric_clique=4)
    assert label not in told(one, other).values
    assert any("cliques" in note for note in told(one, other).notes)
    assert label not in told(full(0, fabric_state="in progress")).values


def test_a_node_with_two_models_always_gets_the_same_labels_and_a_note() -> None:
    other = {"name": "OTHER", "memory_mib": 500}
    one = told(full(0), full(1, **other), full(2, **other))
    assert one.values == told(full(0, **other), full(1, **other), full(2)).values
    assert one.values["nvidia.com/gpu.product"] == "OTHER"
    assert one.values["nvidia.com/gpu.count"] == "2"
    assert "1 x MOCKMODEL" in one.notes[0]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (NvmlFacts(error=9), "driver not loaded (9)"),
        (nvml(full(error=15)), "GPU 0 does not respond (NVML error 15)"),
        (nvml(full(), driver_version="unknown"), "wanted X.Y"),
        (nvml(full(), cuda_version=""), "CUDA version is unknown"),
    ],
)
def test_what_cannot_be_told_is_a_problem_and_no_label(facts: NvmlFacts, words: str) -> None:
    found = compute(LabelInput(facts), Options())
    assert found.problem is not None
    assert words in found.problem
    assert not found.values


def test_mps_is_capable_when_configured_and_impossible_with_mig() -> None:
    sharing = Sharing("mps", (Shared("nvidia.com/gpu", 4),))
    assert told(full(), sharing=sharing).values["nvidia.com/mps.capable"] == "true"
    assert told(full()).values["nvidia.com/mps.capable"] == "false"
    assert "cannot be shared with MPS" in str(told(divided(0), sharing=sharing).problem)


def test_nvidia_smi_alone_does_not_describe_mig_devices() -> None:
    bare = MigDevice("MIG-1", None, None, "MIG 1g.10gb")
    assert told(divided(0, bare)).problem is None
    assert "install a complete python3" in str(told(divided(0, bare), strategy="mixed").problem)


def config_space(capability: bytes) -> bytes:
    space = bytearray(256)
    space[6], space[0x34] = 0x10, 0xD0
    space[0xD0 : 0xD0 + len(capability)] = capability
    return bytes(space)


VGPU = b"\x09\x00\x1bVF\x00\x16" + b"460.16".ljust(10, b"\0") + b"r460_00".ljust(10, b"\0")


def test_a_vgpu_tells_the_driver_of_its_host() -> None:
    assert labels.vgpus([config_space(VGPU)]) == (VGpu("460.16", "r460_00"),)
    assert labels.vgpus([config_space(b"\x09\x00\x14\x01")]) == ()
    assert labels.vgpus([bytes(256)]) == ()
    assert labels.vgpus([bytes(64)]) is None
    found = compute(LabelInput(nvml(full()), vgpus=(VGpu("460.16", "r460_00"),)), Options()).values
    assert found["nvidia.com/vgpu.present"] == "true"
    assert found["nvidia.com/vgpu.host-driver-branch"] == "r460_00"


@pytest.mark.parametrize(
    "capability",
    [
        b"\x09\xd0\x1bVF\x01\x00",  # a record of no length, a chain that loops
        b"\x05\xd0\x00",
        b"\x09\x00\xffVF\x01\x30",
        b"\x09\x00\x08VF\x00\x16",
    ],
)
def test_a_torn_capability_is_no_vgpu_and_no_endless_loop(capability: bytes) -> None:
    assert labels.vgpus([config_space(capability)]) in (None, ())


def test_a_feature_file_is_read_as_nfd_reads_it() -> None:
    text = labels.as_text({"b/x": "1", "a/y": ""})
    assert text == "a/y=\nb/x=1\n"
    assert labels.parse(f"# c\n\n{text} c/z \n{labels.TIMESTAMP}=17\n") == {
        "a/y": "",
        "b/x": "1",
        "c/z": "true",
    }


def test_nfd_and_gpustate_agree_on_recorded_answers() -> None:
    file = Path(__file__).parents[2] / "data/nfd/feature-file-answers.json"
    answers = json.loads(file.read_text())["answers"]
    assert len(answers) > 50
    for answer in answers:
        assert labels.parse(answer["text"]) == answer["labels"], answer["text"]


@pytest.mark.parametrize("value", ["O.E.M.", "-x", "a b", "x" * 64, "é"])
def test_values_that_kubernetes_would_refuse_are_found(value: str) -> None:
    assert list(labels.unfit({"nvidia.com/gpu.machine": value, "nvidia.com/fine": "1.0"})) == [
        "nvidia.com/gpu.machine"
    ]
