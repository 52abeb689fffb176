"""containerd 1.6, 1.7 and 2.1 (with --proof 2.2, 2.3 and 2.4 too) as they are configured out there: only the handler and CDI differ afterwards,
one restart, nothing a second time, and every byte back when it is removed.

Each configuration is laid out on one node of each image, and the real service must run with it; then the state is
applied and removed by the command line. Looked at with ``containerd config dump``, systemd's journal, sha256sum, and
by asking the running process over its CRI socket. What a version of containerd cannot run with, or this program refuses for it, is in a table
here, so that nothing is left out silently.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import containerdcorpus
import pytest
from commands import Ran, gpustate
from labnodes import LabFactory
from shares import everything, share

from gpustate import nodeside
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

INPUTS = Path(__file__).parents[1] / "data" / "containerd" / "inputs"
#: Releases of containerd's own project, which are built first.
RELEASES = ("debian13-containerd22", "debian13-containerd23", "debian13-containerd24")
#: containerd 2.0 to 2.2: from 2.3 on each file is migrated by itself, in steps.
TO_2_2 = ("debian13-containerd2", "debian13-containerd22")
IMAGES = ("debian12", "debian13", "debian13-containerd2", *(RELEASES if everything() else ()))
BINARY = "/usr/bin/true"
POLICY = """
from gpustate import Policy
from gpustate.states.containerd import ContainerdHandlerRegistered

policy = Policy(ContainerdHandlerRegistered(binary="{binary}", default={default}))
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
#: Of the corpus, those that need nothing that is not on the nodes, and that every version can load.
CORPUS = (
    *(
        "aks-containerd2-version2-gpu",
        "aks-ubuntu-v2",
        "aks-ubuntu-v2-gpu",
        "eks-al2-gpu-v2",
        "eks-al2-v2",
    ),
    *(
        "gke-gvisor-v2",
        "image-builder-capi",
        "kata-without-runc",
        "kops-v2-gpu",
        "kubeadm-guide-v2",
    ),
    *(
        "kubeadm-guide-v2-typed",
        "kubeadm-pause-only",
        "nixos-both-names",
        "nvidia-ctk-117",
        "operator-toolkit",
    ),
)
#: With these the service is active, and serves no pod.
DEAD: Mapping[str, Mapping[str, str]] = {
    "registry-twice": {
        "config.toml": 'version = 2\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
        '[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]\n  endpoint = ["https://mirror.example"]\n'
    },
    "no-such-default": {
        "config.toml": 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n  default_runtime_name = "nope"\n'
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
CASES = [
    *MADE,
    *sorted(path.name for path in INPUTS.iterdir() if path.name not in HEALED),
    *MORE,
    *CORPUS,
    *DEAD,
]
#: What containerd itself does not run with, by the image: these versions know no such file.
CANNOT: Mapping[str, Any] = dict.fromkeys(
    ("version-3", "version-3-systemd-cgroup", "imports-one-line", "imports-trailing-comma"),
    ("debian13",),  # 1.7 reads version 2 at most; 1.6 does not look
)
#: What is refused, and why.
REFUSED = {
    **{(name, "debian12"): "convert it to version 2" for name in CANNOT},
    **{("version-1", image): "a file without version" for image in TO_2_2},
    **{("no-trailing-newline", image): "ignores it" for image in TO_2_2},
    **{("registry-twice", image): "`mirrors` cannot be set when" for image in IMAGES},
    **{("no-such-default", image): "default_runtime_name is nope" for image in IMAGES},
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


POINTS = [Case(name, number % 2 == 1 and name not in DEAD) for number, name in enumerate(CASES)]


@pytest.fixture(scope="module")
def three(lab_factory: LabFactory) -> Lab:
    lab = lab_factory(LabSpec(nodes=len(IMAGES), images=IMAGES, gpus=("none",)))
    for node in lab.nodes:
        node.run("mkdir -p /etc/containerd; cp -a /etc/containerd /var/tmp/packaged")
        for name in ("cri.py", "cri_rows.py"):
            text = (resources.files(nodeside) / name).read_bytes()
            (node.root / "var/tmp" / name).write_bytes(text)
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
        if case in CORPUS:
            containerdcorpus.lay_out(case, etc)
        elif case in MORE or case in DEAD:
            for name, text in {**MORE, **DEAD}[case].items():
                (etc / name).parent.mkdir(exist_ok=True)
                (etc / name).write_text(text)
        else:
            shutil.copytree(INPUTS / case, etc, dirs_exist_ok=True)
    elif MADE[case]:
        node.run(f"cd /etc/containerd && {MADE[case]}")
    # Named by a configuration; without it containerd's CRI plugin does not load.
    if node.run("grep -q cri-base.json /etc/containerd/config.toml", check=False).returncode == 0:
        node.run("ctr oci spec >/etc/containerd/cri-base.json")
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


def answers(node: Node) -> list[str]:
    """What the running process says over CRI; some configurations name what is not installed here."""
    words = "/var/tmp/cri_rows.py /var/tmp/cri.py /run/containerd/containerd.sock 10"
    rows = node.run(f"python3 -I -S -B {words}").stdout.splitlines()
    assert ("cri=ok|containerd" in rows[0]) == (
        " ok " in node.run("ctr plugins ls | grep ' cri '").stdout
    )
    return rows


def serves(node: Node) -> bool:
    """The CRI plugin works."""
    return answers(node)[0].startswith("cri=ok|")


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
            assert state["outcome"] == "refused", (node.image, state, answers(node))
            assert refusal in state["reason"]
            assert (dump(node), node.run(FILES).stdout, starts(node)) == (old, files, count)
            continue
        good.append(node)
        assert state["outcome"] in ("changed", "unchanged"), state.get("reason")
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
        if serves(node):
            handlers = [row for row in answers(node) if row.startswith("cri_handler=nvidia|")]
            assert [row.split("|")[2] for row in handlers] == [BINARY]
        if case.name in CORPUS:
            assert serves(node), (node.image, answers(node))

    if not good:
        return
    there = {node.name: (node.run(FILES).stdout, starts(node)) for node in good}
    again = run("apply", three, good, case, tmp_path)
    for node in good:
        assert state_of(again, node)["outcome"] == "unchanged"
        assert (node.run(FILES).stdout, starts(node)) == there[node.name]

    # What became alive with runc or another default would be dead again.
    alive = [node for node in good if serves(node) and not served[node.name]]
    removed = run("remove", three, good, case, tmp_path)
    assert (removed.code != 0) == bool(alive), removed.out
    for node in alive:
        assert "CRI plugin would not load" in state_of(removed, node)["reason"]
        assert node.run(FILES).stdout == there[node.name][0]
    for node in (node for node in good if node not in alive):
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
