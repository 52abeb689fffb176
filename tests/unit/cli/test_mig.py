"""``gpustate node mig``: what it prints, how it ends, and one line for whatever is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commandline import Cli

PAGE = Path(__file__).parents[3] / "docs/mig.md"


@pytest.fixture
def layout(project: Path) -> str:
    """The layout that the page shows."""
    text = re.search(r"^```json\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert text is not None
    (project / "node7.json").write_text(text[1])
    return "node7.json"


def test_show_lists_gpus_and_the_profiles_of_one(gpustate: Cli) -> None:
    assert "H100 NVL" in gpustate("node", "mig", "show").out
    done = gpustate("node", "mig", "show", "--gpu", "H100 80GB HBM3")
    assert done.status == 0
    assert re.search(r"^1g\.20gb +4 +1/7 +2/8 +0 2 4 6 +15 +9 ", done.out, re.M)
    data = json.loads(gpustate("node", "mig", "show", "--gpu", "2941", "-o", "json").out)
    assert data["format"] == "gpustate.mig-profiles/1"
    assert data["profiles"][0]["also"] == ["7g.189gb"]
    assert (
        json.loads(gpustate("node", "mig", "show", "-o", "json").out)["models"][0]["name"] == "A30"
    )


@pytest.mark.parametrize("gpus", ["2xH200", "H200x2", "2 x NVIDIA H200"])
def test_a_plan_for_gpus_as_they_come(gpustate: Cli, gpus: str) -> None:
    done = gpustate(
        "node", "mig", "plan", "builtin", "all-balanced", "--gpu", gpus, "--detailed-exitcode"
    )
    assert done.status == 2
    assert done.out.startswith("GPU 0, 1 (H200): disruption: drain\n")
    assert "created=8" in done.out


def test_a_plan_from_a_layout_keeps_what_is_in_use(gpustate: Cli, layout: str) -> None:
    done = gpustate(
        "node", "mig", "plan", "builtin", "all-balanced", "--current", layout, "-o", "json"
    )
    assert (done.status, done.err) == (0, "")
    data = json.loads(done.out)
    assert [kept["gpu_instance"] for kept in data["gpus"][0]["kept"]] == [9, 1]
    assert data["disruption"] == "drain"


def test_the_printed_layout_of_one_node_is_a_saved_one(
    gpustate: Cli, project: Path, layout: str
) -> None:
    saved = json.loads((project / layout).read_text())
    node = {"name": "gpu1", **saved}

    def plan(*nodes: object) -> Any:
        document = {"format": "gpustate.mig-nodes/1", "nodes": nodes}
        (project / "shown.json").write_text(json.dumps(document))
        return gpustate("node", "mig", "plan", "builtin", "all-balanced", "--current", "shown.json")

    direct = gpustate("node", "mig", "plan", "builtin", "all-balanced", "--current", layout)
    assert plan(node).out == direct.out
    for nodes, words in (
        ((), "is not the layout of one node"),
        ((node, node), "is not the layout of one node"),
        (({"name": "gpu1", "error": "no route"},), "has no layout: no route"),
    ):
        refused = plan(*nodes)
        assert refused.status == 1
        assert words in refused.err


def test_an_exported_layout_needs_no_change(gpustate: Cli, project: Path, layout: str) -> None:
    done = gpustate("node", "mig", "export", "--current", layout, "--name", "now")
    (project / "now.yaml").write_text(done.out)
    again = gpustate("node", "mig", "plan", "now.yaml", "--current", layout, "--detailed-exitcode")
    assert (again.status, again.err) == (0, "")
    assert "nothing to do" in again.out
    assert "all-1g.10gb.me" in gpustate("node", "mig", "export", "--builtin").out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["plan", "nowhere.yaml", "x", "--gpu", "H200"], 1, "nowhere.yaml: "),
        (["plan", "builtin", "all-balance", "--gpu", "H200"], 1, "did you mean all-balanced"),
        (["plan", "builtin", "all-balanced"], 1, "no GPUs: give -i"),
        (
            ["plan", "builtin", "all-balanced", "--gpu", "0xH200"],
            1,
            "'0xH200': the number of GPUs is 0",
        ),
        (
            ["plan", "builtin", "all-balanced", "--gpu", "H100"],
            1,
            "H100 is ambiguous: 'H100 80GB HBM3'",
        ),
        (
            ["plan", "builtin", "all-1g.5gb", "--gpu", "H200"],
            5,
            "1g.5gb is not a profile of this GPU",
        ),
        (["plan", "builtin", "all-disabled", "--current", "x.json"], 1, "x.json: "),
        (["export"], 1, "nothing to export: give -i INVENTORY, --current"),
        (["export", "--builtin", "--current", "x"], 1, "--current and --builtin contradict each"),
        (
            ["plan", "builtin", "all-balanced", "--gpu", "H200", "--current", "y"],
            1,
            "--gpu and --current contradict each other; give one of them",
        ),
        (["plan", ".", "x", "--gpu", "H200"], 1, "name the mig-parted file inside it"),
        (["show", "--gpu", "T4"], 1, "is not a supported MIG-capable GPU"),
    ],
)
def test_a_mistake_is_one_line(gpustate: Cli, words: list[str], status: int, said: str) -> None:
    done = gpustate("node", "mig", *words)
    assert done.status == status
    assert done.err.startswith("gpustate: ")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


CONFIG = "version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: false}]\n"
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  %s: |\n%s"


def test_an_object_without_a_mig_parted_file_is_named_as_such(gpustate: Cli, project: Path) -> None:
    inside = "".join(f"    {line}\n" for line in CONFIG.splitlines())
    (project / "map.yaml").write_text(MAP % ("config.yaml", inside))
    assert gpustate("node", "mig", "plan", "map.yaml", "a", "--gpu", "2xH200").status == 0
    (project / "map.yaml").write_text(MAP % ("other", "    x: 1\n"))
    done = gpustate("node", "mig", "plan", "map.yaml", "a", "--gpu", "2xH200")
    assert done.status == 1
    assert "map.yaml:1: the ConfigMap 'm' contains no mig-parted file; wanted a" in done.err


def test_lint_names_the_verb_for_a_mig_parted_file(gpustate: Cli, project: Path) -> None:
    (project / "mig.yaml").write_text(CONFIG)
    for verb in ("lint", "plan"):
        done = gpustate(verb, "mig.yaml")
        assert done.status == 1
        assert "mig.yaml:1: is a mig-parted file, not a policy" in done.err
        assert "gpustate node mig plan mig.yaml" in done.err
    (project / "plugin.yaml").write_text("version: v1\nsharing: {}\n")
    done = gpustate("lint", "plugin.yaml")
    assert "is a configuration of the device plugin, not a policy" in done.err
