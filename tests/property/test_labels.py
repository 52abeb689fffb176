"""Labels, the device plugin's configuration and Slurm's lines, for whatever a node or a person says."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin, labels, slurm
from gpustate.formats.labels import LabelInput, Options
from gpustate.formats.nvml_report import Gpu, MigDevice, NvmlFacts

NAMES = st.sampled_from(["NVIDIA A100-SXM4-40GB", "Tesla T4", "X (R) y", ""]) | st.text(max_size=20)
PROFILES = st.sampled_from(["1g.5gb", "1g.5gb+me", "3g.20gb", "1c.3g.20gb"])
DEVICES = st.builds(
    MigDevice,
    st.just("MIG-1"),
    st.integers(0, 13),
    st.integers(0, 7),
    PROFILES.map(lambda profile: f"NVIDIA A100 MIG {profile}"),
    st.integers(0, 90000),
)
GPUS = st.builds(
    Gpu,
    st.integers(0, 15),
    pci=st.sampled_from(["0000:1b:00.0", "0000:43:00.0"]),
    minor=st.integers(0, 15),
    name=NAMES,
    memory_mib=st.none() | st.integers(0, 300000),
    compute_capability=st.sampled_from(["", "7.5", "9.0", "11.0"]) | st.text(max_size=4),
    mig_current=st.sampled_from([None, False, True]),
    mig_devices=st.lists(DEVICES, max_size=3).map(tuple),
    fabric_state=st.sampled_from(["", "completed"]),
    fabric_status=st.just("success"),
    fabric_cluster=st.sampled_from(["", "a", "b"]),
    fabric_clique=st.none() | st.integers(0, 3),
)
REPORTS = st.builds(
    NvmlFacts,
    driver_version=st.sampled_from(["580.65.06", "580.1"]) | st.text(max_size=8),
    cuda_version=st.sampled_from(["13.0", ""]) | st.text(max_size=5),
    gpus=st.lists(GPUS, max_size=4).map(tuple),
)
SHARINGS = st.sampled_from(
    [
        deviceplugin.NO_SHARING,
        deviceplugin.Sharing("time-slicing", (deviceplugin.Shared("nvidia.com/gpu", 4),)),
        deviceplugin.Sharing("mps", (deviceplugin.Shared("nvidia.com/gpu", 4),), renamed=True),
    ]
)


@given(REPORTS, SHARINGS, st.sampled_from(["none", "single", "mixed"]), st.none() | st.text())
def test_labels_are_told_or_the_problem_is_and_the_order_of_gpus_means_nothing(
    nvml: NvmlFacts, sharing: deviceplugin.Sharing, strategy: str, machine: str | None
) -> None:
    options = Options(strategy, sharing)
    found = labels.compute(LabelInput(nvml, machine=machine), options)
    assert (found.problem is None) == bool(found.values)
    fit = {k: v for k, v in found.values.items() if k not in labels.unfit(found.values)}
    assert labels.parse(labels.as_text(fit)) == fit
    again = labels.compute(LabelInput(nvml, machine=machine), options)
    assert again == found


@given(st.lists(st.binary(max_size=300), max_size=3))
def test_any_configuration_space_is_judged(configs: list[bytes]) -> None:
    labels.vgpus(configs)


@given(st.binary(min_size=200, max_size=200), st.integers(0, 255))
def test_a_random_chain_of_capabilities_ends(rest: bytes, first: int) -> None:
    space = bytearray(256)
    space[6], space[0x34], space[56:] = 0x10, first, rest
    labels.vgpus([bytes(space)])


KEYS = st.sampled_from(
    ["sharing", "timeSlicing", "mps", "resources", "name", "replicas", "flags", "plugin", "version"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | KEYS
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3)
)


@given(TREES)
def test_any_configuration_is_read_or_refused_in_one_line(data: object) -> None:
    text = yaml.safe_dump(data, allow_unicode=True)
    said = ""
    try:
        config = deviceplugin.read(text, "f")
    except PolicyError as error:
        said = str(error)
    else:
        assert deviceplugin.read(deviceplugin.as_text(config), "g").sharing == config.sharing
    assert "\n" not in said


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        deviceplugin.read_all(text, "f")
    except PolicyError:
        pass


LINES = st.lists(st.sampled_from(["Name=tape Count=1", "# c", "", "AutoDetect=off"]), max_size=4)
OURS = st.lists(
    st.sampled_from(["Name=gpu File=/dev/nvidia0", "Name=gpu Type=a"]), min_size=1, max_size=3
)


@given(LINES, st.booleans(), OURS, OURS)
def test_a_gres_conf_is_given_back_to_the_byte(
    lines: list[str], ended: bool, first: list[str], second: list[str]
) -> None:
    text = "\n".join(lines) + ("\n" if ended and lines else "")
    placed = slurm.place(text, first)
    assert slurm.place(placed, first) == placed
    assert slurm.place(slurm.place(placed, second), []) == text


@given(st.sets(st.integers(0, 63)), st.integers(1, 4), st.integers(1, 2))
def test_cores_are_numbers_of_cores(local: set[int], packages: int, threads: int) -> None:
    cores = 32 // packages
    cpus = [
        slurm.Cpu(n, n % packages, n // packages % cores, n % packages)
        for n in range(packages * cores * threads)
    ]
    told = slurm.expand(slurm.core_numbers(cpus, local))
    assert told <= set(range(packages * cores))
    near = {(cpu.package, cpu.core) for cpu in cpus if cpu.number in local}
    assert len(told) in (0, len(near))


@given(st.text(max_size=200), st.integers(0, 4))
def test_any_topology_is_read_or_left(text: str, count: int) -> None:
    rows = slurm.links(text, count)
    assert rows is None or len(rows) == count
