"""k0s' containerd on nodes in memory: one drop-in, merged by k0s itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from goingback import rolled_back
from standins import merge_k0s

from gpustate.core.queries import Answer
from gpustate.probes.cri_status import CriStatus
from gpustate.states.k0s import (
    DROP_IN_PATH,
    MERGED_PATH,
    ROOT_PATH,
    SOCKET,
    Found,
    K0sHandlerRegistered,
    K0sQuery,
)
from gpustate.testing import FakeNode

STEPLESS = {"k0s": "k0s is not on these nodes"}


#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"k0s": "its one file"}


def node_with(
    version: int = 2,
    files: dict[str, str] | None = None,
    cri: CriStatus | None = None,
    **facts: Any,
) -> FakeNode:
    def found(node: FakeNode) -> Found:
        text = node.files.get(DROP_IN_PATH)
        base = Found(
            program="k0s",
            unit="k0sworker",
            active="active",
            files={DROP_IN_PATH: text} if text else {},
            dump=merge_k0s(version, [text] if text else []),
            cri=cri,
        )
        return replace(base, **facts)

    return FakeNode(
        files=files,
        answers={"K0sQuery": found},
        runs=dict.fromkeys(("check that", "wait for k0s"), lambda node: None),
    )


@pytest.mark.parametrize(
    ("files", "facts", "reason"),
    [
        ({}, {"managed": False}, "is not managed by k0s"),
        ({DROP_IN_PATH: "# mine\n"}, {}, "was not written by gpustate"),
        ({}, {"dump": "[x\n"}, "not valid TOML"),
    ],
)
def test_what_k0s_would_not_follow_is_refused(
    files: dict[str, str], facts: dict[str, Any], reason: str
) -> None:
    state = K0sHandlerRegistered()
    observed = state.probe(node_with(files=files, **facts))
    assert reason in (state.refuse(observed) or "")
    assert state.verify(observed)


def test_the_answer_of_a_node_is_read() -> None:
    root = "# k0s_managed=true\n"
    out = f"unit=k0sworker active\nfile={len(root)} {ROOT_PATH}\n{root}\nfile=1 {MERGED_PATH}\n#\n"
    out += f"cri_socket={SOCKET}\ncri=unserved|no such default runtime\n"
    found = K0sQuery().parse(Answer(0, out.encode()))
    assert found.cri == CriStatus(SOCKET, "unserved", "no such default runtime")
    assert (found.unit, found.active, found.managed, found.dump) == (
        "k0sworker",
        "active",
        True,
        "#",
    )


def test_a_rollback_restores_the_bytes() -> None:
    rolled_back(node_with(), None, K0sHandlerRegistered())
    rolled_back(node_with(), K0sHandlerRegistered(), K0sHandlerRegistered(default=True))
    rolled_back(node_with(), K0sHandlerRegistered(), K0sHandlerRegistered(ensure="absent"))
