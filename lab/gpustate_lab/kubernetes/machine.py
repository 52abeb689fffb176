"""Set up a Kubernetes node: kubelet, credentials, CNI, NVIDIA's agents.

Programs, CNI plugins and container images are folders of the lab, mounted read-only; the other files are written to each new disk, so that a reset node joins as the same Node. Paths are those of
kubeadm.

A kubelet expects a machine, but a node is a container. Kernel settings that a kubelet changes are files bound over
/proc/sys. The console replaces the kernel log. Where the controller forbids an ``oom_score_adj`` below the
parent's, the kubelet is configured without one.

Sources:
    kubelet 1.36: pkg/kubelet/cm/container_manager_linux.go, ``setupKernelTunables``: the settings;
    ``ensureProcessInContainerWithOOMScore``; cmd/kubelet/app/server.go, ``ApplyOOMScoreAdj``.
    proc_pid_oom_score_adj(5): lowering it needs CAP_SYS_RESOURCE.
    Linux Documentation/networking/ip-sysctl: proxy_arp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gpustate import shell
from gpustate_lab.kubernetes.layout import Layout
from gpustate_lab.process import cgroup_hierarchies
from gpustate_lab.spec import NodeSpec

#: Mount points of the lab's folders in a node.
PROGRAMS = "/opt/gpustate-lab/programs"
#: Where kubeadm's nodes have the CNI plugins, and where Debian's containerd looks for them.
NETWORK_PLUGINS = ("/opt/cni/bin", "/usr/lib/cni")
IMAGES = "/opt/gpustate-lab/images"
#: Environment file of the device plugin.
PLUGIN_SETTINGS = "/etc/default/gpustate-lab-device-plugin"
#: Configuration of the device plugin, which gpustate changes, and the unit that it reloads.
PLUGIN_CONFIGURATION = "/etc/nvidia-device-plugin/config.yaml"
TOOLKIT_CONFIGURATION = "/etc/nvidia-container-runtime/config.toml"
PLUGIN_UNIT = "nvidia-device-plugin.service"
#: Units of programs that run as pods elsewhere.
AGENT_UNITS = (PLUGIN_UNIT, "gpu-feature-discovery.service", "nfd-worker.service")
#: In the node, where exporters use the default ports.
NFD_WORKER_PORT = 18080
NFD_NAMESPACE = "node-feature-discovery"
#: Addresses of a /26 without network, broadcast and bridge.
MAX_PODS = 61

#: capabilities(7).
_SYS_RESOURCE = 24


def binds(lab: Path) -> list[str]:
    """Return systemd-nspawn arguments that mount the lab's programs and images in a node."""
    folders = {
        PROGRAMS: lab / "programs",
        IMAGES: lab / "kubernetes" / "images",
        **dict.fromkeys(NETWORK_PLUGINS, lab / "kubernetes" / "cni"),
    }
    return [f"--bind-ro={source}:{target}" for target, source in folders.items()]


def fill(root: Path, layout: Layout, node: NodeSpec) -> None:
    """Initialise a new disk; ``root`` is the node's ``/`` on the controller."""
    name, number = node.name, node.number
    address = str(layout.network.address(number))
    authority = layout.authority
    files: dict[str, tuple[str, int]] = {}

    def add(path: str, text: str, mode: int = 0o644) -> None:
        files[path] = (text, mode)

    client = authority.issue(f"kubelet-{name}", f"system:node:{name}", groups=("system:nodes",))
    serving = authority.issue(f"kubelet-{name}-server", name, hosts=(name, address))
    add("etc/kubernetes/pki/ca.crt", authority.certificate.read_text())
    add("var/lib/kubelet/pki/kubelet.crt", serving.certificate.read_text())
    add("var/lib/kubelet/pki/kubelet.key", serving.key.read_text(), 0o600)
    user = f"system:node:{name}"
    add("etc/kubernetes/kubelet.conf", layout.kubeconfig_text(user, client), 0o600)
    for agent in ("nfd-worker", "gpu-feature-discovery"):
        text = layout.kubeconfig_text(agent, authority.issue(agent, agent), NFD_NAMESPACE)
        add(f"etc/kubernetes/{agent}.kubeconfig", text, 0o600)
    add("etc/kubernetes/node-feature-discovery/nfd-worker.conf", "core:\n  sleepInterval: 10s\n")
    add(
        "var/lib/kubelet/config.yaml",
        yaml.safe_dump(
            kubelet_configuration(node.cgroups, crio=(root / "usr/bin/crio").exists()),
            sort_keys=False,
        ),
    )
    add("etc/cni/net.d/10-gpustate-lab.conflist", network_configuration(layout, number))
    # Containers get a copy; the lab has no DNS server.
    add("etc/resolv.conf", "")
    programs: dict[str, dict[str, str]] = {
        "kubelet-machine": {},
        "import-images": {"IMAGES": IMAGES},
        "stop-containers": {},
        "agent": {
            "PLUGIN_CONFIGURATION": PLUGIN_CONFIGURATION,
            "TOOLKIT_CONFIGURATION": TOOLKIT_CONFIGURATION,
        },
    }
    for program, variables in programs.items():
        text = shell.load(program.replace("-", "_"), "gpustate_lab.kubernetes", **variables)
        add(f"usr/local/lib/gpustate-lab/{program}", f"#!/bin/sh\n{text}", 0o755)
    add(
        PLUGIN_SETTINGS.lstrip("/"),
        "# NVIDIA's device plugin and GPU feature discovery: DEVICE_LIST_STRATEGY=envvar\n",
    )
    units = {
        unit: text
        for unit, text in _units(address).items()
        if not (node.pods and unit in AGENT_UNITS)
    }
    for unit, text in units.items():
        add(f"etc/systemd/system/{unit}", text)
    for path, (text, mode) in files.items():
        _write(root / path, text, mode)
    features = root / "etc/kubernetes/node-feature-discovery/features.d"
    features.mkdir(parents=True, exist_ok=True)
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    wanted.mkdir(parents=True, exist_ok=True)
    for unit in units:
        _link(wanted / unit, f"/etc/systemd/system/{unit}")
    for program in ("kubelet", "kubectl"):
        _link(root / "usr/bin" / program, f"{PROGRAMS}/{program}")


