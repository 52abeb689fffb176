"""Programs of a node by which containers and jobs arrive on it."""

from __future__ import annotations

#: The scheduler that places work on a node by a program.
AGENTS = {
    "kubelet": "Kubernetes",
    "kubelite": "Kubernetes",  # of microk8s
    "k3s": "Kubernetes",
    "rke2": "Kubernetes",
    "slurmd": "Slurm",
}
#: Container runtimes that a condition can name.
RUNTIMES = ("containerd", "crio", "docker", "k3s", "podman")
