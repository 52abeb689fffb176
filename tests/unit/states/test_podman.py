"""podman's state on nodes in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from goingback import rolled_back

from gpustate.core.queries import Answer
from gpustate.states.podman import Found, PodmanCdiEnabled, PodmanQuery
from gpustate.testing import FakeNode
from gpustate.testing.fake import converge

STEPLESS = {"podman": "podman and its hooks are not on these nodes"}

HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
TEXT = json.dumps({"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}})
OTHER = json.dumps(
    {"hook": {"path": "/usr/bin/site-hook"}, "when": {"annotations": {"nvidia": "1"}}}
)

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"podman": "hooks that nobody owns"}


def node_with(files: dict[str, str], **facts: Any) -> FakeNode:
    def found(node: FakeNode) -> Found:
        hooks = {path: text for path, text in node.files.items() if path.endswith(".json")}
        confs = {path: text for path, text in node.files.items() if path.endswith(".conf")}
        base = Found(version="5.4.2", hooks=hooks, confs=confs, originals=dict(node.originals))
        return replace(base, **facts)

    return FakeNode(files=files, answers={"PodmanQuery": found})


def test_a_hook_that_nobody_owns_goes_and_comes_back() -> None:
    node = node_with({HOOK: TEXT, HOOK.replace("oci-nvidia", "site"): OTHER})
    first, last = converge(PodmanCdiEnabled(), node)
    assert first.fields == {"leftovers", "kept"}
    assert not last
    assert HOOK not in node.files
    assert len(node.files) == 1
    _, rest = converge(PodmanCdiEnabled(ensure="absent"), node)
    assert not rest
    assert node.files[HOOK] == TEXT


def test_a_hook_of_a_package_is_named_and_stays() -> None:
    node = node_with({HOOK: TEXT}, owners={HOOK: "nvidia-container-toolkit"})
    plan = next(converge(PodmanCdiEnabled(), node))
    assert not plan
    assert f"{HOOK} of nvidia-container-toolkit injects GPUs in addition to CDI" in plan.notes[0]


@pytest.mark.parametrize(
    ("files", "version", "reason"),
    [
        ({}, "3.4.4", "does not support CDI"),
        ({"/etc/containers/containers.conf": "[engine\n"}, "5.4.2", "not valid TOML"),
        (
            {"/etc/containers/containers.conf": '[engine]\ncdi_spec_dirs = ["/etc/cdi"]\n'},
            "5.4.2",
            "add it",
        ),
    ],
)
def test_what_keeps_podman_from_cdi_is_refused(
    files: dict[str, str], version: str, reason: str
) -> None:
    state = PodmanCdiEnabled()
    refused = state.refuse(state.probe(node_with(files, version=version)))
    assert reason in (refused or "")


def test_a_later_file_gives_the_folder_back() -> None:
    files = {
        "/etc/containers/containers.conf": '[engine]\ncdi_spec_dirs = ["/etc/cdi"]\n',
        "/etc/containers/containers.conf.d/z.conf": '[engine]\ncdi_spec_dirs = ["/var/run/cdi/"]\n',
    }
    state = PodmanCdiEnabled()
    assert state.refuse(state.probe(node_with(files))) is None


def test_the_answer_of_a_node_is_read() -> None:
    out = b"version=4.3.1\nhook=2 /h.json\n{}\nowner=/h.json pkg\nconf=1 /c\n\n\nmissing=/x\n"
    found = PodmanQuery().parse(Answer(0, out))
    assert found == Found(
        "4.3.1", {"/h.json": "{}"}, {"/h.json": "pkg"}, {"/c": "\n"}, {"/x": None}
    )


def test_a_rollback_restores_the_bytes() -> None:
    rolled_back(node_with({HOOK: TEXT}), None, PodmanCdiEnabled())
