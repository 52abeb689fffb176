"""What ``gpustate image bake`` refuses before it looks at any root."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpustate import Policy, registry
from gpustate.bake.image import left_to_apply
from gpustate.cli.main import cli
from gpustate.core.outcome import NodeResult, Outcome, StateResult
from gpustate.core.policy import build
from gpustate.errors import UsageError


def said(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        cli.main(["image", "bake", *words], standalone_mode=False)
    return str(caught.value)


def policy(folder: Path, only: str) -> str:
    file = folder / "policy.py"
    file.write_text(
        "from gpustate import Policy, where\nfrom gpustate.states.nouveau import NouveauBlacklisted\n"
        f"policy = Policy(NouveauBlacklisted(only={only}))\n"
    )
    return str(file)


def test_gpus_of_an_image_are_models() -> None:
    assert "write 8xH100" in said("nouveau", "--root", "/nowhere", "--gpu", "8", "--dry-run")


def test_a_condition_on_gpus_wants_them_named(tmp_path: Path) -> None:
    told = said(policy(tmp_path, "where.mig_capable"), "--root", "/nowhere", "--dry-run")
    assert "--gpu 8xH100" in told


def test_a_condition_on_nvswitches_cannot_be_answered(tmp_path: Path) -> None:
    file = policy(tmp_path, "where.nvswitch & where.group('gpu')")
    told = said(file, "--root", "/nowhere", "--gpu", "8xH100", "--dry-run")
    assert "cannot be evaluated for an image" in told


def test_a_group_called_gpu_is_no_condition_on_gpus(tmp_path: Path) -> None:
    told = said(policy(tmp_path, "where.group('gpu')"), "--root", "/nowhere", "--dry-run")
    assert "/nowhere" in told or "as root" in told


def test_a_node_that_the_inventory_lacks_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a\n")
    told = said("nouveau", "--root", "/nowhere", "-i", str(file), "--node", "b", "--dry-run")
    assert "no node 'b'" in told


def test_without_a_terminal_yes_has_to_be_said() -> None:
    assert "--dry-run" in said("nouveau", "--root", "/nowhere")


LOCK = """{"format": "gpustate.lock/2", "sets": []}"""


def test_the_lock_beside_the_policy_is_read_before_any_root_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "policy.py"
    file.write_text(
        "from gpustate import Policy\nfrom gpustate.states.driver import DriverInstalled\n"
        "policy = Policy(DriverInstalled(branch=580))\n"
    )
    lock = tmp_path / "gpustate.lock"
    lock.write_text(LOCK)
    words = (str(file), "--root", "/nowhere", "--dry-run")
    assert said(*words).startswith(f"{lock}: has no set for branch 580")
    hosts = tmp_path / "hosts"
    hosts.write_text("a\n")
    told = said(*words, "-i", str(hosts), "--node", "a")
    assert told.startswith(f"{lock}: has no set for node a")
    assert "/nowhere" in said(*words, "--lock", "none")
    lock.write_text("{")
    assert "is not a lock file" in said(*words)
    assert "/nowhere: " in said(*words, "--lock", "/nowhere")


def test_states_that_only_an_apply_settles_are_named() -> None:
    made = Policy(*(build(registry.get(n), {}) for n in ("nouveau", "gpu-labels", "slurm-gres")))
    node = NodeResult("root", states=[StateResult("slurm-gres", Outcome.NOT_APPLICABLE)])
    assert left_to_apply(made, node) == ["gpu-labels"]
    node.observed["first-boot"] = {"wanted_work": ["gpu-labels: write the file"]}
    assert left_to_apply(made, node) == []
    node.observed.clear()
    assert left_to_apply(made.with_ensure("absent"), node) == []
    left = {name for name in registry.states() if registry.get(name).left_to_apply}
    assert left >= {"gpu-labels", "slurm-gres", "mig", "mps"}
