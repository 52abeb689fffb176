"""Every state that keeps originals, applied twice and rolled back twice on a node, compared with other eyes.

Real: systemd, docker, podman, containerd, CRI-O, apt, dpkg, slurmd and slurmctld. k0s, MicroK8s and nvidia-gridd are
stand-ins; GPUs and NVIDIA's packages are simulated.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import standins
from commands import gpustate
from goingback import OBSOLETE
from gridd_standin import CONF, GRIDD, GRIDD_UNIT, SMI
from labnodes import LabFactory
from slurmjobs import Cluster

from gpustate_lab import programs
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: States that go back here, by trial; tests/contract/test_rollback.py wants every one that keeps originals.
ROLLED_BACK = {
    "runtimes": ("containerd", "crio", "docker", "k0s", "microk8s", "podman", "dev-char"),
    "stack": ("driver-repository", "driver", "toolkit-repository", "container-toolkit", "cdi"),
    "fabric": ("fabric-manager", "imex"),
    "licence": ("vgpu-guest",),
    "slurm": ("slurm-gres",),
}
POLICY = """
from gpustate import Policy, registry

policy = Policy(*(registry.get(name)(**given) for name, given in {states!r}.items()))
"""
BINARY = "/usr/bin/nvidia-container-runtime"
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
HOOK_TEXT = {"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-runtime-hook"}}
DAEMON = '{\n\t"log-driver": "local"\n}\n'
CONTAINERD = '# ours\nversion = 2\n\n[plugins."io.containerd.grpc.v1.cri"]\n  max_container_log_line_size = 16384\n'
TOOLKIT = '# of the site\n[nvidia-container-cli]\nload-kmods = true\n\n[nvidia-container-runtime]\nmode = "auto"\n'
GRES = "# of the site\nName=fpga Count=1\n"
FABRIC = "# of the site\nLOG_LEVEL=2\n"
#: Where container toolkit 1.17 comes after a newer one, dpkg leaves the newer one's units, and cdi uses them.
REFRESH = "cdi-refresh|/etc/nvidia-container-toolkit$"
#: What apt, ldconfig, systemd and runtimes make of other files, what has its own time in it, and users of packages.
VOLATILE = (
    "ld.so.cache|/run/cdi/nvidia.yaml|/etc/gpustate-lab|machine-id|resolv.conf|/key.json|args/containerd.toml|"
    "/etc/(passwd|group|shadow|gshadow|subuid|subgid)-? "
)

States = dict[str, dict[str, Any]]


@dataclass
class Trial:
    """A node, or two, and what is applied to them.

    Args:
        lab: where they are.
        first, second: parameters by state.
        nodes: those that are looked at; all have the same policy.
        differs: pattern of lines that may differ once it went back.
    """

    lab: Lab
    first: States
    second: States
    nodes: list[Node] = field(default_factory=list)
    differs: str = "(?!)"

    def run(self, verb: str, *words: object) -> Any:
        ran = gpustate(
            verb, *words, "-i", self.lab.inventory, "--yes", "-o", "json", code=0, timeout=500
        )
        return ran.document

    def seen(self) -> dict[str, str]:
        """Files, packages, units of every node."""
        listing = (
            "find /etc /usr/share/nvidia /usr/share/containers /usr/lib/systemd/system /var/snap /run/cdi "
            "-xdev \\( -type f -printf '%p %m %U:%G ' -exec sh -c 'sha256sum <\"$1\"' - {} \\; "
            f"-o -type l -printf '%p -> %l\\n' \\) 2>/dev/null | grep -vE '{VOLATILE}' | sort"
        )
        commands = {
            "files": listing,
            "folders": "find /etc /usr/share/nvidia -type d | sort",
            "packages": "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n${Conffiles}\\n'",
            "holds": "apt-mark showhold | sort",
            "units": "systemctl list-unit-files --no-legend --no-pager | sort",
            "active": "systemctl list-units --no-legend --no-pager --plain --state=active --type=service,path,timer "
            "| cut -d ' ' -f 1 | grep -E 'nvidia|docker|containerd|crio|k0s|snap|slurm' | sort",
            "failed": "systemctl --failed --no-legend --no-pager",
            # The specification may be that of another toolkit, as long as it has the same devices.
            "cdi": "nvidia-ctk cdi list 2>/dev/null || :",
            "loaded": "cat /run/gpustate-lab/sys/module/nvidia/version 2>/dev/null || :",
        }
        seen: dict[str, str] = {}
        for node in self.nodes:
            paths = node.run(OBSOLETE).stdout.split()
            words = {*paths, *(Path(path).name for path in paths)}
            for name, command in commands.items():
                lines = node.run(command, timeout_s=120).stdout.splitlines()
                seen[f"{node.name} {name}"] = "\n".join(
                    x for x in lines if not {*x.split()} & words
                )
        return seen


def runtimes(make: LabFactory, folder: Path) -> Trial:
    lab = make(LabSpec(nodes=1, images=("debian13-runtimes",), gpus=("2xH100",)))
    (node,) = lab.nodes
    runtime = programs.provide("container-toolkit-1.20.1", print)["nvidia-container-runtime"]
    shutil.copy(runtime, node.root / BINARY.removeprefix("/"))
    for install in (standins.install_crio, standins.install_microk8s, standins.install_k0s):
        install(node)
    standins.write(node, HOOK, json.dumps(HOOK_TEXT))
    standins.write(node, "/etc/docker/daemon.json", DAEMON)
    standins.write(node, "/etc/containerd/config.toml", CONTAINERD)
    node.run("mknod -m 666 /dev/nvidia0 c 195 0; mknod -m 666 /dev/nvidiactl c 195 255")
    node.run("systemctl restart containerd docker; sleep 1")
    first: States = {name: {} for name in ROLLED_BACK["runtimes"]}
    first["dev-char"] = {"links": "always"}
    second: States = {
        name: {"ensure": "absent"} if name in ("podman", "dev-char") else {"default": True}
        for name in first
    }
    return Trial(lab, first, second, [node])


def stack(make: LabFactory, folder: Path) -> Trial:
    lab = make(LabSpec(nodes=1, images=("debian12",), gpus=("2xH100",)))
    (node,) = lab.nodes
    standins.write(node, "/etc/nvidia-container-runtime/config.toml", TOOLKIT)
    shared: States = {"driver-repository": {}, "toolkit-repository": {}, "cdi": {}}
    shared |= {"preflight": {}, "nouveau": {}}
    old: States = {"driver": {"branch": 570}, "container-toolkit": {"version": "1.17.8"}}
    new: States = {
        "driver": {"branch": 580, "parameters": {"NVreg_EnableStreamMemOPs": 1}},
        "container-toolkit": {"version": "1.18.2", "mode": "cdi"},
    }
    return Trial(lab, shared | old, shared | new, [node], REFRESH)


def fabric(make: LabFactory, folder: Path) -> Trial:
    lab = make(LabSpec.parse(nodes=2, image="debian12", gpus="8xB200,4xGB200"))
    tray = lab.node("gpu2").address
    base: States = {"nouveau": {}, "driver-repository": {}, "driver": {"version": "580.65.06"}}
    gpustate_base = folder / "base.py"
    gpustate_base.write_text(POLICY.format(states={**base, "nvlsm": {}}))
    gpustate(
        "apply", gpustate_base, "-i", lab.inventory, "--yes", "-o", "json", code=0, timeout=500
    )
    board = lab.node("gpu1")
    standins.write(board, "/usr/share/nvidia/nvswitch/fabricmanager.cfg", FABRIC)
    base["nvlsm"] = {}
    return Trial(
        lab,
        base
        | {
            "fabric-manager": {"config": {"LOG_LEVEL": 3}, "timeout_s": 60},
            "imex": {"nodes": ["10.99.0.9", tray], "timeout_s": 30},
        },
        base
        | {
            "fabric-manager": {"config": {"LOG_LEVEL": 4}, "timeout_s": 60},
            "imex": {"nodes": [tray], "timeout_s": 30},
        },
        list(lab.nodes),
    )


def licence(make: LabFactory, folder: Path) -> Trial:
    lab = make(LabSpec(nodes=1, images=("debian13",), gpus=("2xH100",)))
    (node,) = lab.nodes
    standins.write(node, "/usr/bin/nvidia-gridd", GRIDD, 0o755)
    standins.write(node, "/usr/bin/nvidia-smi", SMI, 0o755)
    standins.write(node, "/etc/systemd/system/nvidia-gridd.service", GRIDD_UNIT)
    standins.write(node, "/etc/nvidia/gridd.conf", CONF)
    node.run("systemctl daemon-reload; systemctl enable --now nvidia-gridd")
    token = folder / "client.tok"
    token.write_text("eyJhbGciOiJSUzI1NiJ9.a-token-nobody-may-see.c2lnbmF0dXJl")
    first = {"token_file": str(token)}
    return Trial(
        lab,
        {"vgpu-guest": first},
        {"vgpu-guest": {**first, "server_address": "licence.example", "feature_type": 4}},
        [node],
    )


def slurm(make: LabFactory, folder: Path) -> Trial:
    lab = make(LabSpec(nodes=1, images=("debian12",), gpus=("8xH100",), slurm=True))
    (node,) = lab.nodes
    base: States = {
        "driver-repository": {},
        "driver": {"version": "580.65.06"},
        "fabric-manager": {},
    }
    path = folder / "base.py"
    path.write_text(POLICY.format(states=base))
    standins.write(node, "/etc/slurm/gres.conf", GRES)
    gpustate("apply", path, "-i", lab.inventory, "--yes", "-o", "json", code=0, timeout=500)
    cluster = Cluster.of(lab)
    cluster.until(lambda: "NOT_RESPONDING" not in cluster.state("gpu1").flags)
    return Trial(
        lab, {"slurm-gres": {}}, {"slurm-gres": {"features": ["h100"], "node_file": False}}, [node]
    )


TRIALS: dict[str, Callable[[LabFactory, Path], Trial]] = {
    "runtimes": runtimes, "stack": stack, "fabric": fabric, "licence": licence, "slurm": slurm,
}  # fmt: skip


def different(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """Lines that differ."""
    return {
        name: sorted(set(before[name].splitlines()) ^ set(after[name].splitlines()))
        for name in before
        if before[name] != after[name]
    }


@pytest.mark.proof
@pytest.mark.parametrize("name", TRIALS)
def test_it_goes_back_to_the_first_policy_and_to_what_was_there(
    lab_factory: LabFactory, tmp_path: Path, name: str
) -> None:
    assert set(TRIALS) == set(ROLLED_BACK)
    trial = TRIALS[name](lab_factory, tmp_path)
    policies: list[Path] = []
    for number, states in enumerate((trial.first, trial.second)):
        policies.append(tmp_path / f"{number}.py")
        policies[-1].write_text(POLICY.format(states=states))
    origin = trial.seen()
    run = trial.run("apply", policies[0])["run"]
    first = trial.seen()
    trial.run("apply", policies[1])
    second = trial.seen()
    assert different(first, second)

    back = trial.run("rollback")
    lines = [line for rows in different(first, trial.seen()).values() for line in rows]
    assert [line for line in lines if not re.search(trial.differs, line)] == []
    notes = [note for row in back["nodes"] for note in row["notes"]]
    assert not [note for note in notes if "cannot" in note]
    whole = trial.run("rollback", run)
    changed = {
        state["state"]
        for row in whole["nodes"]
        for state in row["states"]
        if state["outcome"] == "changed"
    }
    assert set(ROLLED_BACK[name]) <= changed
    left = different(origin, trial.seen())
    # Kernel headers stay when the driver goes: other modules may need them.
    left = {
        name: [row for row in rows if not re.search(f" linux-headers-|{trial.differs}", row)]
        for name, rows in left.items()
    }
    assert {name: rows for name, rows in left.items() if rows} == {}
