"""Every example is run: inventories and policies of the repository, commands of the pages that need no node."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import Cli

from gpustate import inventory, policies
from gpustate.cli.verbs import GROUPS
from gpustate.errors import EXIT_ERROR
from gpustate.mig import layout, tables

TOP = Path(__file__).parents[3]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").glob("*.md"))]
INVENTORIES = sorted(
    path
    for path in (TOP / "inventories").iterdir()
    if path.is_file() and path.suffix in (".ini", ".yml", ".py")
)
#: The demos drive a lab; their tests are those of the lab.
POLICIES = sorted(
    path
    for folder in (TOP / "docs/examples", TOP / "docs/examples/own-states/policies")
    for path in folder.glob("*")
    if path.suffix in (".py", ".yaml", ".yml") and not path.name.startswith("demo")
)
#: Verbs that do without a node unless they are given an inventory, and those that never reach one.
WITHOUT_INVENTORY = ("lint", "matrix", "mig", "dcgm", "convert")
NEVER = ("resolve", "graph")
#: Not run: they go with files that the page builds on the way.
ELSEWHERE = ("gpustate policy matrix list mine",)

_MIG = "version: v1\nmig-configs:\n  {}:\n    - devices: all\n      mig-enabled: true\n      mig-devices: {{1g.18gb: 7}}\n"
FILES = {
    "values.yaml": "driver:\n  enabled: true\ntoolkit:\n  enabled: true\n",
    "driver.yaml": "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata:\n  name: d\nspec:\n"
    "  driverType: gpu\n  image: driver\n  repository: nvcr.io/nvidia\n  version: 580.95.05\n",
    "inventory.yml": "all:\n  hosts:\n    gpu07:\n    gpu1:\n",
    "config.yaml": _MIG.format("training"),
    "my.yaml": _MIG.format("mine").replace("18gb", "10gb"),
    "my-counters.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature\n",
}


def _verb(command: str) -> str:
    """The verb of a command line, without its group."""
    words = command.split()
    return words[2] if words[1] in GROUPS else words[1]


def commands(page: Path) -> Iterator[str]:
    """Commands of a page that need no node, without the page's comments."""
    for line in re.findall(r"^ {4}\$? ?(gpustate .*)$", page.read_text("utf-8"), re.M):
        command = re.split(r"\s#|;", line)[0].strip()
        verb = _verb(command)
        without = verb in WITHOUT_INVENTORY and " -i " not in f"{command} "
        if (verb in NEVER or without) and command not in ELSEWHERE:
            yield command


COMMANDS = sorted({command for page in PAGES for command in commands(page)})


@pytest.fixture
def folder(project: Path) -> Path:
    """A folder with every file that the pages' commands name."""
    for name in ("policy.py", "policy.yaml", "clusterpolicy.yaml"):
        shutil.copy(TOP / "docs/examples" / name, project)
    for name, text in FILES.items():
        (project / name).write_text(text, "utf-8")
    node7 = layout.as_data(layout.empty(tables.find("H200"), 8))
    (project / "node7.json").write_text(json.dumps(node7), "utf-8")
    return project


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_pages_works(gpustate: Cli, folder: Path, command: str) -> None:
    done = gpustate(*shlex.split(command)[1:])
    # A blocked combination and a strict refusal are what their pages show; a wrong use is not.
    assert done.status != EXIT_ERROR, done.err
    assert done.status < 99, done.err
    assert done.out or done.err or " --out " in command


def test_commands_were_found_at_all() -> None:
    verbs = {_verb(command) for command in COMMANDS}
    assert verbs == {*WITHOUT_INVENTORY, *NEVER}
    assert len(COMMANDS) >= 20


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: path.name)
def test_every_parameter_of_an_example_inventory_exists(path: Path, gpustate: Cli) -> None:
    seen: set[str] = set()
    for node in inventory.load(str(path)):
        for state, parameters in node.vars.get("gpustate", {}).items():
            key = json.dumps([state, parameters], default=str)
            if key in seen:
                continue
            seen.add(key)
            done = gpustate("policy", "resolve", node.name, state, "-i", str(path))
            assert (done.status, done.err) == (0, "")
            for name in parameters:
                assert f"{state}.{name} " in done.out


def test_example_inventories_set_parameters_at_all() -> None:
    setting = [
        path.name
        for path in INVENTORIES
        if any(node.vars.get("gpustate") for node in inventory.load(str(path)))
    ]
    assert len(setting) >= 2, setting


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: str(path.relative_to(TOP)))
def test_every_example_policy_is_resolved_for_a_node(path: Path, gpustate: Cli) -> None:
    done = gpustate("policy", "resolve", "gpu1", str(path), "-i", "gpu1,")
    assert done.status == 0, done.err
    assert policies.load(str(path)).states
