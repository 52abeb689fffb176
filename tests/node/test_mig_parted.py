"""NVIDIA's mig-parted and gpustate agree on every configuration that the GPU Operator installs.

Each layout is applied by the one and judged by the other, on simulated GPUs of four models.
"""

from __future__ import annotations

from collections.abc import Callable

import migparted
import pytest
from commands import gpustate
from shares import share

from gpustate.mig import config
from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long
if not migparted.UPSTREAM.is_file():
    pytest.skip(
        "mig-parted's configurations lie in ../shared/upstream, which is absent here",
        allow_module_level=True,
    )
TEXT = migparted.UPSTREAM.read_text()
LAYOUTS = list(config.read(TEXT, "config-default.yaml").configs)
MODELS = ("A100", "H100", "H200", "B200")
POLICY = """format: gpustate.policy/1
states:
  driver: {branch: 580}
"""


@pytest.fixture(scope="module")
def models(lab_factory: Callable[[LabSpec], Lab], tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A node with one GPU of each model, and its driver."""
    lab = lab_factory(
        LabSpec(nodes=4, images=("debian13",), gpus=tuple(f"1x{model}" for model in MODELS))
    )
    policy = tmp_path_factory.mktemp("policy") / "driver.yaml"
    policy.write_text(POLICY)
    gpustate("apply", policy, "-i", lab.inventory, "--yes", code=0)
    for node in lab.nodes:
        # As the MIG manager's hooks do; an Ampere GPU that is open cannot be reset.
        node.run("systemctl disable --now nvidia-persistenced")
    return lab


def refused(lab: Lab, verb: str, name: str, *words: str) -> set[str]:
    """Run a verb with a configuration; return the nodes that cannot have it, all others have it then."""
    parameters = ("--set", f"mig.config={name}", "--set", f"mig.file={migparted.UPSTREAM}")
    ran = gpustate(verb, "mig", "-i", lab.inventory, "-o", "json", *parameters, *words)
    outcomes = {node["name"]: node["states"][0]["outcome"] for node in ran.document["nodes"]}
    assert set(outcomes.values()) <= {"unchanged", "changed", "refused"}, outcomes
    return {node for node, outcome in outcomes.items() if outcome == "refused"}


def test_the_file_has_the_layouts_of_all_models() -> None:
    assert len(LAYOUTS) > 70


@pytest.mark.parametrize("name", share("layouts of mig-parted's file", LAYOUTS, most=3))
def test_mig_parted_and_gpustate_apply_and_judge_the_same_layout(name: str, models: Lab) -> None:
    unfit = refused(models, "apply", name, "--yes")
    judged = {node.name for node in models.nodes if not migparted.holds(node, TEXT, name)}
    assert judged == unfit
    for node in models.nodes:
        for other in ("all-disabled", name):
            ran = migparted.run(node, "apply", TEXT, other)
            assert ran.returncode == 0 or node.name in unfit, ran.stderr
    judged = {node.name for node in models.nodes if not migparted.holds(node, TEXT, name)}
    assert judged == unfit
    assert refused(models, "drift", name) == unfit
