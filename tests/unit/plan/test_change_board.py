"""A plan of an upgrade answers a person who was not there: what restarts, what reboots, who is disturbed, how to go back."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from gpustate import Disruption, Plan, Policy
from gpustate.core.change import Change
from gpustate.core.outcome import RESTARTED, NodeResult, Outcome, StateResult
from gpustate.plan import document, markdown, render
from gpustate.plan import html as pages

CORDONED = "Kubernetes at c: the node is cordoned before the change, and returned to service"
BACK = "gpustate rollback RUN -i hosts.yml -u ops --kubeconfig k.yml -b"


def node(name: str, *, mig: bool, pods: tuple[str, ...]) -> NodeResult:
    version = Change("library", "570.1", "580.2", Disruption.DRAIN, label="driver version")
    driver = Plan((version,), restarted=("nvidia-persistenced.service",))
    states = [StateResult("driver", Outcome.PENDING, driver, worst=Disruption.DRAIN)]
    if mig:
        states.append(
            StateResult(
                "mig",
                Outcome.KNOWN_AFTER,
                known_after=("driver",),
                worst=Disruption.DRAIN,
                condition="the driver's reload has deleted the layout, which is then created again",
            )
        )
    workloads = (*((pod, "is evicted") for pod in pods), ("DaemonSet nvidia/plugin", RESTARTED))
    return NodeResult(name, states=states, workloads=workloads, notes=[CORDONED])


def upgrade(*options: str) -> dict[str, Any]:
    """A plan over a group with MIG and one without."""
    words = ["gpustate", "upgrade", "p.yml", "-i", "hosts.yml", "-u", "ops", "--driver", "580.2"]
    words += ["--kubeconfig", "k.yml", "--reason", "-x", "-b", "--dry-run", *options]
    made = document.plan_document(
        Policy(),
        "p.yml",
        [
            node("a1", mig=True, pods=("team/train-0",)),
            node("a2", mig=True, pods=("team/train-1", "team/web")),
            node("b1", mig=False, pods=("infer/x",)),
        ],
        run="r",
        created="2026-11-21T07:55:00Z",
        context={"inventory": "hosts.yml", "limit": "gpu", "person": "a@b", "retry": words},
    )
    made["rollout"] = {
        "waves": [1, 2],
        "max_unavailable": "25%",
        "text": "1 (a1), 2 (a2, b1); stops at the first failure",
    }
    return made


def first_page(made: dict[str, Any], kind: str) -> str:
    """What is read before any detail."""
    if kind == "text":
        return render.nodes_page(made).plain().partition("Changes:")[0]
    if kind == "markdown":
        return markdown.report(made).partition("## Nodes")[0].replace("\\", "")
    page = pages.report(made).partition('id="nodes"')[0].partition("<main>")
    return html.unescape(re.sub(r"<[^>]+>", " ", page[0].rpartition("</style>")[2] + page[2]))


@pytest.mark.parametrize("kind", ["text", "markdown", "html"])
def test_the_first_page_of_an_upgrade_answers_a_change_board(kind: str) -> None:
    text = " ".join(re.sub(r"[*`]", "", first_page(upgrade(), kind)).split())
    a, b = re.split(r"\bb1 (?:at worst|\(?1 node)", text)
    for group in (a, b):
        assert "driver 570.1 -> 580.2" in group, "what changes"
        assert "DaemonSet nvidia/plugin, nvidia-persistenced.service" in group, "what restarts"
        assert re.search(r"(?i)reboots:? none", group), "what reboots"
        assert CORDONED in group
    assert "mig, only if the driver's reload has deleted the layout" in a
    assert "driver's reload" not in b, "the group without MIG"
    assert "team/train-0 (is evicted)" in a, "who is disturbed, by name"
    assert "team/train-1 (is evicted), team/web (is evicted)" in a
    assert "infer/x (is evicted)" in b
    assert "1 (a1), 2 (a2, b1); stops at the first failure" in text, "when"
    assert "a node whose change fails is rolled back and returned to service" in text
    assert BACK in text, "how to go back"


def test_what_becomes_of_a_failed_node_depends_on_the_command() -> None:
    words = "other changes only with rollout.rollback_on_failure"
    kept = upgrade()
    kept["policy"]["rollout"] = {"rollback_on_failure": False}
    assert words in first_page(kept, "text")
    assert words not in first_page(upgrade(), "text")


@pytest.mark.parametrize("kind", ["markdown", "html"])
def test_a_report_has_the_command_that_makes_the_change(kind: str) -> None:
    command = "gpustate upgrade p.yml -i hosts.yml -u ops --driver 580.2 --kubeconfig k.yml"
    assert f"{command} --reason -x -b -l gpu" in first_page(upgrade(), kind)
