"""The checks of the soak time: the validator again, NVML's word on each GPU, and Xids since the change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from filestates import First, here

from gpustate.api import rolling
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.node import Node
from gpustate.core.policy import Policy
from gpustate.core.queries import CommandResult, Query
from gpustate.diagnosis.chain import FAILED, Check
from gpustate.engine import fleet
from gpustate.errors import UsageError
from gpustate.formats.nvml_report import Gpu, GpuHealth, NvmlFacts
from gpustate.probes.gpu_facts import GpuFacts
from gpustate.rollout.strategy import Strategy
from gpustate.validation import pods

GPU = Gpu(0, "GPU-0", "0000:1b:00.0", name="H100", health=GpuHealth(recovery_action=0))
XID_79 = "xid=[ 900.5] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
XID_13 = "xid=[ 900.5] NVRM: Xid (PCI:0000:1b:00): 13, Graphics Exception"


@dataclass
class FakeNode(Node):
    """A node with these GPUs, whose kernel log was written up to 1000 s after its boot."""

    gpus: tuple[Gpu, ...] = (GPU,)
    lines: tuple[str, ...] = ()

    def query(self, query: Query[Any]) -> Any:
        if isinstance(query, GpuFacts):
            return NvmlFacts(source="nvml", gpus=self.gpus)
        return CommandResult(0, "\n".join((*self.lines, "uptime=1000.00")) + "\n")


def failures(*lines: str, age_s: float = 300, gpus: tuple[Gpu, ...] = (GPU,)) -> str:
    return rolling.gpu_failures(FakeNode(gpus, lines), age_s)


def test_a_healthy_gpu_passes() -> None:
    assert failures() == ""


def test_an_xid_counts_since_the_change_and_not_before() -> None:
    assert "Xid 79" in failures(XID_79)
    assert failures(XID_79, age_s=60) == ""


def test_an_xid_of_an_application_does_not_count() -> None:
    assert failures(XID_13) == ""


def test_what_nvml_reports_counts_whenever_it_began() -> None:
    bad = replace(GPU, health=GpuHealth(recovery_action=1))
    assert "requests a reset" in failures(gpus=(bad,))


def test_a_node_without_gpus_has_nothing_to_check() -> None:
    assert failures(XID_79, gpus=()) == ""


class Proof(First):
    """Validates that the file is there."""

    name: ClassVar[str] = "soak-proof"
    validating: ClassVar[bool] = True


@pytest.mark.parametrize(("broken", "bad"), [(False, []), (True, ["localhost"])])
def test_the_validator_of_the_policy_runs_again(
    tmp_path: Path, broken: bool, bad: list[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    node = here(tmp_path / "state")
    proof = Proof(path=str(file), text="x", script="exit 1")
    request = fleet.Request(
        Policy(First(path=str(tmp_path / "other")), proof), Inventory("test", (node,)), run="r1"
    )
    if broken:
        file.write_text("gone")
    found = rolling.soak_check(request, lambda: False)({node.name: 10.0}, False)
    assert list(found) == [node.name] * len(bad)
    assert not (tmp_path / "other").exists(), "nothing but the validator runs"


@pytest.mark.parametrize(("last", "ran"), [(False, []), (True, ["here"])])
def test_a_pod_runs_at_the_end_of_the_soak_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, last: bool, ran: list[str]
) -> None:
    tested: list[str] = []

    def run(request: pods.Request, stop: object) -> dict[str, Check]:
        tested.extend(node.name for node in request.nodes)
        return {node.name: Check("pod", FAILED, "the pod timed out") for node in request.nodes}

    monkeypatch.setattr(pods, "run", run)
    monkeypatch.setattr(rolling, "gpu_failures", lambda node, since: "")
    node = here(tmp_path / "state")
    request = fleet.Request(Policy(), Inventory("test", (node,)), run="r1")
    check = rolling.soak_check(request, lambda: False, pods="")
    found = check({node.name: 10.0}, last)
    assert tested == ran
    assert found == dict.fromkeys(ran, "pod: the pod timed out")


def test_pods_without_a_soak_time_are_refused() -> None:
    node = InventoryNode("a")
    with pytest.raises(UsageError, match=r"rollout\.soak_pods without a soak time"):
        Strategy(soak_pods=True).rollout(Inventory("t", (node,)), 1, 0.0)
