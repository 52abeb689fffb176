"""Reports of a result: who, what changed, what to try again, what stays out of service."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.engine.maintenance import STAYS_OUT
from gpustate.plan import html, markdown, markdown_result
from gpustate.plan.document import result_document
from gpustate.reporting import runs

EVIL = "<script>alert(1)</script> | **x** `y` [z](javascript:a)"


def report(kind: str, *states: StateResult) -> str:
    """A run of four nodes: changed, unchanged, failed and held, not started; ``states`` of the failed node."""
    held = f"Kubernetes at https://k: n3 {STAYS_OUT}: {EVIL}"
    nodes = [
        NodeResult("gpu1", states=[StateResult("driver", Outcome.CHANGED)]),
        NodeResult("gpu2", states=[StateResult("driver", Outcome.UNCHANGED)]),
        NodeResult(
            "gpu3", status=NodeStatus.FAILED, reason=EVIL, notes=[held], states=list(states)
        ),
    ]
    nodes[0].status = nodes[1].status = NodeStatus.OK
    context = {"inventory": "hosts", "person": "ann@ops1", "retry": ["gpustate", "apply", "p.yaml"]}
    document = result_document(
        nodes,
        run="r1",
        created="2026-01-01T00:00:00Z",
        verb="apply",
        summary="nodes=4",
        exit_code=1,
        skipped=["gpu4"],
        notes=["stopped: 1 node failed"],
        context=context,
    )
    about = runs.run_of(
        "r1", "apply", EVIL, context, reason=EVIL, nodes=4, waves=(1, 3), plan="abc"
    )
    outcome = runs.Outcome(1, "nodes=4", nodes, ["gpu4"], stopped="1 node failed")
    run: dict[str, Any] = {
        "about": {"run": "r1", "started": "s", "ended": "e", **about.data()},
        "outcome": outcome.data(),
    }
    if kind == "html":
        return html.report(document, run)
    return markdown_result.report(document, run)


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_a_report_has_all_that_a_change_request_needs(kind: str) -> None:
    text = report(kind)
    for part in (
        "Exit code 1: 4 nodes, 1 changed, 1 unchanged, 1 not finished, 1 not started. Stopped: 1 node failed.",
        "ann@ops1",
        "2 (nodes: 1, 3)",
        "gpustate apply p.yaml -l gpu3",
        "Out of service",
        "Not started",
        "gpu4",
        "Changed",
        "nodes=4",
    ):
        assert part in text, part


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_a_node_that_changed_and_failed_counts_as_both_and_a_stop_is_no_note(kind: str) -> None:
    done = StateResult("mig", Outcome.CHANGED)
    text = report(kind, done, StateResult("cdi", Outcome.FAILED, reason="no"))
    assert "4 nodes, 2 changed, 1 unchanged, 1 not finished, 1 not started." in text
    assert "Notes on the policy" not in text


class Tags(HTMLParser):
    """All elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        if tag not in ("meta", "input", "br", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "input", "br", "rect"):
            assert self.open.pop() == tag


def test_text_of_nodes_is_escaped() -> None:
    page = report("html")
    tags = Tags()
    tags.feed(page)
    assert tags.found.count("script") == 1
    assert tags.open == []
    assert "<script>alert" not in page
    markdown = report("markdown")
    spans = r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)"
    outside = re.sub(spans, "", re.sub(r"\\.", "", markdown), flags=re.S)
    assert "Result of apply" in outside
    assert "<script>" not in outside
    assert "**x**" not in outside


def test_text_of_a_report_can_be_read_unrendered() -> None:
    assert markdown.text("driver 570 -> 580, all-1g.10gb of max_unavailable") == (
        "driver 570 -> 580, all-1g.10gb of max_unavailable"
    )
    assert markdown.text("> quote __bold__ _x_") == "\\> quote \\_\\_bold\\_\\_ \\_x\\_"
