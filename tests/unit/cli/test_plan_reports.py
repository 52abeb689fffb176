"""Reports of plans and drawings of graphs on the command line: what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import Cli

POLICY = """
from gpustate import Policy, where
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.preflight import PreflightPassed

policy = Policy(
    PreflightPassed(),
    NouveauBlacklisted(only=where.group("gpu")),
)
"""


@pytest.fixture
def saved(project: Path) -> Path:
    """A saved plan."""
    from pages import plan

    path = project / "plan.json"
    path.write_text(json.dumps(plan("words")), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("output", "begins"),
    [
        ("html", "<!doctype html>"),
        ("markdown", "# Plan: words"),
        ("json", "{"),
        ("text", "gpu[1-3] (3 nodes)"),
    ],
)
def test_a_saved_plan_is_shown_again_without_reaching_a_node(
    gpustate: Cli, saved: Path, output: str, begins: str
) -> None:
    done = gpustate("plan", saved.name, "-o", output)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(begins)


def test_reports_are_written_as_their_names_end(gpustate: Cli, saved: Path, project: Path) -> None:
    names = ("a.html", "b.md", "c.json", "d.txt")
    done = gpustate("plan", saved.name, *(word for name in names for word in ("--report", name)))
    assert (done.status, done.err) == (0, "")
    assert "Report: a.html\n" in done.out
    assert "Plan: " in (project / "d.txt").read_text()
    assert json.loads((project / "c.json").read_text()) == json.loads(saved.read_text())
    assert "## Nodes" in (project / "b.md").read_text()
    assert (project / "a.html").read_text().endswith("</html>\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--report", "plan.pdf"),
            "gpustate: plan.pdf: unknown format of a report; use one of the suffixes .html, .htm, .md, .json, .txt",
        ),
        (
            ("--report", "none/plan.html"),
            "gpustate: none/plan.html: none is not a directory; name another file with --report",
        ),
        (("--serial", "0"), "--serial is only for new plans; omit --serial"),
        (("--out", "x.json"), "--out is only for new plans; omit --out"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    gpustate: Cli, saved: Path, words: tuple[str, ...], message: str
) -> None:
    done = gpustate("plan", saved.name, *words)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_batches_that_make_no_sense_are_refused_before_a_node_is_reached(
    gpustate: Cli, project: Path
) -> None:
    (project / "site.py").write_text(POLICY)
    done = gpustate("plan", "site.py", "-i", "127.0.0.9,", "--serial", "1,x")
    assert (done.status, done.out) == (1, "")
    assert "--serial: 'x' is not a batch size" in done.err


def test_a_damaged_plan_is_one_line(gpustate: Cli, saved: Path) -> None:
    data = json.loads(saved.read_text())
    data["fleet"]["nodes"]["change"] = "three"
    saved.write_text(json.dumps(data))
    done = gpustate("plan", saved.name, "-o", "html")
    assert (done.status, done.out) == (1, "")
    assert (
        done.err
        == "gpustate: plan.json: the plan is damaged: fleet.nodes.change: is a string, expected a whole number; make a new plan: gpustate plan POLICY --out FILE\n"
    )


def test_a_graph_says_which_line_asked_for_a_state(gpustate: Cli, project: Path) -> None:
    (project / "site.py").write_text(POLICY)
    done = gpustate("policy", "graph", "site.py")
    assert done.status == 0
    assert "set at site.py:7\n" in done.out
    assert "set at site.py:8; only where group('gpu')\n" in done.out


def test_a_graph_of_a_node_tells_what_is_not_for_it(gpustate: Cli, project: Path) -> None:
    (project / "site.py").write_text(POLICY)
    (project / "hosts").write_text("[gpu]\ng1\n[cpu]\nc1\n")
    told = {}
    for node in ("g1", "c1"):
        done = gpustate("policy", "graph", "site.py", "--node", node, "-i", "hosts", "-o", "json")
        states = {row["state"]: row for row in json.loads(done.out)["states"]}
        told[node] = states["nouveau"].get("left_out")
    assert told == {"g1": None, "c1": "only where group('gpu')"}
    lost = gpustate("policy", "graph", "site.py", "--node", "x1", "-i", "hosts")
    assert (lost.status, lost.out) == (1, "")
    assert (
        lost.err
        == "gpustate: no node 'x1' in the inventory; list its nodes: gpustate facts -i hosts\n"
    )
    both = gpustate("policy", "graph", "--all", "--node", "g1", "-i", "hosts")
    assert "contradict each other" in both.err


def test_a_graph_notes_nodes_that_the_inventory_does_not_have(gpustate: Cli, project: Path) -> None:
    (project / "site.yaml").write_text(
        "format: gpustate.policy/1\nstates: {nouveau: {}}\nnodes:\n  g9: {nouveau: null}\n"
    )
    (project / "hosts").write_text("[gpu]\ng1\n")
    for more in ((), ("--node", "g1")):
        done = gpustate("policy", "graph", "site.yaml", "-i", "hosts", *more)
        assert done.status == 0
        assert "site.yaml:4: nodes: the inventory has no node 'g9'" in done.err


@pytest.mark.parametrize(("output", "begins"), [("dot", "digraph"), ("mermaid", "flowchart")])
def test_a_graph_is_drawn(gpustate: Cli, output: str, begins: str) -> None:
    done = gpustate("policy", "graph", "--all", "-o", output)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(begins)


def test_states_of_an_operator_file_have_the_line_that_asks_for_them(
    gpustate: Cli, project: Path
) -> None:
    (project / "cp.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: cluster-policy}\n"
        'spec:\n  driver:\n    version: "580.95.05"\n'
    )
    done = gpustate("policy", "graph", "cp.yaml")
    assert done.status == 0, done
    assert done.out.count("set at cp.yaml:6\n") == 1
    assert "set by cp.yaml\n" in done.out, "what follows from the file as a whole"
