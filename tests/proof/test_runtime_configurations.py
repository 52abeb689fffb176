"""docker 20.10 and 26.1, and CRI-O, as they are configured out there: only the handler differs afterwards,
nothing a second time, and every byte back when it is removed.

Each configuration is laid out on two nodes whose services run with it; then the states are applied and
removed by the command line, docker's and CRI-O's in one run. Looked at with ``docker info``, ``crio config``,
systemd's journal and sha256sum. docker is real, from Debian, and so is CRI-O.

containerd's own 27 configurations are in test_containerd_configurations.py.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, gpustate
from labnodes import LabFactory
from runtimeinputs import BINARY, CRIO, DOCKER
from shares import share
from standins import install_crio

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

IMAGES = ("debian12-runtimes", "debian13-runtimes")
POLICY = """
from gpustate import Policy
from gpustate.states.crio import CrioHandlerRegistered
from gpustate.states.docker import DockerRuntimeRegistered

policy = Policy(
    DockerRuntimeRegistered(binary="{binary}", default={default}),
    CrioHandlerRegistered(binary="{binary}", default={default}),
)
"""
FILES = (
    "cd / && find etc/docker etc/crio etc/systemd/system -name key.json -prune -o "
    "\\( -type f -printf '%p %m %U:%G %T@ ' -exec sha256sum {} \\; -o -printf '%p %m %U:%G %l\\n' \\) | sort"
)
INFO = "docker info --format '{{.DefaultRuntime}}{{range $k, $v := .Runtimes}}|{{$k}}={{$v.Path}}{{end}}'"


@dataclass(frozen=True)
class Case:
    """One configuration of docker and one of CRI-O, and whether the handler is the default as well."""

    docker: str
    crio: str
    default: bool

    def __str__(self) -> str:
        return f"{self.docker}+{self.crio}{'-default' if self.default else ''}"


POINTS = [
    Case(name, list(CRIO)[number % len(CRIO)], number % 2 == 1)
    for number, name in enumerate(DOCKER)
]


@pytest.fixture(scope="module")
def two(lab_factory: LabFactory) -> Lab:
    lab = lab_factory(LabSpec(nodes=len(IMAGES), images=IMAGES, gpus=("none",)))
    for node in lab.nodes:
        install_crio(node)
    return lab


def lay_out(node: Node, case: Case) -> None:
    """Put both configurations in place, and start the services with them."""
    node.run("systemctl stop docker.socket docker crio; rm -rf /var/lib/gpustate /etc/crio")
    text, daemon = DOCKER[case.docker], node.root / "etc/docker/daemon.json"
    daemon.parent.mkdir(exist_ok=True)
    daemon.unlink(missing_ok=True)
    if text is not None:
        daemon.write_bytes(text.encode())
    for name, part in CRIO[case.crio].items():
        path = node.root / "etc/crio" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(part.encode())
    if case.crio == "nothing":
        # Without a file CRI-O takes crun from its PATH.
        shutil.rmtree(node.root / "etc/crio", ignore_errors=True)
        (node.root / "etc/crio/crio.conf.d").mkdir(parents=True)
    node.run("systemctl reset-failed docker crio; systemctl start docker crio", check=False)
    for unit in ("docker", "crio"):
        state = node.run(f"systemctl is-active {unit}", check=False).stdout
        assert state == "active\n", (node.image, unit, node.logs()[-1200:])


@dataclass(frozen=True)
class Seen:
    """A node as its own tools show it."""

    files: str
    default: str
    runtimes: dict[str, str]
    crio: list[str]
    docker_process: str
    reloads: int
    crio_starts: int


def look(node: Node) -> Seen:
    default, *rows = node.run(INFO).stdout.strip().split("|")
    count = "journalctl -b -u {} -o cat | grep -c '{}' || :"
    return Seen(
        files=node.run(FILES).stdout,
        default=default,
        # 20.10 forgets its aliases of runc once it has reread its file.
        runtimes={
            name: path
            for name, _, path in (row.partition("=") for row in rows)
            if not name.startswith("io.containerd.")
        },
        crio=node.run("crio config").stdout.splitlines(),
        docker_process=node.run("systemctl show -p MainPID docker").stdout,
        reloads=int(node.run(count.format("docker", "^Reloaded docker")).stdout),
        crio_starts=int(node.run(count.format("crio", "^Started crio")).stdout),
    )


def run(verb: str, lab: Lab, case: Case, folder: Path) -> Ran:
    policy = folder / "policy.py"
    policy.write_text(POLICY.format(binary=BINARY, default=case.default))
    return gpustate(verb, policy, "-i", lab.inventory, "--yes", "-o", "json")


def outcomes(ran: Ran, node: Node) -> dict[str, Any]:
    return {state["state"]: state["outcome"] for state in ran.node(node.name)["states"]}


def without_ours(dump: list[str]) -> list[str]:
    """Settings but ours: one that has its default value is a comment, and all runtimes are or none."""
    left: list[str] = []
    table = ""
    for line in (line.removeprefix("# ") for line in dump):
        if not re.match(r'\[|[a-z0-9_]+ = |\t"', line):
            continue
        table = line if line.startswith("[") else table
        if table != "[crio.runtime.runtimes.nvidia]" and "default_runtime = " not in line:
            left.append(line)
    return left


@pytest.mark.parametrize("case", share("runtime configurations", POINTS, most=2), ids=str)
def test_only_the_handler_differs_and_every_byte_comes_back(
    case: Case, two: Lab, tmp_path: Path
) -> None:
    for node in two.nodes:
        lay_out(node, case)
    before = {node.name: look(node) for node in two.nodes}

    applied = run("apply", two, case, tmp_path)
    there: dict[str, Seen] = {}
    for node in two.nodes:
        old, new = before[node.name], look(node)
        there[node.name] = new
        done = outcomes(applied, node)
        assert set(done.values()) <= {"changed", "unchanged"}, (node.image, applied.out[-3000:])
        assert new.runtimes == {**old.runtimes, "nvidia": BINARY}
        assert new.default == ("nvidia" if case.default else old.default)
        assert new.docker_process == old.docker_process, "docker was restarted"
        assert new.reloads - old.reloads == (1 if done["docker"] == "changed" else 0)
        assert new.crio_starts - old.crio_starts == (1 if done["crio"] == "changed" else 0)
        assert without_ours(new.crio) == without_ours(old.crio)
        assert f'runtime_path = "{BINARY}"' in new.crio
        data = json.loads((node.root / "etc/docker/daemon.json").read_text())
        was = json.loads(DOCKER[case.docker] or "{}")
        assert data.get("features") == was.get("features")

    again = run("apply", two, case, tmp_path)
    for node in two.nodes:
        assert set(outcomes(again, node).values()) == {"unchanged"}
        assert look(node) == there[node.name]

    removed = run("remove", two, case, tmp_path)
    assert removed.code == 0, removed.out
    for node in two.nodes:
        old, now = before[node.name], look(node)
        assert now.files == old.files
        assert (now.default, now.runtimes, now.crio) == (old.default, old.runtimes, old.crio)
        assert now.docker_process == old.docker_process
        assert node.run("ls -A /var/lib/gpustate/originals").stdout == ""


def test_forty_configurations_and_more_over_all_runtimes() -> None:
    assert len(DOCKER) + len({case.crio for case in POINTS}) >= 45
