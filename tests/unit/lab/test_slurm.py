from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from gpustate.errors import LabError
from gpustate_lab import images, paths, slurm_files
from gpustate_lab.network import Network
from gpustate_lab.node import Node
from gpustate_lab.record import Lab, load, write_record
from gpustate_lab.slurm import parse_states
from gpustate_lab.spec import LabSpec, NodeSpec

NETWORK = Network(tag="00000000", subnet=IPv4Network("10.217.0.0/24"))
#: As scontrol 22.05 and 24.11 print them, shortened.
SHOWN = """\
NodeName=gpu1 Arch=x86_64 Gres=gpu:h100:8 OS=Linux 6.1 #1 SMP  State=IDLE+DRAIN+INVALID_REG ThreadsPerCore=1   Reason=gres/gpu count reported lower than configured (7 < 8) [slurm@2026-11-23T16:33:00]
NodeName=gpu2 Gres=gpu:h100:8 State=DOWN*+DRAIN Reason=Not responding [slurm@2026-11-23T16:33:00]
NodeName=gpu3 Gres=(null) State=UNKNOWN+NOT_RESPONDING
NodeName=gpu4 Gres=(null) State=UNKNOWN+DRAIN+INVALID_REG Reason=x [slurm@2026-11-23T16:33:00]
NodeName=gpu5 Gres=(null) State=IDLE ThreadsPerCore=1
"""


def machine(directory: Path, spec: NodeSpec) -> Node:
    return Node(directory, NETWORK, spec, (directory / "layer",), ())


def test_states_have_flags_and_the_reason_without_its_author() -> None:
    states = parse_states(SHOWN)
    assert states["gpu1"].flags == {"IDLE", "DRAIN", "INVALID_REG"}
    assert states["gpu1"].reason == "gres/gpu count reported lower than configured (7 < 8)"
    assert states["gpu2"].flags == {"DOWN", "DRAIN", "NOT_RESPONDING"}
    assert states["gpu5"].reason == ""


def test_a_node_with_too_few_gpus_has_registered_and_a_silent_one_has_not() -> None:
    states = parse_states(SHOWN)
    assert [name for name, one in states.items() if one.registered] == ["gpu1", "gpu4", "gpu5"]


@pytest.mark.parametrize(
    ("gpus", "value"),
    [("8xH100", "gpu:h100:8"), ("none", ""), ("4xL40S,1xT4", "gpu:l40s:4,gpu:t4:1")],
)
def test_slurm_conf_counts_the_gpus_of_the_lab(gpus: str, value: str) -> None:
    assert slurm_files.gres_value(gpus) == value


def test_an_image_without_munge_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/slurm.conf").write_text("")
    with pytest.raises(LabError, match="has no user munge"):
        slurm_files.fill(tmp_path, tmp_path)


def test_releases_with_different_versions_of_slurm_are_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.CACHE_VARIABLE, str(tmp_path))
    said: list[str] = []
    with pytest.raises(LabError, match=r"cannot span bookworm and trixie.*of one Debian release"):
        images.prepare(["debian12", "debian13"], said.append, slurm=True)
    assert said == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slurm", [True, False])
def test_a_record_keeps_the_head(tmp_path: Path, slurm: bool) -> None:
    spec = LabSpec(slurm=slurm)
    nodes = tuple(machine(tmp_path, node) for node in spec.node_specs())
    wanted = spec.head_spec()
    head = None if wanted is None else machine(tmp_path, wanted)
    lab = Lab(spec, tmp_path, NETWORK, nodes, complete=True, head=head)
    again = load(write_record(lab, complete=True))
    assert again == lab
    assert [one.name for one in again.machines] == [*(["slurm"] if slurm else []), "gpu1", "gpu2"]


def test_a_key_that_machines_have_already_is_not_replaced(tmp_path: Path) -> None:
    head = LabSpec(slurm=True).head_spec()
    assert head is not None
    slurm_files.write(tmp_path, machine(tmp_path, head), [])
    before = (tmp_path / "slurm/munge.key").read_bytes()
    slurm_files.write(tmp_path, machine(tmp_path, head), [])
    assert (tmp_path / "slurm/munge.key").read_bytes() == before
