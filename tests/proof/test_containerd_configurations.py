"""containerd 1.6, 1.7 and 2.1 (with --proof 2.2, 2.3 and 2.4 too) as they are configured out there: only the handler and CDI differ afterwards,
one restart, nothing a second time, and every byte back when it is taken away.

Each configuration is laid out on one node of each image, and the real service must run with it; then the state is
applied and removed by the command line. Looked at with ``containerd config dump``, systemd's journal and
sha256sum. What a version of containerd cannot run with, or this program refuses for it, is in a table
here, so that nothing is left out silently.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, gpustate
from labnodes import LabFactory
from shares import everything, share

from gpustate.lab.api import Lab
from gpustate.lab.node import Node
from gpustate.lab.spec import LabSpec

pytestmark = pytest.mark.node

INPUTS = Path(__file__).parents[1] / "data" / "containerd" / "inputs"
#: Releases of containerd's own project, which are built first.
RELEASES = ("debian13-containerd22", "debian13-containerd23", "debian13-containerd24")
VERSION_2 = ("debian13-containerd2", *RELEASES)
IMAGES = ("debian12", "debian13", "debian13-containerd2", *(RELEASES if everything() else ()))
BINARY = "/usr/bin/true"
POLICY = """
from gpustate import Policy
from gpustate.states.containerd import ContainerdHandler

policy = Policy(ContainerdHandler(binary="{binary}", default={default}))
"""
RUNTIMES = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
#: Configurations beside those of ``tests/data/containerd/inputs``: path to text.
MORE: Mapping[str, Mapping[str, str]] = {
    "version-2": {"config.toml": "version = 2\n"},
    "version-3": {"config.toml": "version = 3\n"},
    "systemd-cgroup": {
        "config.toml": f'version = 2\n{RUNTIMES}.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
        f"  {RUNTIMES}.runc.options]\n    SystemdCgroup = true\n"
    },
    "version-3-systemd-cgroup": {
        "config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"
        "  runtime_type = 'io.containerd.runc.v2'\n"
        "  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n"
        "    SystemdCgroup = true\n"
    },
    "other-runtimes": {
        "config.toml": f"version = 2\n{RUNTIMES}.kata]\n"
        f'runtime_type = "io.containerd.kata.v2"\n{RUNTIMES}.crun]\nruntime_type = "io.containerd.runc.v2"\n'
        f'{RUNTIMES}.crun.options]\nBinaryName = "/usr/bin/crun"\n'
    },
    "imports-elsewhere": {
        "config.toml": 'version = 2\nimports = ["/etc/containerd/site/*.toml"]\noom_score = -7\n',
        "site/10-debug.toml": 'version = 2\n[debug]\n  level = "info"\n',
        "site/20-metrics.toml": 'version = 2\n[metrics]\n  address = "127.0.0.1:1338"\n',
    },
}
#: Made by containerd itself on each node: its own defaults, as ``kubeadm`` guides have them.
MADE = {
    "packaged": "",
    "written-out": "containerd config default >config.toml",
    "kubeadm": "containerd config default | sed 's/SystemdCgroup = false/SystemdCgroup = true/' >config.toml",
}
#: A file of version 3 beside a root of version 2 hides what the root says; it is healed, which
#: test_containerd.py shows, so more than the handler differs afterwards.
HEALED = {"newer-drop-in"}
CASES = [*MADE, *sorted(path.name for path in INPUTS.iterdir() if path.name not in HEALED), *MORE]
#: What containerd itself does not run with, by the image: these versions know no such file.
CANNOT: Mapping[str, Any] = dict.fromkeys(
    ("version-3", "version-3-systemd-cgroup", "imports-one-line", "imports-trailing-comma"),
    ("debian13",),  # 1.7 reads version 2 at most; 1.6 does not look
)
#: What is refused, and why.
REFUSED = {
    **{(name, "debian12"): "write it as version 2" for name in CANNOT},
    **{("version-1", image): "version 1 file" for image in VERSION_2},
    **{("no-trailing-newline", image): "overlooks it" for image in VERSION_2},
}
FILES = (
    "cd / && find etc/containerd etc/systemd/system -path '*containerd*' "
    "\\( -type f -printf '%p %m %U:%G %T@ ' -exec sha256sum {} \\; -o -printf '%p %m %U:%G %l\\n' \\) | sort"
)


@dataclass(frozen=True)
class Case:
    """A configuration, and whether the handler is to be the default as well."""

    name: str
    default: bool

    def __str__(self) -> str:
        return f"{self.name}{'-default' if self.default else ''}"


POINTS = [Case(name, number % 2 == 1) for number, name in enumerate(CASES)]


@pytest.fixture(scope="module")
def three(lab_factory: LabFactory) -> Lab:
    lab = lab_factory(LabSpec(nodes=len(IMAGES), images=IMAGES, gpus=("none",)))
    for node in lab.nodes:
        node.run("mkdir -p /etc/containerd; cp -a /etc/containerd /var/tmp/packaged")
    return lab


def lay_out(node: Node, case: str) -> bool:
    """Put a configuration in place; whether the service runs with it."""
    node.run(
        "systemctl stop containerd; rm -rf /etc/containerd /var/lib/gpustate; cp -a /var/tmp/packaged /etc/containerd"
    )
    etc = node.root / "etc/containerd"
    if case not in MADE:
        for path in etc.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if case in MORE:
            for name, text in MORE[case].items():
                (etc / name).parent.mkdir(exist_ok=True)
                (etc / name).write_text(text)
        else:
            shutil.copytree(INPUTS / case, etc, dirs_exist_ok=True)
    elif MADE[case]:
        node.run(f"cd /etc/containerd && {MADE[case]}")
    node.run("systemctl reset-failed containerd; systemctl start containerd", check=False)
    return node.run("systemctl is-active containerd", check=False).stdout == "active\n"


def dump(node: Node) -> dict[str, Any]:
    # containerd 1.6 has no dump of a file that is not there, and runs with its defaults.
    words = "containerd config dump 2>/dev/null || containerd config default"
    found = flat(tomllib.loads(node.run(words).stdout))
    # containerd 1.x lists what it has read in any order.
    return found | {"/imports": sorted(found.get("/imports", []))}


def flat(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values by path, without those that say nothing."""
    rows: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            rows |= flat(value, f"{path}/{key}")
        elif value not in ("", 0, []):
            rows[f"{path}/{key}"] = value
    return rows


