"""README's policy on every distribution, with each branch: validated, unchanged, moved, back, removed.

Real: systemd, sshd, containerd, DKMS, the package manager with its signatures, the container toolkit with NVIDIA's
packaging. Simulated: the distribution (apart from Debian) on a Debian root, its kernels, the GPUs, and what is in
NVIDIA's other packages, which have the names and relations of NVIDIA's repository for the distribution. Looked at with
dpkg, rpm, modinfo and nvidia-smi, not with the probes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Ran, gpustate
from distributions import DISTRIBUTIONS, Distribution, Machine, RpmWorld, rpm_world
from labnodes import LabFactory
from rpmdriver import DriverRpms
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

#: What these tests prove of states, how and on what: the table of states is made from it. Rpm distributions are rocky, amzn, sles.
PROVES = {
    "cdi": ("simulated node", "rhel", "suse", "amazon"),
    "container-toolkit": ("simulated node", "rhel", "suse", "amazon"),
    "containerd": ("simulated node", "rhel", "suse", "amazon"),
    "driver": ("simulated node", "ubuntu", "rhel", "suse", "amazon"),
    "driver-repository": ("simulated node", "rhel", "suse", "amazon"),
    "fabric-manager": ("simulated node", "rhel", "suse", "amazon"),
    "gpu-labels": ("simulated node", "rhel", "suse", "amazon"),
    "nouveau": ("simulated node", "rhel", "suse", "amazon"),
    "persistenced": ("simulated node", "rhel", "suse", "amazon"),
    "preflight": ("simulated node", "rhel", "suse", "amazon"),
    "toolkit-repository": ("simulated node", "rhel", "suse", "amazon"),
    "validator": ("simulated node", "rhel", "suse", "amazon"),
}
NEWEST = "newest"
#: Which branches a node is moved to, and back to; ``newest`` is what the repository has last.
MOVES = {"570": ("580", NEWEST, "570"), "580": (NEWEST, "580"), NEWEST: ("580", NEWEST)}
ROWS = [(name, branch) for name in DISTRIBUTIONS for branch in MOVES]


@pytest.fixture(scope="module")
def machines(
    kubeadm_labs: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Distribution, Path], Machine]:
    """A fresh node of a distribution."""
    labs: dict[str, Lab] = {}
    worlds: dict[str, RpmWorld] = {}
    rpms = DriverRpms(tmp_path_factory.mktemp("drivers"))

    def machine(distribution: Distribution, folder: Path) -> Machine:
        image, name = distribution.image, distribution.name
        if distribution.tag and name not in worlds:
            worlds[name] = rpm_world(distribution, rpms, tmp_path_factory.mktemp(name))
        if image not in labs:
            labs[image] = kubeadm_labs(LabSpec(nodes=1, images=(image,)))
        return Machine(labs[image], distribution, folder, worlds.get(name))

    return machine


@pytest.mark.parametrize(
    ("name", "branch"), share("distributions", ROWS, most=1), ids=lambda word: word
)
def test_readmes_policy_with_every_branch_of_every_distribution(
    machines: Callable[[Distribution, Path], Machine], tmp_path: Path, name: str, branch: str
) -> None:
    distribution = DISTRIBUTIONS[name]
    machine = machines(distribution, tmp_path)
    offered = {version[:3]: version for version in distribution.drivers}
    newest = max(offered)
    policy = tmp_path / "policy.yaml"

    def run(verb: str, target: str, *words: str, code: int = 0) -> Ran:
        number = newest if target == NEWEST else target
        policy.write_text(f"preset: kubernetes-node\ndriver: {{branch: {number}}}\n")
        return gpustate(verb, policy, "-i", machine.inventory, *words, code=code, timeout=600)

    def apply(target: str) -> None:
        run("apply", target, "--yes")
        machine.is_whole(offered[newest if target == NEWEST else target])

    def planned() -> set[str]:
        """Packages of the driver's version that a plan names, with the repository that it names."""
        row = run("plan", branch, "-o", "json").node(machine.node.name)
        changes = {
            (state["state"], change["field"]): change
            for state in row["states"]
            for change in state.get("changes", ())
        }
        packages = changes["driver", "packages"]
        assert machine.origin() in packages["why"], packages
        manager, version = (changes["fabric-manager", f]["after"] for f in ("package", "version"))
        driver = offered[newest if branch == NEWEST else branch]
        versions = [*packages["after"].values(), version]
        assert all(re.match(rf"(\d+:)?{re.escape(driver)}[-_]", v) for v in versions), versions
        assert all(changes["container-toolkit", "versions"]["after"].values())
        dependencies = packages["why"].partition("; with ")[2].split("; ")
        assert all(" from " in row for row in filter(None, dependencies)), packages
        texts = "; ".join(row.partition(" from ")[0] for row in dependencies)
        rows = re.findall(r"([^ ,;]+(?:, [^ ,;]+)*) ([^ ,;]+)", texts)
        brought = [n for names, v in rows if driver in v for n in names.split(", ")]
        return {*packages["after"], manager, *brought}

    before = machine.etc_files()
    if branch != NEWEST and branch not in offered:
        refusal = next(
            line for line in run("plan", branch, code=5).out.splitlines() if "x driver " in line
        )
        assert branch in refusal, refusal
        assert newest in refusal, refusal
        assert machine.etc_files() == before
        return
    named = planned()
    assert machine.etc_files() == before
    apply(branch)
    assert machine.packages().keys() == named
    assert run("apply", branch, "--yes").summary["changed"] == "0"
    checks = run("validate", branch, "-o", "json").node(machine.node.name)["checks"]
    outcomes = {check["name"]: check["outcome"] for check in checks}
    assert outcomes["cuda"] == outcomes["container"] == "ok", outcomes
    moves = [to for to in MOVES[branch] if to == NEWEST or to in offered]
    for to in moves:
        apply(to)
    assert run("apply", moves[-1], "--yes").summary["changed"] == "0"
    run("remove", moves[-1], "--yes")
    assert machine.packages() == {}
    assert machine.output("cat /etc/dnf/plugins/versionlock.list | grep -v '^#'") == ""
    assert machine.etc_files() == before
    assert machine.output("systemctl is-active containerd") == "active"


