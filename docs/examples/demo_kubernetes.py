"""Demo of a Kubernetes cluster with GPUs: apply a policy, run a pod with two GPUs, let a GPU fail.

    python docs/examples/demo_kubernetes.py [POLICY] [--keep]

Real: etcd, API server, scheduler, kubelets, containerd, NVIDIA's device plugin,
container toolkit and feature discovery. The GPUs, the driver and NVML are simulated, see docs/lab.md. The first run builds
the cluster's programs with Go in about ten minutes; they stay in the lab's cache.
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
#: A pod of the lab's busybox; the devices in its /dev were injected.
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "two-gpus"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": "busybox:lab",
                "command": ["sh", "-c", "ls /dev/nvidia[0-9]*; ls /usr/bin/nvidia-smi"],
                "resources": {"limits": {"nvidia.com/gpu": 2}},
            }
        ],
    },
}
COLUMNS = (
    "NODE:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu,"
    "PRODUCT:.metadata.labels.nvidia\\.com/gpu\\.product,RUNTIME:.status.nodeInfo.containerRuntimeVersion"
)
WAIT_S = 120.0


class Cluster:
    """The lab's kubectl as its administrator."""

    def __init__(self, lab: dict[str, str]) -> None:
        self.kubectl = f"{lab['programs']}/kubectl"
        self.kubeconfig = lab["kubeconfig"]

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

    def wait_gpus(self, wanted: dict[str, int]) -> None:
        """Wait until each node has this number of allocatable GPUs."""
        deadline = time.monotonic() + WAIT_S
        while True:
            nodes = json.loads(self.run("get", "nodes", "-o", "json", quiet=True))["items"]
            offers = {
                node["metadata"]["name"]: int(
                    node["status"]["allocatable"].get("nvidia.com/gpu", 0)
                )
                for node in nodes
            }
            if offers == wanted:
                return
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"demo: timed out; allocatable GPUs are {offers}, expected {wanted}"
                )
            time.sleep(0.5)


def main(arguments: list[str]) -> None:
    policy, keep = demo.parse_arguments(arguments)
    started = time.monotonic()
    words = ("--nodes", "2", "--image", "debian13,debian13-containerd2", "--gpus", "8xH100")
    demo.run("lab", "up", "--name", NAME, *words, "--kubernetes")
    lab = demo.lab(NAME)
    cluster = Cluster(lab)
    demo.run("apply", policy, "-i", lab["inventory"], "--yes")
    cluster.wait_gpus({"gpu1": 8, "gpu2": 8})
    cluster.run("get", "nodes", "-o", f"custom-columns={COLUMNS}")
    print(f"\n$ kubectl apply -f - # a pod with two GPUs:\n{json.dumps(POD['spec'])}")
    cluster.run("apply", "-f", "-", stdin=json.dumps(POD), quiet=True)
    done = "jsonpath={.status.phase}=Succeeded"
    cluster.run("wait", "pod/two-gpus", f"--for={done}", f"--timeout={WAIT_S:.0f}s")
    cluster.run("logs", "two-gpus")
    demo.run("lab", "fault", "--name", NAME, "gpu2", "xid-79:3", "on")
    cluster.wait_gpus({"gpu1": 8, "gpu2": 7})
    cluster.run("get", "nodes", "-o", f"custom-columns={COLUMNS}")
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
