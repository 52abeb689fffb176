"""Nodes on which every link up to the container side holds, and a container does not get its GPUs.

Simulated: GPUs and driver. Real: containerd, runc, systemd, NVIDIA's container runtime and hooks, the damage.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTAINERD = "/etc/containerd/config.toml"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
SPEC = "/var/run/cdi/nvidia.yaml"
HOOK = "/usr/bin/nvidia-cdi-hook"
SHIM = "/usr/bin/containerd-shim-runc-v2"
STORE = "/var/lib/containerd"
CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'
RESTART = "systemctl restart containerd"
REFRESH = "systemctl restart nvidia-cdi-refresh"


@dataclass(frozen=True)
class Break:
    """One damage.

    Args:
        kind: what the link must call it.
        words: what its evidence must say.
        damage, heal: scripts of sh.
        case: sets breaks of one kind apart.
        cause: what explain calls it where another cause says more; empty: the kind's own.
        by_hand: nothing that is printed fixes it: ``heal`` is what a person does at the node first.
    """

    kind: str
    words: tuple[str, ...]
    damage: str
    heal: str
    case: str = ""
    cause: str = ""
    by_hand: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-{self.case}" if self.case else self.kind


def edited(path: str, edit: str, after: str = RESTART) -> tuple[str, str]:
    """Damage and repair of a file by a command that edits it, and what has to be done after either."""
    kept = f"/root/kept-{path.rpartition('/')[2]}"
    back = f"cp -p {kept} {path}"
    return f"cp -p {path} {kept}; {edit} {path}; {after}", f"{back}; {after}"


def spec(script: str) -> tuple[str, str]:
    """Damage to the CDI specification by sed -E -z."""
    return edited(SPEC, f"sed -E -i -z '{script}'", ":")


def toolkit(line: str) -> tuple[str, str]:
    """A key of the runtime's section in the toolkit's configuration."""
    key = line.partition(" ")[0]
    place = r"^\[nvidia-container-runtime\]$"
    return edited(TOOLKIT, rf"sed -i '/^ *{key} *=/d; s/{place}/&\n{line}/'", ":")


def containerd(table: str, line: str) -> tuple[str, str]:
    """A table at the end of containerd's configuration."""
    text = f"[{table}]\\n{line}\\n"
    return edited(CONTAINERD, f"printf '\\n%b' '{text}' >>")


_SYSTEMD = "sed -i 's|BinaryName = .*|&\\n    SystemdCgroup = true|'"

#: A node whose numbers the specification gives is created in the container.
_UNNUMBERED = spec(r"s/(path: \/dev\/nvidia-modeset)\n( +[a-zA-Z]+: [^\n]*\n)+/\1\n/")

BREAKS = (
    Break("no-handler", ("no nvidia; it has runc",),
          *edited(CONTAINERD, "sed -i '/runtimes.nvidia/,/BinaryName/d'")),
    Break("handler-binary", ("/usr/bin/nvidia-container-runtime.gone", "no such file"),
          *edited(CONTAINERD, "sed -i 's|nvidia-container-runtime\"|nvidia-container-runtime.gone\"|'")),
    Break("nothing-injected", ("libnvidia-ml.so.1: cannot open",),
          *edited(CONTAINERD, "sed -i 's|/usr/bin/nvidia-container-runtime\"|/usr/local/sbin/runc\"|'"),
          cause="handler-of-another-program"),
    Break("cri-dead", ("without its CRI service", "nope"), *containerd(CRI, 'default_runtime_name = "nope"'), by_hand=True),
    Break("cri-dead", ("containerd does not run",), "systemctl stop containerd", "systemctl start containerd", "stopped"),
    Break("shim-missing", ("containerd-shim-runc-v2",), f"mv {SHIM} {SHIM}.away", f"mv {SHIM}.away {SHIM}", by_hand=True),
    Break("cgroup-drivers", ("handler nvidia: systemd", "handler runc: cgroupfs"), *edited(CONTAINERD, _SYSTEMD), by_hand=True),
    Break("disk-full", ("no space left on device",),
          f"systemctl stop containerd; mount -t tmpfs -o size=6m none {STORE}; systemctl start containerd",
          f"systemctl stop containerd; [ $(stat -f -c %T {STORE}) != tmpfs ] || umount {STORE}; systemctl start containerd", by_hand=True),
    Break("low-level-missing", ("no runtime binary found",), *toolkit('runtimes = ["no-such-runc"]'), by_hand=True),
    Break("toolkit-config", ("nonsense",), *toolkit('mode = "nonsense"')),
    Break("legacy", ("nvidia-container-cli",), *toolkit('mode = "legacy"')),
    Break("hook-missing", ("nvidia-cdi-hook", "permission denied"), f"chmod 644 {HOOK}", f"chmod 755 {HOOK}"),
    Break("hook-failed", ("quota of hooks reached", f"hook #0 is {HOOK} "),
          f"mv {HOOK} {HOOK}.away; printf '#!/bin/sh\\necho quota of hooks reached >&2; exit 4\\n' >{HOOK}; chmod 755 {HOOK}",
          f"mv {HOOK}.away {HOOK}", by_hand=True),
    Break("cdi-unresolved", ("nvidia.com/gpu=all",), f"rm {SPEC}", REFRESH),
    Break("file-missing", ("libcuda.so.570.86.15",), *spec("s/so\\.580\\.65\\.06/so.570.86.15/g"), "driver-updated"),
    Break("file-missing", ("libnvidia-ptxjitcompiler.so",),
          "cd /usr/lib/x86_64-linux-gnu; mv libnvidia-ptxjitcompiler.so.580.65.06 /root/",
          "mv /root/libnvidia-ptxjitcompiler.so.580.65.06 /usr/lib/x86_64-linux-gnu/", "library-deleted"),
    Break("library-missing", ("libnvidia-ml.so.1", "no library"), *spec("s/ *- hostPath: [^\\n]*libcuda[^\\n]*\\n( {6,}[^\\n]*\\n)*//")),
    Break("device-missing", ("/dev/nvidia-modeset",), f"{_UNNUMBERED[0]}; mv /dev/nvidia-modeset /root/", f"{_UNNUMBERED[1]}; mv /root/nvidia-modeset /dev/"),
    Break("gpus-missing", ("7 of 8",), *spec("s/\\/dev\\/nvidia7/\\/dev\\/nvidia6/g"), "", "cdi-device-numbers"),
    Break("denied", ("/dev/nvidia0", "Operation not permitted"),
          *spec("s/\\n *permissions: [a-z]*//g; s/( *)- path: (.?\\/dev\\/nvidia[0-9a-z-]+.?)\\n/\\1- path: \\2\\n\\1  permissions: m\\n/g")),
    # What a specification has when it was made for MIG devices that were destroyed since.
    Break("device-missing", ("/dev/nvidia-caps/nvidia-cap840",),
          *spec("s/( *- path: )(.?\\/dev\\/nvidia)0(.?\\n)/&\\1\\2-caps\\/nvidia-cap840\\3/g"), "mig-changed"),
)  # fmt: skip