#: What a board with NVSwitches has besides: NSCQ, IMEX, and libraries for programs of 32 bits.
BOARD = {
    "debian12": "libnvidia-nscq-570 nvidia-imex-570 libcuda1:i386",
    "ubuntu2404": "libnvidia-nscq-570 nvidia-imex-570 libnvidia-compute-570:i386",
    "rocky": "nvidia-imex-570 nvidia-driver-cuda-libs.i686",
}


@pytest.mark.parametrize("name", share("branches of a whole board", list(BOARD), most=1))
def test_a_whole_board_moves_through_names_and_layouts_and_back(
    machines: Callable[[Distribution, Path], Machine], tmp_path: Path, name: str
) -> None:
    """Fabric Manager, IMEX, DCGM and 32-bit libraries in one go; Fabric Manager and IMEX have other names from 580 on."""
    distribution = DISTRIBUTIONS[name]
    machine = machines(distribution, tmp_path)
    policy = tmp_path / "policy.yaml"
    offered = {version[:3]: version for version in distribution.drivers}

    def apply(branch: str) -> Ran:
        policy.write_text(
            f"preset: kubernetes-node\ndriver: {{branch: {branch}}}\nstates: {{dcgm: {{}}}}\n"
        )
        return gpustate("apply", policy, "-i", machine.inventory, "--yes", code=0, timeout=600)

    apply("570")
    machine.install(BOARD[name], offered["570"])
    apply("570")
    foreign = machine.foreign()
    for branch in ("570", "580", max(offered), "570"):
        apply(branch)
        machine.is_whole(offered[branch])
        suffix = "-570" if branch == "570" else ""
        names = {*machine.packages()}
        manager = "nvidia-fabric-manager" if distribution.tag and suffix else "nvidia-fabricmanager"
        assert {
            f"nvidia-imex{suffix}",
            manager if distribution.tag else f"{manager}{suffix}",
        } <= names
        copies = machine.copies()
        assert len(copies) >= 1, branch
        assert set(copies.values()) == {offered[branch]}, copies
        units = "nvidia-fabricmanager nvidia-dcgm nvidia-persistenced containerd"
        assert set(machine.output(f"systemctl is-active {units}").split()) == {"active"}
        assert apply(branch).summary["changed"] == "0"
        assert machine.foreign() == foreign
