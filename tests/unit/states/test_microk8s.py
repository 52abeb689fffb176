"""MicroK8s' containerd on nodes in memory: the template is edited by marked lines, and restored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from goingback import rolled_back
from standins import MICROK8S_TEMPLATE, render_microk8s

from gpustate import Disruption, ops
from gpustate.core.queries import Answer
from gpustate.probes.cri_status import CriHandler, CriStatus
from gpustate.runtimes.facts import RuntimeFacts
from gpustate.states.microk8s import (
    PROGRAM,
    RENDERED_PATH,
    SOCKET,
    TEMPLATE_PATH,
    Microk8sHandlerRegistered,
    Microk8sQuery,
)
from gpustate.testing import FakeNode
from gpustate.testing.fake import converge

STEPLESS = {"microk8s": "MicroK8s is not on these nodes"}

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"microk8s": "the template"}


def node_with(template: str | None = MICROK8S_TEMPLATE, **facts: Any) -> FakeNode:
    def found(node: FakeNode) -> RuntimeFacts:
        text = node.files.get(TEMPLATE_PATH)
        if text is None:
            return RuntimeFacts()
        base = RuntimeFacts(
            program=PROGRAM,
            version="1.6.28",
            active="active",
            files={TEMPLATE_PATH: text},
            originals=dict(node.originals),
            dump=render_microk8s(text),
        )
        return replace(base, **facts)

    labels = ("check that", "snapshot", "validate microk8s", "discard the snapshot of")
    return FakeNode(
        files={} if template is None else {TEMPLATE_PATH: template},
        answers={"Microk8sQuery": found},
        runs=dict.fromkeys(labels, lambda node: None),
    )


def test_a_node_without_it_and_one_where_it_does_not_run_are_not_restarted() -> None:
    plan = next(converge(Microk8sHandlerRegistered(), node_with(None)))
    assert not plan
    assert "not installed" in plan.notes[0]
    node = node_with(active="inactive")
    plan = next(converge(Microk8sHandlerRegistered(), node))
    assert plan.disruption is Disruption.NONE
    list(converge(Microk8sHandlerRegistered(), node))
    assert not any(isinstance(step, ops.RestartUnit) for step in node.done)


def test_a_broken_template_is_refused() -> None:
    state = Microk8sHandlerRegistered()
    assert "not valid TOML" in (state.refuse(state.probe(node_with("version = \n"))) or "")


def test_a_containerd_that_does_not_serve_pods_is_refused_or_restarted() -> None:
    node = node_with()
    list(converge(Microk8sHandlerRegistered(), node))
    template = node.files[TEMPLATE_PATH]
    state = Microk8sHandlerRegistered()
    serves = CriStatus(SOCKET, "ok", handlers=(CriHandler("nvidia"),))
    assert not state.verify(state.probe(node_with(template, cri=serves)))
    dead = state.probe(node_with(template, cri=CriStatus(SOCKET, "unserved", "load failed")))
    assert "runs without its CRI service" in (state.refuse(dead) or "")
    assert state.verify(dead)
    old = state.probe(
        node_with(template, cri=CriStatus(SOCKET, "ok", handlers=(CriHandler("runc"),)))
    )
    assert state.refuse(old) is None
    assert state.plan(old).disruption is Disruption.RESTART


def test_the_answer_of_a_node_is_read() -> None:
    out = f"unit=1\nactive=active\nfile=1 {TEMPLATE_PATH}\n#\nmissing=/x\nowed=1\nversion=1.6.28\n"
    out += f"enabled=enabled\nfile=1 {RENDERED_PATH}\n!\n"
    assert Microk8sQuery().parse(Answer(0, out.encode())) == RuntimeFacts(
        program=PROGRAM,
        version="1.6.28",
        active="active",
        files={TEMPLATE_PATH: "#"},
        originals={"/x": None},
        restart_pending=True,
        dump="!",
    )


def test_a_rollback_restores_the_bytes() -> None:
    rolled_back(node_with(), None, Microk8sHandlerRegistered())
    rolled_back(node_with(), Microk8sHandlerRegistered(), Microk8sHandlerRegistered(default=True))
    absent = Microk8sHandlerRegistered(ensure="absent")
    rolled_back(node_with(), Microk8sHandlerRegistered(default=True), absent)
