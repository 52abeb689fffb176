"""Runtimes that no package archive here has, put onto a lab node: CRI-O itself, of others layout, units and a stand-in."""

from __future__ import annotations

import shutil

from gpustate_lab import images, programs
from gpustate_lab.node import Node


def write(node: Node, path: str, text: str, mode: int = 0o644) -> None:
    """Put a file onto a node."""
    target = node.root / path.removeprefix("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text.encode())
    target.chmod(mode)


def install_crio(node: Node) -> None:
    """The real CRI-O beside the node's other runtimes, running; conmon, crun and runc are the node's."""
    for name, program in programs.provide("crio", print).items():
        shutil.copy(program, node.root / "opt" / name)
    script = (images.SCRIPTS / "crio.sh").read_text()
    node.run(["sh", "-euc", f"PROGRAMS=/opt\n{script}\nsystemctl start crio"])


# --- MicroK8s --------------------------------------------------------------------------------

#: Shaped after the template that MicroK8s ships: placeholders in strings, two runtimes, a mirror.
MICROK8S_TEMPLATE = """# Use config version 2 to enable new configuration fields.
version = 2
oom_score = 0

[grpc]
  uid = 0

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.7"

  [plugins."io.containerd.grpc.v1.cri".containerd]

    # snapshotter is the snapshotter used by containerd.
    snapshotter = "overlayfs"
    default_runtime_name = "${RUNTIME}"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime.options]
        BinaryName = "nvidia-container-runtime"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${SNAP_DATA}/opt/cni/bin"

  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
    endpoint = ["https://mirror.example.org", ]
"""
_MICROK8S = "/var/snap/microk8s/current"
MICROK8S_START = """#!/usr/bin/python3
# A stand-in for MicroK8s' containerd: renders its template as run-containerd-with-args does, refuses what is
# no TOML or names a default that is not there, and becomes the node's own containerd, on the socket of MicroK8s.
import os, sys, tomllib
data, run = "/var/snap/microk8s/current", "/var/snap/microk8s/common/run"
if sys.argv[1:] == ["--version"]:
    print("containerd github.com/containerd/containerd v1.6.28 abc")
    sys.exit()
text = open(data + "/args/containerd-template.toml").read()
for name, value in (("${SNAP_DATA}", data), ("${RUNTIME}", "runc")):
    text = text.replace(name, value)
open(data + "/args/containerd.toml", "w").write(text)
cri = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
if cri["default_runtime_name"] not in cri["runtimes"]:
    sys.exit("no such default runtime")
os.makedirs(run, exist_ok=True)
words = ["--config", data + "/args/containerd.toml", "--address", run + "/containerd.sock"]
words += ["--root", "/var/lib/microk8s-standin", "--state", run + "/containerd"]
os.execv("/usr/bin/containerd", ["/usr/bin/containerd", *words])
"""


def render_microk8s(template: str) -> str:
    """What MicroK8s makes of its template."""
    return template.replace("${SNAP_DATA}", _MICROK8S).replace("${RUNTIME}", "runc")


def install_microk8s(node: Node) -> None:
    """MicroK8s' layout, and the stand-in for its containerd, running."""
    write(node, "/snap/microk8s/current/bin/containerd", MICROK8S_START, 0o755)
    write(node, "/snap/microk8s/current/bin/ctr", '#!/bin/sh\nexec /usr/bin/ctr "$@"\n', 0o755)
    write(node, f"{_MICROK8S}/args/containerd-template.toml", MICROK8S_TEMPLATE)
    unit = "snap.microk8s.daemon-containerd.service"
    text = "[Service]\nExecStart=/snap/microk8s/current/bin/containerd\n"
    write(node, f"/etc/systemd/system/{unit}", text)
    node.run(f"systemctl daemon-reload; systemctl start {unit}")


# --- k0s -------------------------------------------------------------------------------------

_CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
K0S_MERGED = """version = {version}

[plugins."{cri}".containerd]
  default_runtime_name = "runc"

[plugins."{cri}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."{cri}".containerd.runtimes.runc.options]
  SystemdCgroup = true
"""


def merge_k0s(version: int, drop_ins: list[str]) -> str:
    """What k0s makes of drop-ins that name new tables only: its own, and theirs behind it."""
    own = K0S_MERGED.format(version=version, cri=_CRI[version])
    for text in drop_ins:
        lines = [line for line in text.splitlines() if not line.startswith("version")]
        rest = "\n".join(lines)
        if "default_runtime_name" in rest:
            own = own.replace('default_runtime_name = "runc"', 'default_runtime_name = "nvidia"')
            head, _, tail = rest.partition(f'[plugins."{_CRI[version]}".containerd]')
            rest = head + tail.replace('  default_runtime_name = "nvidia"\n', "")
        own += rest + "\n"
    return own


K0S_START = """#!/usr/bin/python3
# A stand-in for k0s: merges /etc/k0s/containerd.d into /run/k0s/containerd-cri.toml while its containerd.toml
# is k0s managed, looks for changes twice a second (k0s uses inotify), and runs the node's own containerd on the
# socket of k0s.
import glob, os, signal, subprocess, sys, time
sys.path.insert(0, "/usr/local/lib/k0s-standin")
from merging import merge
os.makedirs("/run/k0s", exist_ok=True)
os.makedirs("/etc/k0s/containerd.d", exist_ok=True)
root = "/etc/k0s/containerd.toml"
if not os.path.exists(root):
    open(root, "w").write('# k0s_managed=true\\nversion = 2\\nimports = ["/run/k0s/containerd-cri.toml"]\\n')
words = ["/usr/bin/containerd", "--config", root, "--address", "/run/k0s/containerd.sock"]
words += ["--root", "/var/lib/k0s/containerd", "--state", "/run/k0s/containerd"]
before = child = None
def stop(*_):
    if child:
        child.terminate()
        child.wait()
def end(*_):
    stop()
    sys.exit()
signal.signal(signal.SIGTERM, end)
while True:
    texts = [open(path).read() for path in sorted(glob.glob("/etc/k0s/containerd.d/*.toml"))]
    if texts != before and open(root).readline().startswith("# k0s_managed=true"):
        with open("/run/k0s/containerd-cri.toml", "w") as merged:
            merged.write(merge(texts))
        stop()
        child = subprocess.Popen(words)
        print("restarted containerd", flush=True)
        before = texts
    time.sleep(0.5)
"""


def install_k0s(node: Node) -> None:
    """k0s' layout, and a stand-in for it, running."""
    import inspect

    merging = f"_CRI = {_CRI!r}\nK0S_MERGED = {K0S_MERGED!r}\n{inspect.getsource(merge_k0s)}\n"
    merging += "\ndef merge(texts):\n    return merge_k0s(2, texts)\n"
    write(node, "/usr/local/lib/k0s-standin/merging.py", merging)
    write(node, "/usr/local/bin/k0s", K0S_START, 0o755)
    write(
        node,
        "/etc/systemd/system/k0sworker.service",
        "[Service]\nExecStart=/usr/local/bin/k0s worker\nKillMode=process\n",
    )
    node.run("systemctl daemon-reload; systemctl start k0sworker")


# --- k3s, RKE2 -------------------------------------------------------------------------------

K3S_START = """#!/bin/sh
# A stand-in for k3s and RKE2: writes its containerd's configuration anew at every start, looks for NVIDIA's
# runtime where k3s-io/k3s pkg/agent/containerd/runtimes.go does, in that order, and becomes the node's own
# containerd, on the socket of k3s.
d=/var/lib/rancher/@NAME@/agent/etc/containerd; mkdir -p $d /run/k3s/containerd
v=3; t='plugins."io.containerd.cri.v1.runtime".containerd.runtimes'
case $(/usr/bin/containerd --version) in *' v1.'*|*' 1.'*) v=2; t='plugins."io.containerd.grpc.v1.cri".containerd.runtimes' ;; esac
{
  printf 'version = '$v'\\n\\n[%s.runc]\\n  runtime_type = "io.containerd.runc.v2"\\n' "$t"
  for p in /usr/local/nvidia/toolkit /usr/bin; do
    [ -f $p/nvidia-container-runtime ] || continue
    printf '\\n[%s.nvidia]\\n  runtime_type = "io.containerd.runc.v2"\\n' "$t"
    printf '\\n[%s.nvidia.options]\\n  BinaryName = "%s"\\n  SystemdCgroup = true\\n' "$t" "$p/nvidia-container-runtime"
    break
  done
} >$d/config.toml
exec /usr/bin/containerd --config $d/config.toml --address /run/k3s/containerd/containerd.sock \\
  --root /var/lib/rancher/@NAME@/agent/containerd --state /run/k3s/containerd
"""


def install_k3s(node: Node, unit: str) -> None:
    """The layout of k3s or RKE2, and a stand-in for it, running."""
    name = unit.partition("-")[0]
    write(node, f"/usr/local/bin/{name}", K3S_START.replace("@NAME@", name), 0o755)
    write(
        node, f"/etc/systemd/system/{unit}.service", f"[Service]\nExecStart=/usr/local/bin/{name}\n"
    )
    generated = f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml"
    listening = f"[ /run/k3s/containerd/containerd.sock -nt {generated} ]"
    wait = f"n=200; until {listening} || [ $n = 0 ]; do n=$((n - 1)); sleep 0.1; done"
    node.run(f"systemctl daemon-reload; systemctl start {unit}; {wait}")
