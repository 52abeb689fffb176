"""What a first user meets: README's commands as they stand, and every policy that is printed or shipped.

Each policy goes the whole road on a node that nobody has touched: plan, apply until the node is validated, a second
apply that changes nothing, and a removal after which ``/etc`` is as it was. README's policy does so with each run of
all tests, on the node that ``gpustate lab up`` gives; other policies and cgroup drivers by share. Other distributions
are in ``test_distributions.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from commands import gpustate
from labnodes import etc_files
from readme import first_commands
from shares import share

from gpustate.presets import STACKS
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import CGROUP_DRIVERS, DEFAULT_IMAGE, LabSpec

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "docs/examples"
PAGES = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]
#: Fenced, or indented by four.
_SNIPPET = re.compile(r"^```(yaml|python)\n([\s\S]*?)^```$|((?:^ {4}.*\n)+)", re.M)
_POLICY = re.compile(r"^(preset:|format: gpustate\.policy|policy = Policy\()", re.M)
#: Printed policies that need more than a node of the lab with README's policy.
ELSEWHERE = {
    "cluster-reference.md": "objects of a cluster",
    "first-cluster.md": "objects of a cluster",
    "matrix.md": "a driver that the matrix blocks",
    "operator-files.md": "a state of the reader's own",
    "policies.md 2": "a Slurm cluster",
    "pyinfra.md": "an operation of the reader's own",
    "write-a-state.md": "a state of the reader's own",
}


@dataclass(frozen=True, slots=True)
class Road:
    """A policy on a node.

    Args:
        policy: file of ``docs/examples``, name of a preset, or a page with the number of its snippet.
        image: of the node.
        cgroups: its cgroup driver.
    """

    policy: str
    image: str = DEFAULT_IMAGE
    cgroups: str = CGROUP_DRIVERS[0]

    def __str__(self) -> str:
        return f"{self.policy} {self.image} {self.cgroups}"


def printed() -> dict[str, tuple[str, str]]:
    """Suffix and text of each printed policy, by page and number; a page's only one has no number."""
    policies: dict[str, tuple[str, str]] = {}
    for page in PAGES:
        texts: list[tuple[str, str]] = []
        for language, fenced, indented in _SNIPPET.findall(page.read_text()):
            text = fenced or re.sub(r"^ {4}", "", indented, flags=re.M)
            if _POLICY.search(text):
                texts.append((".py" if language == "python" else ".yaml", text))
        for number, entry in enumerate(texts, 1):
            policies[page.name if len(texts) == 1 else f"{page.name} {number}"] = entry
    return policies


PRINTED = printed()
README = "README.md 1"
ROADS = [
    *(Road(str(path.relative_to(TOP))) for path in sorted(EXAMPLES.glob("policy.*"))),
    Road("docs/examples/clusterpolicy.yaml"),
    Road("docs/examples/own-states/policies/cluster.py"),
    *(Road(name) for name in STACKS),
    *(
        Road(name)
        for name in PRINTED
        if name != README and not {name, name.partition(" ")[0]} & set(ELSEWHERE)
    ),
    *(
        Road(README, image, CGROUP_DRIVERS[1])
        for image in ("ubuntu2204", "ubuntu2404", "debian12", "debian13")
    ),
]


@pytest.fixture(scope="module")
def nodes(kubeadm_labs: Callable[[LabSpec], Lab]) -> Callable[[Road], Lab]:
    """A lab of one node, for each image and cgroup driver."""
    labs: dict[tuple[str, str], Lab] = {}

    def lab(road: Road) -> Lab:
        key = (road.image, road.cgroups)
        if key not in labs:
            labs[key] = kubeadm_labs(
                LabSpec(nodes=1, images=(road.image,), cgroups=(road.cgroups,))
            )
        else:
            labs[key].nodes[0].reset()
        return labs[key]

    return lab


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a person, in which policy and inventory are."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_inventory(lab: Lab, folder: Path, name: str) -> None:
    """The lab's inventory as ``inventory.yml``; its node is called ``name``."""
    text = re.sub(r"^( +)gpu1:", rf"\1{name}:", lab.inventory.read_text(), flags=re.M)
    assert name in str(yaml.safe_load(text))
    (folder / "inventory.yml").write_text(text)