def kubelet_configuration(cgroup_driver: str, *, crio: bool = False) -> dict[str, Any]:
    """Return the kubelet's configuration; comments explain differences from kubeadm's."""
    socket = "/run/crio/crio.sock" if crio else "/run/containerd/containerd.sock"
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": "/var/lib/kubelet/pki/kubelet.crt",
        "tlsPrivateKeyFile": "/var/lib/kubelet/pki/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": cgroup_driver,
        "maxPods": MAX_PODS,
        # Disk and memory are the controller's.
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
    }
    if not may_lower_oom_score():
        # The kernel would refuse the kubelet's default of -999, at start and then every minute. A process may
        # write its current value, which a node's processes inherit from this one.
        inherited = Path("/proc/self/oom_score_adj").read_text()
        configuration["oomScoreAdj"] = int(inherited)
    if len(cgroup_hierarchies()) > 1:
        # A node has a part of each cgroup v1 hierarchy, but not its root, in which the kubelet would create its
        # QoS groups; systemd creates them below the node's part.
        configuration |= {
            "failCgroupV1": False,
            "cgroupsPerQOS": cgroup_driver == "systemd",
            "enforceNodeAllocatable": [],
        }
    return configuration


def network_configuration(layout: Layout, number: int) -> str:
    """Return the CNI configuration: pods on a bridge, with addresses of the node's /26."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(layout.network.pods(number))}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    document = {"cniVersion": "0.4.0", "name": "gpustate-lab", "plugins": [bridge]}
    return json.dumps(document, indent=2) + "\n"


def _units(address: str) -> dict[str, str]:
    lib = "/usr/local/lib/gpustate-lab"

    def unit(description: str, start: str, *, after: str, more: str = "") -> str:
        return (
            f"[Unit]\nDescription={description}\nAfter={after}\nWants={after}\n"
            f"StartLimitIntervalSec=0\n\n[Service]\n{more}ExecStart={start}\n\n"
            "[Install]\nWantedBy=multi-user.target\n"
        )

    once = "Type=oneshot\nRemainAfterExit=yes\n"
    always = "Restart=always\nRestartSec=2\n"
    agent = f"{lib}/agent {PROGRAMS}"
    return {
        "gpustate-lab-machine.service": unit(
            "gpustate lab: kernel settings of a kubelet",
            f"{lib}/kubelet-machine",
            after="local-fs.target",
            more=once,
        ),
        "gpustate-lab-containers.service": unit(
            "gpustate lab: import container images, stop containers",
            f"{lib}/import-images",
            after="containerd.service crio.service",
            more=f"{once}Restart=on-failure\nRestartSec=2\nExecStop={lib}/stop-containers\n",
        ),
        "kubelet.service": unit(
            "kubelet: The Kubernetes Node Agent",
            "/usr/bin/kubelet --kubeconfig=/etc/kubernetes/kubelet.conf "
            f"--config=/var/lib/kubelet/config.yaml --node-ip={address}",
            after="containerd.service crio.service gpustate-lab-machine.service gpustate-lab-containers.service",
            more=f"{always}KillMode=process\n",
        ),
        PLUGIN_UNIT: unit(
            "gpustate lab: NVIDIA's device plugin",
            f"{agent}/nvidia-device-plugin",
            after="kubelet.service",
            more=f"{always}Environment=CONTAINER_DRIVER_ROOT=/ NVIDIA_CDI_HOOK_PATH=/usr/bin/nvidia-cdi-hook\n"
            f"EnvironmentFile=-{PLUGIN_SETTINGS}\n",
        ),
        "gpu-feature-discovery.service": unit(
            "gpustate lab: NVIDIA's GPU feature discovery",
            # NodeFeature objects, since two writers of the feature folder would overwrite each other.
            f"{agent}/gpu-feature-discovery --use-node-feature-api --node-name=%H "
            f"--namespace={NFD_NAMESPACE} --kubeconfig=/etc/kubernetes/gpu-feature-discovery.kubeconfig",
            after="kubelet.service",
            more=f"{always}Environment=CONTAINER_DRIVER_ROOT=/ GFD_SLEEP_INTERVAL=15s\n"
            f"EnvironmentFile=-{PLUGIN_SETTINGS}\n",
        ),
        "nfd-worker.service": unit(
            "gpustate lab: node feature discovery",
            f"{PROGRAMS}/nfd-worker -kubeconfig=/etc/kubernetes/nfd-worker.kubeconfig -no-owner-refs "
            f"-port={NFD_WORKER_PORT}",
            after="kubelet.service",
            more=f"{always}Environment=NODE_NAME=%H KUBERNETES_NAMESPACE={NFD_NAMESPACE}\n",
        ),
    }


def may_lower_oom_score() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "CapBnd":
            return bool(int(value, 16) >> _SYS_RESOURCE & 1)
    return False


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
