"""Configure containerd or CRI-O of a new disk: the cgroup driver, and what a kubelet's containers need.

Sources:
    cri-o/cri-o, crio.conf(5): ``cgroup_manager``, ``conmon_cgroup``.
    kubernetes.io, "Container Runtimes": ``SystemdCgroup``.
    containerd docs/cri/config.md: a table of ``runtimes`` replaces the default one.
    proc_pid_oom_score_adj(5): lowering it needs CAP_SYS_RESOURCE.
"""

from __future__ import annotations

from pathlib import Path

import tomlkit

from gpustate_lab.paths import write_text
from gpustate_lab.process import cgroup_hierarchies

#: The section of the CRI plugin, by version of the configuration; newer versions have that of version 3.
_SECTIONS = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
_SECTION_3 = "io.containerd.cri.v1.runtime"


#: Ahead of runc in PATH: sandboxes and guaranteed pods have an OOM score that this machine may forbid.
_RUNC = """#!/bin/sh
f=config.json; o=
for a; do case $o in --bundle|-b) f=$a/config.json ;; esac; o=$a; done
[ ! -f "$f" ] || sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' "$f"
for r in /usr/sbin/runc /usr/bin/runc; do [ ! -x $r ] || exec $r "$@"; done
echo "runc: not found" >&2; exit 127
"""


def allow_oom_scores(root: Path) -> None:
    """Let runc start containers with a lower OOM score than this machine allows, without it."""
    write_text(root / "usr/local/sbin/runc", _RUNC, 0o755)


def configure(root: Path, *, cgroup_driver: str) -> None:
    """Write the settings into ``/etc/containerd/config.toml``, or a drop-in of CRI-O; a file that has them stays as it is.

    Args:
        root: the node's ``/`` on the controller.
        cgroup_driver: of runc.
    """
    if (crio := root / "etc/crio/crio.conf.d").exists():
        lines = ["[crio.runtime]"]
        if cgroup_driver != "systemd":
            lines += [f'cgroup_manager = "{cgroup_driver}"', 'conmon_cgroup = "pod"']
        # In a node, crun cannot write the hugetlb limits of a kubelet's containers with cgroup v1.
        if len(cgroup_hierarchies()) > 1:
            lines.append('default_runtime = "runc"')
        write_text(crio / "20-gpustate-lab.conf", "\n".join(lines) + "\n")
        return
    path = root / "etc/containerd/config.toml"
    document = tomlkit.parse(path.read_text() if path.exists() else "version = 2\n")
    section = _SECTIONS.get(int(str(document.get("version", 1))), _SECTION_3)
    cri = document.setdefault("plugins", {}).setdefault(section, {})
    systemd = cgroup_driver == "systemd"
    runtimes = cri.get("containerd", {}).get("runtimes", {})
    if bool(runtimes.get("runc", {}).get("options", {}).get("SystemdCgroup")) != systemd:
        runc = cri.setdefault("containerd", {}).setdefault("runtimes", {}).setdefault("runc", {})
        runc.setdefault("runtime_type", "io.containerd.runc.v2")
        runc.setdefault("options", {})["SystemdCgroup"] = systemd
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, tomlkit.dumps(document))