def remove(node: Node, policy: str, before: list[str]) -> None:
    """Remove the policy; every file of /etc is as it was."""
    gpustate("remove", policy, "-i", "inventory.yml", "--yes", code=0)
    assert etc_files(node) == before
    assert node.run("systemctl is-active containerd").stdout.strip() == "active"


def remove_part(node: Node, policy: str, before: list[str]) -> None:
    """Remove a policy beside README's: what that one's states use is refused, what it shares comes back with it."""
    removed = gpustate("remove", policy, "-i", "inventory.yml", "--yes")
    assert removed.code == 0 or "still names programs of container-toolkit" in removed.out
    gpustate("apply", "base.yaml", "-i", "inventory.yml", "--yes", code=0)
    assert etc_files(node) == before


def test_every_printed_policy_is_run_or_needs_something_else() -> None:
    pages = {name.partition(" ")[0] for name in PRINTED}
    assert pages > {"README.md", "policies.md"}
    assert set(ELSEWHERE) <= {*PRINTED, *pages}
    assert PRINTED[README][0] == ".yaml"


def test_the_commands_of_the_readme_work_as_they_stand(
    nodes: Callable[[Road], Lab], folder: Path
) -> None:
    road = Road(README)
    lab = nodes(road)
    (node,) = lab.nodes
    before = etc_files(node)
    write_inventory(lab, folder, "gpu2")
    (folder / "policy.yaml").write_text(PRINTED[README][1])
    for words in first_commands():
        gpustate(*words, *(("--yes",) if words[0] == "apply" else ()), code=0)
    explained = gpustate("explain", "gpu2", "-i", "inventory.yml")
    assert explained.out.startswith("gpu2  all checks passed")
    again = gpustate("apply", "policy.yaml", "-i", "inventory.yml", "--yes", code=0)
    assert again.summary["changed"] == "0"
    remove(node, "policy.yaml", before)


@pytest.mark.parametrize("road", share("policies on the main road", ROADS, most=1), ids=str)
def test_a_policy_goes_the_whole_road(
    nodes: Callable[[Road], Lab], folder: Path, road: Road
) -> None:
    lab = nodes(road)
    (node,) = lab.nodes
    write_inventory(lab, folder, "gpu1")
    policy = policy_file(road.policy, folder)
    part = road.policy in PRINTED and not re.search(r"preset|driver:", PRINTED[road.policy][1])
    if part:
        # It comes to a node that has README's policy.
        (folder / "base.yaml").write_text(PRINTED[README][1])
        gpustate("apply", "base.yaml", "-i", "inventory.yml", "--yes", code=0)
    before = etc_files(node)
    planned = gpustate("plan", policy, "-i", "inventory.yml", "--detailed-exitcode")
    assert planned.code in (0, 2), planned.out + planned.err
    gpustate("apply", policy, "-i", "inventory.yml", "--yes", code=0)
    again = gpustate("apply", policy, "-i", "inventory.yml", "--yes", code=0)
    assert again.summary["changed"] == "0"
    validated = "base.yaml" if part else policy
    proven = gpustate("validate", validated, "-i", "inventory.yml", "-o", "json", code=0)
    checks = {check["name"]: check["outcome"] for check in proven.node("gpu1")["checks"]}
    assert checks["cuda"] == "ok"
    assert "failed" not in checks.values()
    if part:
        remove_part(node, policy, before)
    else:
        remove(node, policy, before)


def policy_file(policy: str, folder: Path) -> str:
    """The policy as an argument of a verb."""
    if policy.startswith("docs/"):
        return str(TOP / policy)
    if policy in STACKS:
        (folder / "policy.yaml").write_text(
            f"preset: {policy}\ndriver: {{branch: 580, module_type: open}}\n"
        )
        return "policy.yaml"
    suffix, text = PRINTED[policy]
    (folder / f"policy{suffix}").write_text(text)
    return f"policy{suffix}"
