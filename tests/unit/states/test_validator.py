"""A proof stands as long as nothing moves that it was made for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import pytest
from policyconflicts import conflict
from pydantic import ValidationError

from gpustate import Disruption, NodeFacts, Plan, ProbeError, ops
from gpustate.diagnosis import chain
from gpustate.probes.gpu_facts import Gpu, MigDevice, NvmlFacts
from gpustate.states.driver import DriverInstalled
from gpustate.states.validator import UNIT_LINK, UNIT_PATH, NodeValidated
from gpustate.testing import FakeNode

VERSION = "580.65.06"
STATE = "/var/lib/gpustate"
PROC_VERSION = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build"
GPUS = (
    Gpu(index=0, uuid="GPU-a", mig_current=False),
    Gpu(index=1, uuid="GPU-b", mig_current=False),
)
WORKING = NvmlFacts(source="nvml", driver_version=VERSION, gpus=GPUS)


class Node(FakeNode):
    """A node that answers the validator's fragment, and proves when it is told to."""

    def __init__(self, systemd: bool = True) -> None:
        super().__init__(
            facts=NodeFacts(os_id="debian", os_version="12", systemd=systemd),
            shell={"runtime_digest": lambda node: (0, self.answer())},
            runs={
                "enable gpustate-validate": lambda node: self.links.add(UNIT_LINK),
                "disable gpustate-validate": lambda node: self.links.discard(UNIT_LINK),
                "validate the node": lambda node: self.prove(),
                "remove the validation result": lambda node: self.forget(),
            },
            answers={"GpuFacts": lambda node: self.nvml},
        )
        self.links: set[str] = set()
        self.boot_id, self.version, self.digest = "boot-1", PROC_VERSION, "config-1"
        self.nvml = WORKING
        self.status: set[str] = set()
        self.broken: chain.Check | None = None
        self.state = NodeValidated()
        self.proofs = 0

    def key(self) -> chain.Key:
        version = VERSION if self.version else ""
        observed = chain.ChainObservation(
            boot_id=self.boot_id, loaded=version, nvml=self.nvml, runtime_digest=self.digest
        )
        return chain.key(observed, self.state.wanted)

    def prove(self) -> None:
        self.proofs += 1
        self.status = set() if self.broken else {"driver-ready", "cuda-ready"}
        check = self.broken or chain.Check("cuda", "ok", "ran on 2 devices")
        self.files[f"{STATE}/proof.json"] = json.dumps(
            {
                "format": "gpustate.proof/1",
                "ok": self.broken is None,
                "made_at": 1,
                "made_for": asdict(self.key()),
                "checks": [asdict(check)],
                "cuda": None,
                "status_files": sorted(self.status),
            },
            indent=1,
        )

    def forget(self) -> None:
        for path in [path for path in self.files if path.startswith(STATE)]:
            del self.files[path]
        self.status = set()

    def answer(self) -> str:
        lines = [
            f"boot_id={self.boot_id}",
            f"version={self.version}",
            f"runtime_digest={self.digest}",
        ]
        lines += ["proc=/proc", "sys=/sys", f"state={STATE}"]
        folder = f"{STATE}/validator/"
        names = [path.removeprefix(folder) for path in self.files if path.startswith(folder)]
        if names:
            # What sha256sum prints.
            for name in ("validate", "validate.pyz", "config.json"):
                data = self.files[folder + name].encode("utf-8", "surrogateescape")
                lines.append(f"program={hashlib.sha256(data).hexdigest()}  {name}")
            lines.append("left=validator")
        proof = self.files.get(f"{STATE}/proof.json")
        lines += ["left=proof.json"] if proof else []
        lines += ["enabled=1"] if UNIT_LINK in self.links else []
        lines += [f"status={name}" for name in sorted(self.status)]
        lines += [f"proof={proof.replace(chr(10), ' ')}"] if proof else []
        return "\n".join(lines) + "\n"

    def plan(self, state: NodeValidated | None = None) -> Plan:
        self.state = state or self.state
        return self.state.plan(self.state.probe(self))

    def apply(self, state: NodeValidated | None = None) -> list[ops.Run | Any]:
        self.state = state or self.state
        observed = self.state.probe(self)
        steps = list(self.state.apply(observed, self.state.plan(observed)))
        for step in steps:
            self.carry_out(step)
        return steps


@pytest.fixture
def proven() -> Node:
    node = Node()
    node.apply()
    assert not node.plan()
    return node


def test_a_fresh_node_gets_the_program_the_unit_and_a_proof() -> None:
    node = Node()
    assert node.plan().fields == {"proof", "program", "unit", "enabled"}
    assert node.plan().disruption is Disruption.NONE
    steps = node.apply()
    assert not node.plan()
    assert node.state.probe(node).made_at == 1
    assert node.proofs == 1
    assert UNIT_PATH in node.files
    assert [step for step in steps if isinstance(step, ops.DaemonReload | ops.EnableUnit)] == []


def test_the_program_is_put_before_it_is_run() -> None:
    node = Node()
    labels = [step.label for step in node.apply()]
    assert labels[-1] == "validate the node"
    assert f"write {STATE}/validator/validate" in labels


