"""k3s and RKE2 on nodes in memory: nothing of theirs is ever written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpustate import Disruption, ops
from gpustate.core.queries import Answer
from gpustate.probes.cri_status import CriHandler, CriStatus
from gpustate.states.k3s import SOCKET, Found, K3sHandlerRegistered, K3sQuery, Service
from gpustate.testing import FakeNode

STEPLESS = {"k3s": "k3s and RKE2 are not on these nodes"}
PARTLESS = {"k3s": (("removed",), "it writes nothing that could be removed")}

BINARY = "/usr/bin/nvidia-container-runtime"
CRI = "plugins.'io.containerd.cri.v1.runtime'.containerd"
WITHOUT = f"version = 3\n[{CRI}.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
WITH = f"{WITHOUT}[{CRI}.runtimes.nvidia.options]\nBinaryName = '{BINARY}'\n"
FOLDER = "/var/lib/rancher/k3s/agent/etc/containerd"
EARLY = Service("k3s", "active", 100, FOLDER, WITHOUT)


def node_with(
    service: Service | None = EARLY,
    programs: dict[str, int] | None = None,
    cri: CriStatus | None = None,
) -> FakeNode:
    found = Found(
        (service,) if service else (), {BINARY: 200} if programs is None else programs, cri
    )
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


DEAD = CriStatus(SOCKET, "unserved", "load failed")
RUNC_ALONE = CriStatus(SOCKET, "ok", handlers=(CriHandler("runc"),))


@pytest.mark.parametrize(
    ("cri", "reason"),
    [
        (DEAD, "the containerd of k3s runs without its CRI service, so that no pod can start"),
        (CriStatus(SOCKET, "silent", "timed out"), "does not answer: timed out"),
        (RUNC_ALONE, "the running containerd has no nvidia; it has runc"),
    ],
)
def test_a_containerd_that_does_not_serve_pods_is_not_called_good(
    cri: CriStatus, reason: str
) -> None:
    state, observed = look(node_with(replace(EARLY, started=300, config=WITH), cri=cri))
    assert reason in (state.refuse(observed) or "")
    assert state.verify(observed)


def test_a_containerd_older_than_its_file_is_restarted_and_a_dead_one_with_its_service() -> None:
    for cri in (RUNC_ALONE, DEAD):
        config = WITH if cri is RUNC_ALONE else WITHOUT
        state, observed = look(node_with(replace(EARLY, config=config), cri=cri))
        assert state.refuse(observed) is None
        (step,) = state.apply(observed, state.plan(observed))
        assert isinstance(step, ops.RestartUnit)
        assert f"[ {SOCKET} -nt {FOLDER}/config.toml ]" in (step.healthy or "")


def test_a_node_without_them_and_a_service_that_does_not_run_are_left_alone() -> None:
    state, observed = look(node_with(None))
    assert not state.plan(observed)
    assert "neither k3s nor RKE2" in state.plan(observed).notes[0]
    state, observed = look(node_with(replace(EARLY, active="inactive")))
    assert not state.plan(observed)
    assert "when it starts" in state.plan(observed).notes[0]
    state, observed = look(node_with(), ensure="absent")
    assert not state.plan(observed)


STOPPED = replace(EARLY, active="inactive", started=300, config=WITH)


@pytest.mark.parametrize(
    ("enabled", "units", "steps"),
    [
        ("enabled", {}, ["start k3s.service"]),
        ("disabled", {}, ["enable k3s.service", "start k3s.service"]),
        ("disabled", {"containerd.service": "active"}, []),
        ("disabled", {"k3s-agent.service": "inactive"}, []),
    ],
)
def test_a_stopped_service_that_has_run_before_is_started(
    enabled: str, units: dict[str, str], steps: list[str]
) -> None:
    node = node_with(replace(STOPPED, enabled=enabled))
    node.unit_states = {"k3s.service": "inactive", **units}
    state, observed = look(node)
    plan = state.plan(observed)
    assert plan.disruption is Disruption.NONE
    assert [step.label for step in state.apply(observed, plan)] == steps
    assert not state.plan(state.desired(observed))
    state, observed = look(node, restart="none")
    assert not state.plan(observed)


def test_a_stopped_service_that_has_never_run_awaits_its_configuration() -> None:
    state, observed = look(node_with(replace(STOPPED, enabled="disabled", config=None)))
    assert not state.plan(observed)


def test_the_answer_of_a_node_is_read() -> None:
    out = (
        b"unit=rke2-agent active 1700\nfolder=rke2-agent /d\nconfig=2 rke2-agent\n#\n\n"
        b"template=rke2-agent lost /d/config.toml.tmpl\nprogram=/usr/bin/x 1600\n"
    )
    service = Service("rke2-agent", "active", 1700, "/d", "#\n", "/d/config.toml.tmpl")
    assert K3sQuery().parse(Answer(0, out)) == Found((service,), {"/usr/bin/x": 1600})
    out += f"cri_socket={SOCKET}\ncri=ok|containerd|v2.1.5||runc\ncri_handler=runc|||1\n".encode()
    told = K3sQuery().parse(Answer(0, out)).cri
    assert told is not None
    assert told.missing_handler("nvidia") == "no nvidia; it has runc"
