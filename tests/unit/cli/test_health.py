"""``gpustate health`` and ``gpustate node quarantine``: what they show, what they write, one line for whatever is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import Cli

from gpustate.cli import health
from gpustate.diagnosis import chain, chain_probe
from gpustate.diagnosis.chain_data import ChainObservation, PciSeen
from gpustate.errors import UsageError
from gpustate.formats import quarantine
from gpustate.formats.nvml_report import GpuHealth
from gpustate.formats.quarantine import Entry, Quarantine
from gpustate.probes.gpu_facts import Gpu, NvmlFacts
from gpustate.testing import FakeNode

GPUS = tuple(
    Gpu(n, f"GPU-{n}", f"0000:0{n}:00.0", name="H100", health=GpuHealth(recovery_action=0))
    for n in range(3)
)
NVML = NvmlFacts(source="nvml", gpus=GPUS)
KNOWN = tuple((gpu.uuid, gpu.pci) for gpu in GPUS)
ENTRY = Entry("GPU-1", "0000:01:00.0", "RMA 4711", 200, 50, "somebody")
XID = "[   50.0] NVRM: Xid (PCI:0000:02:00): {}, pid=1"


ON_PCI = tuple(f"pci={gpu.pci}|2330|030200|nvidia" for gpu in GPUS)
LIBRARIES = (
    "version=NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
    *(
        f"library={name}.so.1|/usr/lib/{name}.so.1|/usr/lib/{name}.so.580.65.06"
        for name in ("libcuda", "libnvidia-ml")
    ),
)
SWITCH = "pci=0000:09:00.0|22a3|068000|nvidia-nvswitch"
LISTED = tuple(f"gpu={gpu.pci}|{gpu.index}|{gpu.uuid}" for gpu in GPUS)


def look(nvml: NvmlFacts, *lines: str, libraries: tuple[str, ...] = LIBRARIES) -> dict[str, object]:
    node = FakeNode(
        answers={"GpuFacts": nvml},
        shell={
            "proof.json": (1, ""),
            "NVRM: Xid": (0, "".join(f"{one}\n" for one in (*ON_PCI, *LISTED, *libraries, *lines))),
        },
    )
    return health._health(node)


def states(found: dict[str, object]) -> list[str]:
    gpus = found["gpus"]
    assert isinstance(gpus, list)
    return [gpu["state"] for gpu in gpus]


def held(*entries: Entry, now: int = 100) -> tuple[str, str]:
    return f"quarantine={json.dumps(json.loads(quarantine.as_text(entries)))}", f"now={now}"


def test_each_gpu_has_a_state_and_its_findings() -> None:
    assert states(look(NVML)) == ["well", "well", "well"]
    bad = replace(NVML, gpus=(GPUS[0], replace(GPUS[1], remap_failed=True), GPUS[2]))
    assert states(look(bad, f"xid={XID.format(95)}")) == ["well", "failed", "warning"]
    assert states(look(bad, *held(ENTRY))) == ["well", "quarantine", "well"]
    over = look(bad, *held(ENTRY, now=200))
    assert states(over) == ["well", "failed", "well"]
    assert over["quarantine_ended"] == [ENTRY.text]


@pytest.mark.parametrize(
    ("lines", "libraries", "what", "words"),
    [
        (
            (SWITCH,),
            LIBRARIES,
            "fabric",
            "the node has NVSwitches, and Fabric Manager does not run",
        ),
        (
            (
                "odd=libcuda.so.1|/usr/lib/libcuda.so.1 leads to libcuda.so.580.65.06, which does not exist",
            ),
            (LIBRARIES[0], LIBRARIES[2]),
            "libraries",
            "which does not exist",
        ),
    ],
)
def test_gpus_that_no_program_can_use_are_no_good_node(
    lines: tuple[str, ...],
    libraries: tuple[str, ...],
    what: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = look(NVML, *lines, libraries=libraries)
    (other,) = _list(found["others"])
    assert (other["what"], other["level"]) == (what, "failed")
    assert words in str(other["evidence"])
    health._page([{"name": "n1", **found}])
    assert capsys.readouterr().out.startswith(f"n1  3 well, the node failed ({what})\n")
    assert look(NVML, SWITCH, "manager=1")["others"] == []


def test_an_xid_of_a_gpu_that_is_gone_counts(capsys: pytest.CaptureFixture[str]) -> None:
    found = look(replace(NVML, gpus=GPUS[:2]), f"xid={XID.format(79)}")
    assert [one["what"] for one in _list(found["others"])] == ["xid", "missing"]
    health._page([{"name": "n1", **found}])
    assert capsys.readouterr().out.startswith("n1  2 well, 1 failed\n")
    assert {one["pci"] for one in _list(found["others"])} == {"0000:02:00.0"}


NODES = tuple(f"node=/dev/{name}|character special file|c3|{minor:x}"
              for name, minor in (("nvidia0", 0), ("nvidia2", 2), ("nvidiactl", 255)))  # fmt: skip


def test_a_gpu_without_device_node_is_missing_and_not_one_well_gpu_less() -> None:
    seen = replace(NVML, gpus=(GPUS[0], GPUS[2]))
    found = look(seen, *NODES)
    assert states(found) == ["well", "well"]
    (other,) = _list(found["others"])
    assert (other["pci"], other["level"]) == ("0000:01:00.0", "failed")
    assert other["evidence"] == "GPU-1: /dev/nvidia1 is missing"
    assert "nvidia-modprobe -c=1;" in str(other["remedy"])
    assert look(seen, *NODES, *held(ENTRY))["others"] == []


def test_a_node_without_nvml_or_with_a_torn_file_is_an_error() -> None:
    nothing = NvmlFacts(error=9, error_text="driver not loaded")
    assert str(look(nothing)["error"]).startswith(
        "NVML: driver not loaded; diagnose it: gpustate explain"
    )
    assert "cannot be read" in str(look(NVML, "quarantine=x", "now=1")["error"])


def test_a_node_whose_every_gpu_is_in_quarantine_fails_as_its_validation_does() -> None:
    entries = tuple(replace(ENTRY, uuid=gpu.uuid, pci=gpu.pci) for gpu in GPUS)
    found = look(NVML, *held(*entries))
    assert states(found) == ["quarantine"] * 3
    (other,) = found["others"]  # type: ignore[misc]
    assert str(other["evidence"]).startswith("every GPU is in quarantine: ")
    assert health._faults({**found, "name": "gpu1"}) == [other["evidence"]]
    assert look(NVML, *held(*entries[:2]))["others"] == []


def test_gpus_that_are_gone_are_missed_until_the_policy_accepts_it() -> None:
    here = tuple(PciSeen(gpu.pci, "2330", "030200", "nvidia") for gpu in GPUS[:2])
    observed = ChainObservation(pci=here, nvml=replace(NVML, gpus=GPUS[:2]), recorded_gpus=KNOWN)
    for gpus, gone in ((None, (KNOWN[2],)), (3, (KNOWN[2],)), (2, ())):
        assert chain.missing(observed, chain.Expected(gpus=gpus)) == gone


def changed(observed: ChainObservation, gpu: str | None, *, end: bool = False) -> tuple[Entry, ...]:
    return health._new_entries(observed, 100, gpu, "why", 60, end, "me")


@pytest.mark.parametrize("gpu", ["2", "GPU-2", "0000:02:00.0"])
def test_a_gpu_is_taken_out_of_use_and_back_and_others_stay(gpu: str) -> None:
    observed = ChainObservation(nvml=NVML, quarantine=Quarantine((ENTRY,), 100))
    made = changed(observed, gpu)
    assert made == (ENTRY, Entry("GPU-2", "0000:02:00.0", "why", 160, 100, "me"))
    assert changed(replace(observed, quarantine=Quarantine(made, 100)), gpu, end=True) == (ENTRY,)
    assert changed(observed, None, end=True) == ()


def test_a_gpu_in_quarantine_gets_another_end_and_what_is_over_goes() -> None:
    observed = ChainObservation(
        nvml=NVML,
        quarantine=Quarantine((ENTRY, replace(ENTRY, uuid="GPU-0", pci="", until=99)), 100),
    )
    assert changed(observed, "1") == (Entry("GPU-1", "0000:01:00.0", "why", 160, 100, "me"),)


def test_a_lost_gpu_is_named_by_its_place() -> None:
    listed = "".join(f"gpu={gpu.pci}|-1|?\n" for gpu in GPUS)
    lost = chain_probe.parse(listed, replace(NVML, gpus=(*GPUS[:2], Gpu(2, error=15))))
    for name in ("2", "0000:02:00.0"):
        (entry,) = changed(lost, name)
        assert (entry.uuid, entry.pci) == ("", "0000:02:00.0")
    with pytest.raises(UsageError, match="no GPU '7' on this node"):
        changed(lost, "7")
    with pytest.raises(UsageError, match="is not in quarantine"):
        changed(lost, "1", end=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "1"), "a quarantine needs --reason"),
        (("--gpu", "1", "-m", "x"), "a quarantine needs --for 8h"),
        (("-m", "x"), "name it with --gpu"),
        (("--end", "--gpu", "4", "--for", "1d"), "--end contradicts --reason and --for"),
        (("--end", "-m", "x"), "--end contradicts --reason and --for"),
        (("--gpu", "1", "-m", "x", "--for", "soon"), "write 30m, 8h or 7d"),
        (("--gpu", "1", "-m", "x", "--for", "0d"), "write 30m, 8h or 7d"),
        (("--gpu", "1", "-m", "x", "--for", "400d"), "up to a year"),
        (("--gpu", "1", "-m", "a\nb", "--for", "1d"), "to one line"),
        (("--gpu", "1", "-m", " ", "--for", "1d"), "to one line"),
    ],
)
def test_what_makes_no_sense_is_one_line(gpustate: Cli, words: tuple[str, ...], said: str) -> None:
    done = gpustate("node", "quarantine", "-i", "a,b", *words)
    assert done.status == 1
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_node_that_has_no_gpus_ends_in_an_error(gpustate: Cli, project: Path) -> None:
    (project / "hosts.yml").write_text(
        "all: {hosts: {here: {ansible_connection: local, gpustate_state_folder: "
        f"{project}/state}}}}}}\n"
    )
    done = gpustate("health", "-i", "hosts.yml", "-o", "json")
    data = json.loads(done.out)
    assert data["format"] == "gpustate.health/1"
    if "error" in data["nodes"][0]:  # no driver here
        assert done.status == 1


def _list(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return list(value)