@pytest.mark.parametrize(
    ("move", "said"),
    [
        ({"boot_id": "boot-2"}, "the node has rebooted since"),
        ({"version": ""}, f"the driver was {VERSION} and is not loaded"),
        ({"nvml": NvmlFacts(source="nvml", gpus=GPUS[:1])}, "GPU-b no longer answers"),
        (
            {"nvml": NvmlFacts(source="nvml", gpus=(*GPUS, Gpu(index=2, uuid="GPU-c")))},
            "GPU-c is new",
        ),
        (
            {
                "nvml": NvmlFacts(
                    source="nvml",
                    gpus=(
                        GPUS[0],
                        Gpu(1, "GPU-b", mig_current=True, mig_devices=(MigDevice("MIG-x"),)),
                    ),
                )
            },
            "the MIG layout has changed since",
        ),
        ({"digest": "config-2"}, "the container runtime or its configuration has changed since"),
    ],
)
def test_a_proof_falls_when_what_it_was_made_for_moves(
    proven: Node, move: dict[str, Any], said: str
) -> None:
    for name, value in move.items():
        setattr(proven, name, value)
    (change,) = proven.plan().changes
    assert (change.field, change.before, change.after) == ("proof", f"outdated: {said}", "holds")
    proven.apply()
    assert not proven.plan()
    assert proven.proofs == 2


def test_a_proof_of_less_does_not_prove_more(proven: Node) -> None:
    plan = proven.plan(NodeValidated(gpus=2))
    assert plan.fields == {"proof", "program"}


def test_a_broken_link_stays_a_change_and_names_evidence_and_next_move(proven: Node) -> None:
    proven.broken = chain.Check(
        "cuda", "failed", "GPU-b: CUDA_ERROR (CUDA 802)", "start the fabric manager"
    )
    proven.boot_id = "boot-2"
    proven.apply()
    (change,) = proven.plan().changes
    assert change.before == "failed: cuda: GPU-b: CUDA_ERROR (CUDA 802); start the fabric manager"


def test_force_proves_again_and_is_content_with_the_proof_it_made(proven: Node) -> None:
    state = NodeValidated(force=True)
    plan = proven.plan(state)
    assert plan.fields == {"proof"}
    (step,) = proven.apply(state)
    assert "--if-needed" not in step.script()
    assert proven.proofs == 2
    assert not state.verify(state.probe(proven))


def test_without_force_a_proof_made_meanwhile_by_the_boot_unit_is_taken(proven: Node) -> None:
    proven.boot_id = "boot-2"
    (step,) = proven.apply(NodeValidated())
    assert "--if-needed" in step.script()


def test_a_status_file_that_went_away_is_written_again(proven: Node) -> None:
    proven.status.discard("cuda-ready")
    assert proven.plan().fields == {"status_missing"}
    proven.apply()
    assert not proven.plan()


def test_status_files_are_not_missed_when_they_are_not_wanted(proven: Node) -> None:
    proven.apply(NodeValidated(status_files=False))
    proven.status.clear()
    assert not proven.plan()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "gpustate.proof/2"}', '{"format": 3, "ok": 1}']
)
def test_a_file_that_is_no_proof_proves_nothing(proven: Node, text: str) -> None:
    proven.files[f"{STATE}/proof.json"] = text
    (change,) = proven.plan().changes
    assert (change.field, change.before) == ("proof", "none")


def test_an_image_is_given_the_unit_and_no_proof() -> None:
    node = Node(systemd=False)
    assert node.plan().fields == {"program", "unit", "enabled"}
    node.apply()
    assert not node.plan()
    assert node.proofs == 0


def test_the_boot_unit_does_not_hold_up_the_boot_and_comes_after_what_it_proves(
    proven: Node,
) -> None:
    lines = proven.files[UNIT_PATH].splitlines()
    assert "DefaultDependencies=no" in lines
    after = " ".join(line for line in lines if line.startswith("After="))
    for unit in ("nvidia-persistenced", "nvidia-cdi-refresh", "gpustate-cdi-refresh", "containerd"):
        assert f"{unit}.service" in after


def test_absent_takes_everything_away(proven: Node) -> None:
    gone = NodeValidated(ensure="absent")
    assert gone.plan(gone.probe(proven)).fields == {"proof", "program", "unit", "enabled", "left"}
    proven.apply(gone)
    assert not proven.plan()
    assert proven.files == {}
    assert proven.links == set()
    assert not Node().plan(gone)


@pytest.mark.parametrize(
    "parameters",
    [
        {"gpus": 0},
        {"timeout_s": 5},
        {"handler": "a b"},
        {"containers": "maybe"},
        {"cuda": "yes"},
        {"speed": 1},
    ],
)
def test_a_wrong_parameter_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NodeValidated(**parameters)


@pytest.mark.parametrize("folder", ["/x/$(touch /y)", "/a b", "relative", "/a'b", ""])
def test_a_folder_that_is_no_plain_path_is_written_into_no_program(folder: str) -> None:
    node = Node()
    answer = node.answer().replace(f"state={STATE}", f"state={folder}")
    node.shells["runtime_digest"] = (0, answer)
    with pytest.raises(ProbeError, match="not a plain path"):
        NodeValidated().probe(node)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"outcome": "ok"', '"outcome": "fine"'),
        ('"evidence": "ran on 2 devices"', '"evidence": ["x"]'),
        ('"boot_id": "boot-1"', '"boot_id": 7'),
        ('"cuda": null', '"cuda": [{"uuid": 1, "ok": true}]'),
    ],
)
def test_a_proof_with_a_value_of_another_type_proves_nothing(
    proven: Node, old: str, new: str
) -> None:
    path = f"{STATE}/proof.json"
    assert old in proven.files[path]
    proven.files[path] = proven.files[path].replace(old, new)
    assert NodeValidated().probe(proven).proof == "none"


def test_it_is_refused_where_the_policy_takes_the_driver_away() -> None:
    reason = conflict(NodeValidated(), {"driver": DriverInstalled(ensure="absent")})
    assert reason is not None
    assert "remove validator too" in reason
    assert conflict(NodeValidated(), {"driver": DriverInstalled()}) is None
