"""A policy in another shape: the same, or every difference is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpustate import Policy, PolicyError, policies, presets, registry, where
from gpustate.policies import document
from gpustate.policies.converting import convert
from gpustate.states.container_toolkit import ContainerToolkitInstalled
from gpustate.states.containerd import ContainerdHandlerRegistered
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.preflight import PreflightPassed
from gpustate.states.repository import DriverRepository

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
LAYERED = Policy(
    PreflightPassed(gpus="8xH100", other_systems=("debian14",)),
    DriverRepository(pin_priority=600),
    DriverInstalled(branch=580, parameters={"NVreg_X": 1, "nvidia-uvm.y": "so"}),
    ContainerdHandlerRegistered(
        enable_cdi=None,
        only=(where.group("a") | ~where.runtime("k3s")) & where.var("x", "o'n\\e") & where.gpu,
    ),
    ContainerToolkitInstalled(
        config={"nvidia-container-runtime.mode": "cdi", "nvidia-container-cli.debug": None},
        ensure="absent",
    ),
    name="on",
    groups={"no": {"driver": {"branch": 570}}},
    nodes={"gpu7": {"driver": {"hold": False}, "allow": {"r": "why: not"}}},
    allow={"some-rule": "because"},
)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_registry", None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def again(policy: Policy, to: str) -> Policy:
    done = convert(policy, to)
    file = {"yaml": "x.yaml", "python": "x.py"}[to]
    Path(file).write_text(done.text, encoding="utf-8")
    return policies.load(file)


@pytest.mark.parametrize("to", ["yaml", "python"])
@pytest.mark.parametrize(
    "policy",
    [LAYERED, presets.kubernetes_node(), presets.slurm_node(driver={"branch": 570}), Policy()],
    ids=["layered", "kubernetes", "slurm", "empty"],
)
def test_yaml_and_python_say_everything(policy: Policy, to: str) -> None:
    done = convert(policy, to)
    assert not any("daemonsets" in line for line in done.lost)
    read = again(policy, to)
    made, wanted = document.as_data(read), document.as_data(policy)
    assert {**made, "name": policy.name} == {**wanted, "name": policy.name}


@pytest.mark.parametrize("example", ["policy.py", "clusterpolicy.yaml"])
def test_the_examples_go_through_every_shape_and_come_back(example: str) -> None:
    first = policies.load(str(EXAMPLES / example))
    one = again(first, "yaml")
    two = again(one, "python")
    assert document.as_data(two) == document.as_data(first)
    three = again(two, "yaml")
    assert document.as_data(three) == document.as_data(first)


def test_python_is_written_as_a_person_would() -> None:
    done = convert(
        Policy(
            NouveauBlacklisted(),
            ContainerdHandlerRegistered(
                only=where.runtime("containerd") & ~where.mig_capable & where.group("inference"),
                default=False,
            ),
            name="blue",
        ),
        "python",
        "cp.yaml",
    )
    assert done.text == (
        "# Written by gpustate policy convert from cp.yaml.\n"
        "from gpustate import Policy, where\n"
        "from gpustate.states.containerd import ContainerdHandlerRegistered\n"
        "from gpustate.states.nouveau import NouveauBlacklisted\n\n"
        "policy = Policy(\n"
        "    NouveauBlacklisted(),\n"
        "    ContainerdHandlerRegistered(\n"
        "        default=False,\n"
        '        only=(where.runtime("containerd") & ~where.mig_capable) & where.group("inference"),\n'
        "    ),\n"
        '    name="blue",\n)\n'
    )


def test_python_of_every_kind_passes_the_linter(tmp_path: Path) -> None:
    for number, policy in enumerate((LAYERED, presets.kubernetes_node())):
        Path(f"p{number}.py").write_text(convert(policy, "python").text)
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [ruff, "check", "--isolated", "--select", "E9,F,I", "."], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_notes_of_the_file_come_along() -> None:
    done = convert(policies.load(str(EXAMPLES / "clusterpolicy.yaml")), "yaml")
    assert any("daemonsets.priorityClassName" in line for line in done.notes)
    assert "# Notes on the policy:" in done.text
    assert not any("daemonsets" in line for line in done.lost)


def test_a_state_of_the_policy_s_own_file_is_named_as_lost() -> None:
    Path("own.py").write_text(
        "from gpustate import Policy\nfrom gpustate.states.nouveau import NouveauBlacklisted\n"
        "class Mine(NouveauBlacklisted):\n    name = 'acme-x'\n"
        "policy = Policy(Mine(), NouveauBlacklisted())\n"
    )
    done = convert(policies.load("own.py"), "yaml")
    assert done.lost[0].startswith("acme-x: the state is defined in the policy file; move it")
    assert json.dumps("acme-x") not in done.text
    assert [state.name for state in again(policies.load("own.py"), "python").states] == ["nouveau"]


def test_a_condition_that_is_code_is_named_as_lost() -> None:
    odd = where.Condition("full moon", lambda view: True)
    for to in ("yaml", "python"):
        with pytest.raises(PolicyError, match=f"cannot be written as {to}: .*full moon"):
            convert(Policy(NouveauBlacklisted(only=odd)), to)
