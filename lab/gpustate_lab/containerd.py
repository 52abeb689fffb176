"""Configure containerd or CRI-O of a new disk: the cgroup driver, and what a kubelet's containers need.

Sources:
    cri-o/cri-o, crio.conf(5): ``cgroup_manager``, ``conmon_cgroup``.
    kubernetes.io, "Container Runtimes": ``SystemdCgroup``.
    containerd docs/cri/config.md: ``restrict_oom_score_adj``; a table of ``runtimes`` replaces the default one.
"""

from __future__ import annotations

from pathlib import Path

import tomlkit

from gpustate_lab.paths import write_text
from gpustate_lab.process import cgroup_hierarchies

#: The section of the CRI plugin, by version of the configuration; newer versions have that of version 3.
_SECTIONS = {1: "cri", 2: "io.containerd.grpc.v1.cri"}
_SECTION_3 = "io.containerd.cri.v1.runtime"


def configure(root: Path, *, cgroup_driver: str, restrict_oom_score: bool) -> None:
    """Write the settings into ``/etc/containerd/config.toml``, or a drop-in of CRI-O; a file that has them stays as it is.

    Args:
        root: the node's ``/`` on the controller.
        cgroup_driver: of runc.
        restrict_oom_score: do not lower the OOM score of containers.
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
    changed = restrict_oom_score
    if restrict_oom_score:
        cri["restrict_oom_score_adj"] = True
    systemd = cgroup_driver == "systemd"
    runtimes = cri.get("containerd", {}).get("runtimes", {})
    if bool(runtimes.get("runc", {}).get("options", {}).get("SystemdCgroup")) != systemd:
        runc = cri.setdefault("containerd", {}).setdefault("runtimes", {}).setdefault("runc", {})
        runc.setdefault("runtime_type", "io.containerd.runc.v2")
        runc.setdefault("options", {})["SystemdCgroup"] = systemd
        changed = True
    if changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, tomlkit.dumps(document))
