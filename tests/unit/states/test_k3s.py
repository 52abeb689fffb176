"""k3s and RKE2 on nodes in memory: nothing of theirs is ever written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpustate import Disruption, ops
from gpustate.core.queries import Answer
from gpustate.states.k3s import Found, K3sHandlerRegistered, K3sQuery, Service
from gpustate.testing import FakeNode, check_contract

BINARY = "/usr/bin/nvidia-container-runtime"
CRI = "plugins.'io.containerd.cri.v1.runtime'.containerd"
WITHOUT = f"version = 3\n[{CRI}.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
WITH = f"{WITHOUT}[{CRI}.runtimes.nvidia.options]\nBinaryName = '{BINARY}'\n"
FOLDER = "/var/lib/rancher/k3s/agent/etc/containerd"
EARLY = Service("k3s", "active", 100, FOLDER, WITHOUT)


def node_with(service: Service | None = EARLY, programs: dict[str, int] | None = None) -> FakeNode:
    found = Found((service,) if service else (), {BINARY: 200} if programs is None else programs)
    return FakeNode(answers={"K3sQuery": found})


def look(node: FakeNode, **parameters: Any) -> tuple[K3sHandlerRegistered, Any]:
    state = K3sHandlerRegistered(**parameters)
    return state, state.probe(node)


@pytest.mark.parametrize("unit", ["k3s", "k3s-agent", "rke2-server", "rke2-agent"])
def test_a_service_that_was_started_too_early_is_restarted_once(unit: str) -> None:
    state, observed = look(node_with(replace(EARLY, unit=unit)))
    assert state.refuse(observed) is None
    plan = state.plan(observed)
    assert plan.disruption is Disruption.RESTART
    steps = list(state.apply(observed, plan))
    assert [step.label for step in steps] == [f"restart {unit}.service"]
    assert not any(isinstance(step, ops.PutText | ops.RemoveFile) for step in steps)
    state, observed = look(node_with(replace(EARLY, unit=unit, started=300, config=WITH)))
    assert not state.plan(observed)
    assert not state.verify(observed)


@pytest.mark.parametrize(
    ("service", "programs", "parameters", "reason"),
    [
        (EARLY, {}, {}, "not found; add the state container-toolkit"),
        (
            EARLY,
            {"/usr/local/nvidia/toolkit/nvidia-container-runtime": 50, BINARY: 200},
            {},
            "takes precedence over",
        ),
        (replace(EARLY, template=f"{FOLDER}/config.toml.tmpl"), None, {}, 'template "base"'),
        (replace(EARLY, started=300), None, {}, "was started after"),
        (replace(EARLY, config=WITH), None, {"default": True}, "default-runtime: nvidia"),
        (replace(EARLY, config="[x\n"), None, {}, "not valid TOML"),
    ],
)
def test_what_a_restart_would_not_mend_is_refused(
    service: Service, programs: dict[str, int] | None, parameters: dict[str, Any], reason: str
) -> None:
    state, observed = look(node_with(service, programs), **parameters)
    assert reason in (state.refuse(observed) or "")
    assert not state.plan(observed)
    assert state.verify(observed)


def test_a_node_without_them_and_a_service_that_does_not_run_are_left_alone() -> None:
    state, observed = look(node_with(None))
    assert not state.plan(observed)
    assert "neither k3s nor RKE2" in state.plan(observed).notes[0]
    state, observed = look(node_with(replace(EARLY, active="inactive")))
    assert not state.plan(observed)
    assert "when it starts" in state.plan(observed).notes[0]
    state, observed = look(node_with(), ensure="absent")
    assert not state.plan(observed)


def test_the_contract_holds() -> None:
    check_contract(K3sHandlerRegistered(), node_with())


def test_the_answer_of_a_node_is_read() -> None:
    out = (
        b"unit=rke2-agent active 1700\nfolder=rke2-agent /d\nconfig=2 rke2-agent\n#\n\n"
        b"template=rke2-agent lost /d/config.toml.tmpl\nprogram=/usr/bin/x 1600\n"
    )
    service = Service("rke2-agent", "active", 1700, "/d", "#\n", "/d/config.toml.tmpl")
    assert K3sQuery().parse(Answer(0, out)) == Found((service,), {"/usr/bin/x": 1600})
