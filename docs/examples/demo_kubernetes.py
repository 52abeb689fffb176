"""Demo of a Kubernetes cluster without the GPU Operator: nodes and objects from one ClusterPolicy, until pods have GPUs.

    python docs/examples/demo_kubernetes.py [POLICY] [--keep]

Then time-slicing, MIG by a label with both strategies, a driver upgrade, and a GPU that fails. After each, a pod runs.

Real: etcd, API server, scheduler, kubelets, containerd, NVIDIA's container toolkit; as pods NVIDIA's device plugin and
feature discovery, and node feature discovery. Their images are built on the spot. The GPUs, the driver and NVML are
simulated, see docs/lab.md. The first run builds the programs with Go in about ten minutes; they stay in the lab's cache.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time

# The folder of this file is on the import path.
import demo

demo.NAME = NAME = "demo-kubernetes"
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
#: Prints the devices that were injected into a pod of the lab's busybox.
SHOW = "ls -d /dev/nvidia[0-9]*; ls /dev/nvidia-caps/* 2>/dev/null; command -v nvidia-smi"
UPGRADE = "595.91.07"
PODS = "POD:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase"
NODES = (
    "NODE:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu,MIG:.status.allocatable.nvidia\\.com/mig-3g\\.40gb,"
    "PRODUCT:.metadata.labels.nvidia\\.com/gpu\\.product,DRIVER:.metadata.labels.nvidia\\.com/cuda\\.driver-version\\.full"
)
WAIT_S = 180.0


class Cluster:
    """The lab's kubectl as its administrator, and gpustate with one policy."""

    def __init__(self, lab: dict[str, str], policy: str) -> None:
        self.kubectl = f"{lab['programs']}/kubectl"
        self.kubeconfig = lab["kubeconfig"]
        self.inventory = lab["inventory"]
        self.policy = policy
        self.settings: list[str] = []

    def run(self, *words: str, stdin: str | None = None, quiet: bool = False) -> str:
        """Print and run kubectl; exit if it fails."""
        if not quiet:
            print(f"\n$ {shlex.join(['kubectl', *words])}", flush=True)
        argv = [self.kubectl, f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"demo: kubectl {words[0]}: {done.stderr.strip()}")
        if not quiet:
            print(done.stdout, end="", flush=True)
        return done.stdout

    def apply(self) -> None:
        """Apply the policy to nodes and cluster, with the settings so far."""
        words = ("--cluster-objects", "--set", "cluster.install_nfd=true", "--yes")
        settings = [word for one in self.settings for word in ("--set", one)]
        demo.run("apply", self.policy, "-i", self.inventory, *words, *settings)

    def wait(self, wanted: dict[str, dict[str, int]], driver: str = "") -> None:
        """Wait until each node has these allocatable GPUs and labels of this driver; show the nodes."""
        deadline = time.monotonic() + WAIT_S
        while True:
            nodes = json.loads(self.run("get", "nodes", "-o", "json", quiet=True))["items"]
            found = {one["metadata"]["name"]: offered(one) for one in nodes}
            labels = [one["metadata"]["labels"] for one in nodes]
            versions = {one.get("nvidia.com/cuda.driver-version.full") for one in labels}
            if found == wanted and (versions == {driver} if driver else None not in versions):
                break
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"demo: timed out; allocatable GPUs are {found}, expected {wanted}; drivers {versions}"
                )
            time.sleep(0.5)
        self.run("get", "nodes", "-o", f"custom-columns={NODES}")

    def pod(self, name: str, node: str, resource: str, count: int = 1) -> None:
        """Run a pod that asks for GPUs, and show what it got."""
        container = {
            "name": "main",
            "image": "busybox:lab",
            "command": ["sh", "-c", SHOW],
            "resources": {"limits": {resource: count}},
        }
        spec = {"restartPolicy": "Never", "nodeName": node, "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        print(f"\n$ kubectl apply -f - # pod {name} on {node}: {resource}: {count}", flush=True)
        self.run("apply", "-f", "-", stdin=json.dumps(pod), quiet=True)
        done = "jsonpath={.status.phase}=Succeeded"
        self.run("wait", f"pod/{name}", f"--for={done}", f"--timeout={WAIT_S:.0f}s", quiet=True)
        self.run("logs", name)


def offered(node: dict[str, dict[str, dict[str, str]]]) -> dict[str, int]:
    """Allocatable GPUs and MIG devices of a Node, without those of which there are none."""
    found = {key: int(node["status"]["allocatable"].get(key, "0")) for key in (GPU, MIG)}
    return {key: count for key, count in found.items() if count}


def main(arguments: list[str]) -> None:
    policy, keep = demo.parse_arguments(arguments, "docs/examples/clusterpolicy.yaml")
    started = time.monotonic()
    words = ("--nodes", "2", "--gpus", "8xH100", "--kubernetes", "--pods")
    demo.run("lab", "up", "--name", NAME, *words)
    lab = demo.lab(NAME)
    cluster = Cluster(lab, policy)
    whole = {GPU: 8}

    cluster.apply()
    cluster.run("get", "pods", "--namespace", "gpu-operator", "-o", f"custom-columns={PODS}")
    cluster.wait({"gpu1": whole, "gpu2": whole})
    cluster.pod("two-gpus", "gpu1", GPU, 2)

    sharing = "devicePlugin.config.name=sharing,devicePlugin.config.default"
    cluster.settings.append(f"{sharing}=four")
    cluster.apply()
    cluster.wait({"gpu1": {GPU: 32}, "gpu2": {GPU: 32}})
    cluster.pod("time-slice", "gpu2", GPU)
    cluster.settings[:] = [f"{sharing}=whole"]

    cluster.run("label", "node", "gpu1", "nvidia.com/mig.config=all-1g.10gb")
    cluster.settings.append("mig.strategy=single")
    cluster.apply()
    cluster.wait({"gpu1": {GPU: 56}, "gpu2": whole})
    cluster.pod("mig-single", "gpu1", GPU)

    cluster.run("label", "node", "gpu1", "--overwrite", "nvidia.com/mig.config=all-3g.40gb")
    cluster.settings[-1] = "mig.strategy=mixed"
    cluster.apply()
    cluster.wait({"gpu1": {MIG: 16}, "gpu2": whole})
    cluster.pod("mig-mixed", "gpu1", MIG)

    cluster.settings.append(f"driver.version={UPGRADE}")
    cluster.apply()
    cluster.wait({"gpu1": {MIG: 16}, "gpu2": whole}, UPGRADE)
    cluster.pod("upgraded", "gpu2", GPU, 8)

    demo.run("lab", "fault", "--name", NAME, "gpu2", "xid-79:3", "on")
    cluster.wait({"gpu1": {MIG: 16}, "gpu2": {GPU: 7}})
    demo.run("explain", "gpu2", "-i", lab["inventory"], expect=(0, 3))
    if keep:
        print(
            f"\nThe cluster is still running: export KUBECONFIG={lab['kubeconfig']} PATH=$PATH:{lab['programs']}; "
            f"at the end: gpustate lab down --name {NAME}"
        )
    else:
        demo.run("lab", "down", "--name", NAME)
    print(f"\ndemo: done in {time.monotonic() - started:.0f} s; the failed GPU was withdrawn")


if __name__ == "__main__":
    main(sys.argv[1:])
