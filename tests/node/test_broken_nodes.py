"""A node that works is broken, one thing at a time: explain names the cause, apply repairs it.

The lab's node is proven once; after every repair every link holds again, which is the healthy twin of the next.
Some points in the ordinary run, all of them with --proof.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nextsteps
import pytest
import shares
from commands import gpustate
from labbreaks import BREAKS, Break

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = pytest.mark.long

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
POINTS = shares.share("broken lab nodes", BREAKS, most=3)
#: An idle machine takes 2 s; the limit is the promise, and a busy machine of tests is given more.
PROMISE_S = 10.0

TESTS = """
def test_the_node_is_the_one_asked_for(host):
    assert host.user().name == "root"
    assert host.service("containerd").is_running
    assert host.check_output("hostname") == "gpu2"

def test_the_wrong_driver(host):
    assert "999.99" in host.check_output("cat /proc/version")
"""


@pytest.fixture(scope="module")
def proven(lab: Lab) -> Iterator[Node]:
    node = lab.node("gpu2")
    node.reset()
    gpustate("apply", POLICY, "-i", lab.inventory, "-l", "gpu2", "--yes", code=0)
    yield node
    node.reset()


def explained(lab: Lab, code: int | None = None) -> dict[str, Any]:
    began = time.monotonic()
    ran = gpustate("explain", "gpu2", "-i", lab.inventory, "-o", "json", code=code)
    assert time.monotonic() - began < 6 * PROMISE_S
    return ran.node("gpu2")


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_broken_node_is_explained_and_repaired(lab: Lab, proven: Node, point: Break) -> None:
    point.damage(proven)
    try:
        found = explained(lab, 3)
        assert found["cause"] == point.cause, str(found)
        assert point.words in str(found["checks"])
        on_node = ("-i", lab.inventory, "-l", "gpu2")
        if point.state:
            assert found["repaired_by"] == point.state
            drift = gpustate("drift", POLICY, *on_node, "-o", "json", code=2)
            states = {s["state"] for s in drift.node("gpu2")["states"] if s.get("changes")}
            assert point.state in states
            nextsteps.follow(lab.inventory, proven)
    finally:
        if point.heal is not None:  # what a person does at the node, by the same next step
            point.heal(proven)
        elif point.words == "libnvidia-ml 580.178.04":
            proven.fault("library-mismatch", on=False)
    nextsteps.follow(lab.inventory, proven)


def test_a_sites_own_tests_run_over_the_same_connection_with_sudo(
    lab: Lab, proven: Node, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "test_site.py").write_text(TESTS)
    on_node = ("-i", lab.inventory, "-l", "gpu2", "-u", "op", "-b", "--tests", folder)
    done = gpustate("validate", POLICY, *on_node, "-o", "json", code=3)
    assert done.node("gpu2")["status"] == "failed"
    assert " failed=1 " in done.document["summary"]
    outcomes = {one["test"].rpartition("::")[2]: one for one in done.document["tests"]}
    good, wrong = outcomes["test_the_node_is_the_one_asked_for"], outcomes["test_the_wrong_driver"]
    assert (good["outcome"], good["node"]) == ("passed", "gpu2"), good
    assert wrong["outcome"] == "failed"
    assert "999.99" in wrong["evidence"]
