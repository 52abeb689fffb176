"""``make demo-kubernetes``: two fresh nodes and one ClusterPolicy, until pods have GPUs; then every change of its page.

The demo itself waits for allocatable GPUs, labels and finished pods, and exits if one does not come.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import GPUSTATE

pytestmark = [pytest.mark.proof, pytest.mark.node]

TOP = Path(__file__).parents[2]
NAME = "demo-kubernetes"
DEMO_S = 2400.0
#: Programs that run as pods of both nodes, and those of which there is one.
ON_EACH = (
    "gpu-feature-discovery",
    "nvidia-device-plugin-daemonset",
    "node-feature-discovery-worker",
)
ONCE = ("node-feature-discovery-master", "node-feature-discovery-gc")


def section(text: str, command: str) -> str:
    """What the first command of this name printed."""
    found = re.search(rf"^\$ [^\n]*{re.escape(command)}[^\n]*\n(.*?)(?=^\$ |\Z)", text, re.S | re.M)
    assert found is not None, text[-3000:]
    return found[1]


def test_one_policy_brings_nodes_and_cluster_to_pods_with_gpus(lab_programs: None) -> None:
    argv = [sys.executable, "docs/examples/demo_kubernetes.py"]
    try:
        done = subprocess.run(
            argv, cwd=TOP, capture_output=True, text=True, check=False, timeout=DEMO_S
        )
    finally:
        subprocess.run([GPUSTATE, "lab", "down", "--name", NAME], check=False, capture_output=True)
    text = done.stdout
    assert done.returncode == 0, text[-5000:] + done.stderr[-3000:]
    pods = section(text, "kubectl get pods")
    for name in ON_EACH:
        assert len(re.findall(rf"{name}-\S+ +gpu[12] +Running", pods)) == 2, pods
    for name in ONCE:
        assert len(re.findall(rf"{name}-\S+ +gpu[12] +Running", pods)) == 1, pods
    shown = {name: section(text, f"kubectl logs {name}") for name in re.findall(r"kubectl logs (\S+)", text)}  # fmt: skip
    devices = {name: len(re.findall(r"^/dev/nvidia\d+$", log, re.M)) for name, log in shown.items()}
    assert devices == {
        **{"two-gpus": 2, "time-slice": 1, "mig-single": 1, "mig-mixed": 1, "upgraded": 8}
    }
    assert all("nvidia-smi" in log for log in shown.values())
    for name in ("mig-single", "mig-mixed"):
        assert "nvidia-cap" in shown[name]
