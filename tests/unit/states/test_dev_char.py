"""The links below /dev/char on nodes in memory."""

from __future__ import annotations

import subprocess

import pytest
from goingback import rolled_back

from gpustate.ops.library import LIBRARY
from gpustate.states.dev_char import RULE_PATH, RULE_TEXT, DevCharLinksPresent
from gpustate.testing import FakeNode
from gpustate.testing.fake import converge

NODES = "node=/dev/nvidia0 c3 0\nnode=/dev/nvidiactl c3 ff\nnode=/dev/nvidia-uvm 1ff 0\n"
LINKS = "link=195:0 /dev/nvidia0\nlink=195:255 /dev/nvidiactl\nlink=511:0 /dev/nvidia-uvm\n"

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"dev-char": "the rule"}


def node_with(said: str, files: dict[str, str] | None = None) -> FakeNode:
    world = {"said": said}
    return FakeNode(
        files=files,
        shell={"gpu_scopes": lambda node: (0, world["said"])},
        runs={"create the links to NVIDIA": lambda node: world.update(said=NODES + LINKS)},
    )


def test_links_and_rule_come_and_the_rule_goes() -> None:
    node = node_with(NODES + "link=195:0 /dev/nvidia0\nlink=195:255 /dev/nvidia1\n")
    first, last = converge(DevCharLinksPresent(), node)
    assert first.fields == {"missing", "rule_text"}
    missing = next(change for change in first.changes if change.field == "missing")
    assert missing.before == ["195:255 /dev/nvidiactl", "511:0 /dev/nvidia-uvm"]
    assert not last
    assert node.files == {RULE_PATH: RULE_TEXT}
    _, rest = converge(DevCharLinksPresent(ensure="absent"), node)
    assert not rest
    assert node.files == {}


@pytest.mark.parametrize("path", [RULE_PATH, "/lib/udev/rules.d/71-nvidia-dev-char.rules"])
def test_a_rule_that_somebody_else_wrote_stays(path: str) -> None:
    theirs = {path: "# site\n" + RULE_TEXT.splitlines()[1] + "\n"}
    node = node_with(NODES + LINKS, dict(theirs))
    assert not next(converge(DevCharLinksPresent(), node))
    assert not next(converge(DevCharLinksPresent(ensure="absent"), node))
    assert node.files == theirs


@pytest.mark.parametrize(
    ("runtime", "systemd", "needed"),
    [
        ("runc version 1.1.15+ds1", "systemd 257 (257.13-1~deb13u1)", False),
        ("runc version 1.1.7", "systemd 240", False),
        ("runc version 1.3.3", "systemd 239 (239-82.el8)", True),
        ("runc version 1.1.5+ds1", "systemd 252 (252.39-1~deb12u2)", True),
        ("runc version 1.2.0\nprogram=runc version 1.1.6", "systemd 255", True),
        ("crun version 1.8.1", "systemd 252", False),
        ("", "systemd 257", True),
        ("runc version 1.1.15", "", True),
    ],
)
def test_links_come_only_where_the_versions_need_them(
    runtime: str, systemd: str, needed: bool
) -> None:
    node = node_with(f"{NODES}program={runtime}\nprogram={systemd}\n")
    plan = next(converge(DevCharLinksPresent(), node))
    assert bool(plan) == needed
    assert any("not needed here: " in note and "systemd 2" in note for note in plan.notes) != needed
    assert next(converge(DevCharLinksPresent(links="always"), node_with(NODES)))
    steps = list(DevCharLinksPresent().first_boot(DevCharLinksPresent().probe(node)))
    assert bool(steps) == needed


def test_containers_that_a_daemon_reload_would_rob_are_named() -> None:
    node = node_with(NODES + LINKS + "exposed=docker-abc.scope\n", {RULE_PATH: RULE_TEXT})
    plan = next(converge(DevCharLinksPresent(), node))
    assert not plan
    assert "docker-abc.scope would lose its GPUs at a systemctl daemon-reload" in plan.notes[0]


def test_a_reload_asks_first_who_would_suffer() -> None:
    text = LIBRARY[LIBRARY.index("systemd_reload()") :]
    assert text.index("gpu_scopes") < text.index("systemctl daemon-reload")
    assert subprocess.run(["sh", "-n"], input=LIBRARY, text=True, capture_output=True).stderr == ""


def test_a_rollback_takes_the_rule_away() -> None:
    rolled_back(node_with("missing=/dev/nvidia0\n"), None, DevCharLinksPresent())
