"""What an explanation does when a node is slow, silent or half there."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from nodetrees import Tree, World

from gpustate.diagnosis import chain, health
from gpustate.errors import ProbeError
from gpustate.explain import scheduling, walk
from gpustate.explain.causes import View
from gpustate.explain.clues import parse
from gpustate.probes.cri_status import CriStatus


def test_a_program_that_hangs_is_given_up_and_named(tmp_path: Path) -> None:
    tree = Tree(World(), tmp_path / "node")
    tree.program("containerd", "sleep 900\n")
    (tree.bin / "sleep").symlink_to("/bin/sleep")
    began = time.monotonic()
    found = walk.diagnose(tree.view())
    assert time.monotonic() - began < 120
    assert found.name == "containerd-configuration-broken"
    assert found.broken is not None
    assert "ended with 124" in found.broken.evidence


def test_one_program_that_hangs_leaves_an_explanation_under_fifteen_seconds() -> None:
    """By the limits themselves: a second more is given to whoever does not heed a TERM."""
    assert max(walk.NVML_S, walk.PROGRAM_S + 2, walk.script.SILENT_S) + 3 < 15
    assert f"timeout -k 1 ${{limit:-{walk.PROGRAM_S}}}" in walk.script.SCRIPT


def test_a_node_that_never_comes_to_its_end_is_told_and_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(World(), tmp_path / "node")
    tree.program("uname", "sleep 900\n")
    (tree.bin / "sleep").symlink_to("/bin/sleep")
    monkeypatch.setattr(walk, "CHAIN_S", 1)
    with pytest.raises(ProbeError, match="a program hangs: the probe did not finish within 1 s"):
        walk.query(tree)


def test_traces_that_were_cut_short_accuse_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.unit("kubelet", "failed/failed/enabled", "error: swap is on")
    tree = Tree(world, tmp_path / "node")
    tree.program("gcc", "")
    whole = tree.view()
    assert walk.diagnose(whole).name == "kubelet-down"
    monkeypatch.setattr(walk.script, "SCRIPT", walk.script.SCRIPT.replace("echo complete=1", ":"))
    view = tree.view()
    assert view.cut_short
    assert walk.diagnose(view).broken is None


def test_every_link_of_the_chain_is_walked_in_its_order() -> None:
    assert walk.LINKS[:4] == ("pci", "driver", "libraries", "fabric")
    assert walk.LINKS[-5:] == ("rdma", "discovery", "device-plugin", "scheduler", "metrics")
    assert set(walk.chain.LINKS) < set(walk.LINKS)


def test_a_link_whose_cause_is_not_known_here_keeps_its_own_words(tmp_path: Path) -> None:
    world = World()
    world.one_gpu(1, remap_failed=True)
    found = walk.diagnose(Tree(world, tmp_path / "node").view())
    assert found.broken is not None
    assert (found.broken.name, found.name, found.cause) == ("health", "health-broken", None)
    assert found.broken.evidence
    assert found.broken.remedy
    assert health.failed(health.judge(world.nvml))


@pytest.mark.parametrize(("gres", "missing"), [("gpu:h100:8(S:0-1)", False), ("(null)", True)])
def test_a_node_without_gpus_in_slurm_is_told_the_state(gres: str, missing: bool) -> None:
    clues = parse(f"slurm=NodeName=gpu1 Gres={gres} State=IDLE Partitions=all\n")
    check = scheduling.check_scheduler(View(chain.ChainObservation(), clues))
    assert ("slurm-gres" in check.evidence) is missing


def test_the_words_of_a_program_that_fails_do_not_decide_the_cause(tmp_path: Path) -> None:
    tree = Tree(World(), tmp_path / "node")
    words = "nvidia-ctk: libnvidia-container1 is not installed"
    tree.program("nvidia-ctk", f"echo '{words}' >&2; exit 1\n")
    diagnosed = walk.diagnose(tree.view())
    assert diagnosed.name == "toolkit-broken"
    assert diagnosed.broken is not None
    assert words in diagnosed.broken.evidence


def test_a_runtime_that_names_another_program_that_is_down_is_not_down_itself(
    tmp_path: Path,
) -> None:
    view = Tree(World(), tmp_path / "node").view()
    containerd = view.observed.containerd
    assert containerd is not None
    cri = CriStatus("/c", "silent", "the image service is not running")
    dead = replace(view.observed, containerd=replace(containerd, cri=cri))
    assert walk.diagnose(replace(view, observed=dead)).name == "cri-dead"


@pytest.mark.parametrize("own", ["", "--conf-server head"])
def test_a_slurmd_that_gets_its_files_from_slurmctld_is_judged_by_those(
    own: str, tmp_path: Path
) -> None:
    world = World()
    world.slurm("IDLE+DRAIN+INVALID_REG", "gres/gpu count reported lower than configured (0 < 2)")
    line = "NodeName=gpu1 Name=gpu Type={} File=/dev/nvidia[0-1]\n"
    world.files["etc/slurm/gres.conf"] = line.format("h100")
    world.files["run/slurm/conf/gres.conf"] = line.format("a100")
    world.files["run/slurm/conf/slurm.conf"] = "ClusterName=lab\n"
    if own:
        # What it had before is left there.
        world.files["etc/slurm/slurm.conf"] = "ClusterName=lab\n"
        world.files["etc/default/slurmd"] = f'SLURMD_OPTIONS="{own}"\n'
    found = walk.diagnose(Tree(world, tmp_path / "node").view())
    assert found.name == "slurm-type-differs"
    assert found.broken is not None
    assert "gres.conf has Type=a100" in found.broken.evidence
