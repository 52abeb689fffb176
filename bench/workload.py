"""One realistic GPU node as 40 resources, the same for every contender.

10 packages, 12 files with content (6 static, 6 from a template), 6 lines in 3 files, 5 enabled units,
4 repository and key files, 3 commands that are only looked at. Packages and commands are the
machine's own; everything else lies under the node's root folder, one for each node.

Only the standard library: the others' own environments import this too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

PACKAGES = (
    ("bash", "coreutils"),
    ("dpkg", "grep"),
    ("sed", "tar"),
    ("gzip", "findutils"),
    ("util-linux", "hostname"),
)


def _static(name: str, count: int) -> str:
    lines = (f"# {name} managed line {i}\nkey{i} = value-{name}-{i}\n" for i in range(count))
    return "".join(lines)


# No newline after a block tag: Ansible trims those, pyinfra does not.
TEMPLATE = (
    "# {{ name_ }} for the gpu node\n"
    "{% for i in range(count) %}option_{{ i }} = {{ name_ }}/{{ i }}\n{% endfor %}# end\n"
)


def _rendered(name: str, count: int) -> str:
    body = "".join(f"option_{i} = {name}/{i}\n" for i in range(count))
    return f"# {name} for the gpu node\n{body}# end\n"


STATIC = {
    "etc/modprobe.d/nouveau-blacklist.conf": _static("nouveau", 3).encode(),
    "etc/modules-load.d/nvidia.conf": _static("modules", 2).encode(),
    "etc/udev/rules.d/71-nvidia.rules": _static("udev", 12).encode(),
    "etc/nvidia-container-runtime/config.toml": _static("runtime", 40).encode(),
    "etc/cdi/nvidia.yaml": _static("cdi", 120).encode(),
    "etc/dcgm/dcgm.conf": _static("dcgm", 20).encode(),
}
TEMPLATED = {
    "etc/containerd/config.toml": ("containerd", 60),
    "etc/systemd/system/nvidia-persistenced.service": ("persistenced", 15),
    "etc/systemd/system/fabricmanager.service": ("fabricmanager", 15),
    "etc/systemd/system/mig-manager.service": ("mig", 25),
    "etc/gpustate/device-plugin.conf": ("plugin", 30),
    "etc/gpustate/validator.conf": ("validator", 30),
}
FILES = {**STATIC, **{path: _rendered(*how).encode() for path, how in TEMPLATED.items()}}
REPOSITORIES = {
    "usr/share/keyrings/nvidia.gpg": bytes(range(256)) * 8,
    "usr/share/keyrings/toolkit.gpg": bytes(reversed(range(256))) * 8,
    "etc/apt/sources.list.d/cuda.sources": _static("cuda", 6).encode(),
    "etc/apt/sources.list.d/toolkit.sources": _static("toolkit", 6).encode(),
}
LINES = {
    "etc/sysctl.d/90-gpu.conf": (
        "vm.max_map_count = 262144",
        "kernel.numa_balancing = 0",
        "net.core.rmem_max = 67108864",
    ),
    "etc/modprobe.d/nvidia.conf": ("options nvidia NVreg_OpenRmEnableUnsupportedGpus=1",),
    "etc/security/limits.d/gpu.conf": ("* soft memlock unlimited", "* hard memlock unlimited"),
}
UNITS = ("containerd", "nvidia-persistenced", "nvidia-dcgm", "fabricmanager", "mig-manager")
WANTS = "etc/systemd/system/multi-user.target.wants"
LOOKS = (
    "cat /proc/driver/nvidia/version 2>/dev/null || echo absent",
    "cat /proc/version",
    "uname -r",
)


def hosts(count: int) -> list[str]:
    """Addresses of the nodes, which are their names too."""
    return [f"127.7.{i // 200}.{i % 200 + 1}" for i in range(count)]


def root(work: Path, host: str) -> Path:
    """The folder that stands for a node's file system."""
    return work / "nodes" / host


def uploaded(work: Path, path: str) -> Path:
    """Where contenders find a static file to upload."""
    return work / "sources" / path.replace("/", "_")


def seed_sources(work: Path) -> None:
    """Write what contenders upload from."""
    (work / "sources").mkdir()
    for path, data in (STATIC | REPOSITORIES).items():
        uploaded(work, path).write_bytes(data)
    (work / "sources" / "template.j2").write_text(TEMPLATE)


def seed(folder: Path) -> None:
    """Write one converged node."""
    for path, data in (FILES | REPOSITORIES).items():
        _write(folder / path, data)
    for path, lines in LINES.items():
        _write(folder / path, "".join(f"{line}\n" for line in lines).encode())
    (folder / WANTS).mkdir(parents=True)
    (folder / "lib").mkdir()
    for unit in UNITS:
        (folder / f"lib/{unit}.service").touch()
        (folder / f"{WANTS}/{unit}.service").symlink_to(folder / f"lib/{unit}.service")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o644)


def drift(folder: Path) -> None:
    """Change four resources of a node: a static file, a template, a line, a unit."""
    (folder / "etc/dcgm/dcgm.conf").write_text("somebody was here\n")
    (folder / "etc/containerd/config.toml").unlink(missing_ok=True)
    _write(
        folder / "etc/sysctl.d/90-gpu.conf",
        b"vm.max_map_count = 262144\nnet.core.rmem_max = 67108864\n",
    )
    (folder / WANTS / "nvidia-dcgm.service").unlink(missing_ok=True)


def differences(folder: Path) -> list[str]:
    """Resources of a node that are not as they should be, seen with no contender's eyes."""
    wrong = [
        path
        for path, data in (FILES | REPOSITORIES).items()
        if not (folder / path).is_file()
        or hashlib.sha256((folder / path).read_bytes()).digest() != hashlib.sha256(data).digest()
    ]
    for path, lines in LINES.items():
        have = (folder / path).read_text().splitlines() if (folder / path).is_file() else []
        wrong += [f"{path}: {line}" for line in lines if line not in have]
    for unit in UNITS:
        link = folder / WANTS / f"{unit}.service"
        if not link.is_symlink() or os.readlink(link) != str(folder / f"lib/{unit}.service"):
            wrong.append(unit)
    return wrong


def hand_script(folder: Path) -> str:
    """What somebody would write by hand to observe everything in one go."""
    files = " ".join(FILES | REPOSITORIES)
    wanted = " ".join(f"-e '{line}'" for lines in LINES.values() for line in lines)
    links = " ".join(f"{WANTS}/{unit}.service" for unit in UNITS)
    packages = " ".join(name for group in PACKAGES for name in group)
    looks = "\n".join(f"echo @look{i}; {look}" for i, look in enumerate(LOOKS))
    return (
        f"cd {folder} || exit 9\n"
        "echo @packages; dpkg-query -W -f='${Package}\\t${db:Status-Abbrev}\\t${Version}\\n' "
        f"{packages} 2>/dev/null\n"
        f"echo @sums; sha256sum {files} 2>/dev/null\n"
        f"echo @stats; stat -c '%n %a %U %G' {files} 2>/dev/null\n"
        f"echo @lines; grep -HFx {wanted} {' '.join(LINES)}\n"
        f'echo @links; for l in {links}; do echo "$l $(readlink $l)"; done\n'
        f"{looks}\necho @end\n"
    )


def remove(folder: Path) -> None:
    """Take a node's files away."""
    shutil.rmtree(folder, ignore_errors=True)