def starts(node: Node) -> int:
    """How often the service came up since the node booted."""
    return int(
        node.run("journalctl -b -u containerd -o cat | grep -c '^Started containerd' || :").stdout
    )


def serves(node: Node) -> bool:
    """The CRI plugin works; some configurations name what is not installed here."""
    return " ok " in node.run("ctr plugins ls | grep ' cri '").stdout


def is_own(path: str, case: Case) -> bool:
    own = ["/runtimes/nvidia/", "/enable_cdi", "/cdi_spec_dirs"]
    if case.default:
        own.append("/default_runtime_name")
    return path == "/imports" or any(one in f"{path}/"[:-1] for one in own)


def run(verb: str, lab: Lab, nodes: list[Node], case: Case, folder: Path) -> Ran:
    policy = folder / "policy.py"
    policy.write_text(POLICY.format(binary=BINARY, default=case.default))
    names = ",".join(node.name for node in nodes)
    return gpustate(verb, policy, "-i", lab.inventory, "-l", names, "--yes", "-o", "json")


def state_of(ran: Ran, node: Node) -> dict[str, Any]:
    state: dict[str, Any] = ran.node(node.name)["states"][0]
    return state


@pytest.mark.parametrize("case", share("containerd configurations", POINTS, most=3), ids=str)
def test_only_handler_and_cdi_differ_one_restart_and_every_byte_comes_back(
    case: Case, three: Lab, tmp_path: Path
) -> None:
    nodes: list[Node] = []
    for node in three.nodes:
        runs = lay_out(node, case.name)
        assert runs == (node.image not in CANNOT.get(case.name, ())), (
            node.image,
            node.logs()[-800:],
        )
        if runs:
            nodes.append(node)
    if not nodes:
        return
    before = {node.name: (dump(node), node.run(FILES).stdout, starts(node)) for node in nodes}
    served = {node.name: serves(node) for node in nodes}

    applied = run("apply", three, nodes, case, tmp_path)
    good: list[Node] = []
    for node in nodes:
        state, (old, files, count) = state_of(applied, node), before[node.name]
        refusal = REFUSED.get((case.name, node.image))
        if refusal:
            assert state["outcome"] == "refused"
            assert refusal in state["reason"]
            assert (dump(node), node.run(FILES).stdout, starts(node)) == (old, files, count)
            continue
        good.append(node)
        assert state["outcome"] in ("changed", "unchanged"), state
        new = dump(node)
        changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        foreign = {path for path in changed if not is_own(path, case)}
        # containerd 1.x drops its built-in runc as soon as any file names a runtime: it is written out.
        assert {path for path in foreign if "/runtimes/runc/" not in path or path in old} == set()
        binaries = [new[p] for p in new if re.search(r"/runtimes/nvidia/options/BinaryName$", p)]
        assert binaries == [BINARY], new
        assert starts(node) - count == (1 if state["outcome"] == "changed" else 0)
        # A file that names a runtime and no runc breaks containerd 1.x; with ours it works again.
        assert serves(node) >= served[node.name]

    there = {node.name: (node.run(FILES).stdout, starts(node)) for node in good}
    again = run("apply", three, good, case, tmp_path)
    for node in good:
        assert state_of(again, node)["outcome"] == "unchanged"
        assert (node.run(FILES).stdout, starts(node)) == there[node.name]

    removed = run("remove", three, good, case, tmp_path)
    assert removed.code == 0, removed.out
    for node in good:
        old, files, _ = before[node.name]
        assert node.run(FILES).stdout == files
        assert dump(node) == old
        assert node.run("systemctl is-active containerd").stdout == "active\n"
        assert node.run("ls -A /var/lib/gpustate/originals").stdout == ""


def test_at_least_twelve_configurations_run_on_every_version() -> None:
    for image in IMAGES:
        good = [
            name
            for name in CASES
            if image not in CANNOT.get(name, ()) and (name, image) not in REFUSED
        ]
        assert len(good) >= 12, (image, good)
