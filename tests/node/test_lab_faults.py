"""Two faults as a person meets them: the driver's libraries after an unattended upgrade, and a
containerd that does not start with our handler in its configuration.

Simulated: GPUs, NVML, CUDA, NVIDIA's packages, and why containerd does not start (docs/lab.md).
Real: containerd, systemd, the failed start, the roll-back, the links that programs follow.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import gpustate

from gpustate.errors import LabError
from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = pytest.mark.long

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
#: Every file of containerd's configuration with its bytes; nothing where there is no folder.
CONFIGURATION = "cd /etc/containerd 2>/dev/null && find . -type f -exec sha256sum {} + | sort || :"
CU_INIT = "python3 -c 'import ctypes; print(ctypes.CDLL(\"libcuda.so.1\").cuInit(0))'"


def test_a_library_of_another_version_is_named_and_repaired(lab: Lab, node12: Node) -> None:
    fault, inventory = "library-mismatch", ("-i", lab.inventory)
    with pytest.raises(LabError, match="no driver is installed"):
        node12.fault(fault, on=True)
    assert node12.faults == ()
    gpustate("apply", POLICY, *inventory, "-l", "gpu1", "--yes", code=0)
    node12.fault(fault, on=True)
    observed = node12.run("nvidia-smi", check=False)
    assert observed.returncode == 18
    assert "Driver/library version mismatch\nNVML library version: 580.178" in observed.stdout
    assert node12.run(CU_INIT).stdout == "803\n"
    broken = gpustate("explain", "gpu1", *inventory, "-o", "json", code=3).node("gpu1")
    assert broken["broken"] == "driver"
    driver = next(check for check in broken["checks"] if check["name"] == "driver")
    assert "loaded 580.65.06" in driver["evidence"]
    assert "libnvidia-ml 580.178.04, libcuda 580.178.04" in driver["evidence"]
    assert "all driver packages in one version" in driver["remedy"]
    assert gpustate("drift", POLICY, *inventory, "-l", "gpu1").code == 2
    node12.fault(fault, on=False)
    assert node12.run("nvidia-smi -L").stdout.count("UUID") == 8
    node12.fault(fault, on=True)
    gpustate("apply", POLICY, *inventory, "-l", "gpu1", "--yes", code=0)
    assert node12.run("nvidia-smi -L").stdout.count("UUID") == 8
    # Nothing is left to put back: the repaired links stay, the copies go.
    node12.fault(fault, on=False)
    assert gpustate("drift", POLICY, *inventory, "-l", "gpu1").code == 0


def test_a_containerd_that_does_not_start_is_rolled_back_and_the_rest_is_done(
    lab: Lab, node13: Node
) -> None:
    on_node = ("-i", lab.inventory, "-l", "gpu2")
    before = node13.run(CONFIGURATION).stdout
    node13.fault("containerd", on=True)
    ran = gpustate("apply", POLICY, *on_node, "--yes", "-o", "json", code=7)
    states = {state["state"]: state for state in ran.node("gpu2")["states"]}
    assert states["containerd"]["outcome"] == "rolled back"
    assert "simulated fault: a file of /etc/containerd" in states["containerd"]["evidence"]
    # Only what is based on containerd is left out.
    assert states["validator"]["outcome"] == "not run"
    others = {states[name]["outcome"] for name in states.keys() - {"containerd", "validator"}}
    assert others == {"changed", "unchanged"}
    assert "580.65.06" in node13.run("nvidia-smi").stdout
    assert node13.run("systemctl is-active containerd").stdout == "active\n"
    assert node13.run(CONFIGURATION).stdout == before
    node13.fault("containerd", on=False)
    gpustate("apply", POLICY, *on_node, "--yes", code=0)
    assert "nvidia-container-runtime" in node13.run("containerd config dump").stdout


LOST = """
format: gpustate.policy/1
states:
  nouveau:
  driver: {branch: 580}
  fabric-manager:
  container-toolkit:
  containerd:
  mig: {config: all-disabled}
  cdi:
  validator:
"""


def test_a_lost_gpu_in_quarantine_leaves_the_others_their_containers(
    lab: Lab, node13: Node, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(LOST)
    on_node = ("-i", lab.inventory, "-l", "gpu2")
    gpustate("apply", policy, *on_node, "--yes", code=0)
    node13.fault("gpu-off-bus:2", on=True)
    node13.run("rm -f /var/run/cdi/nvidia.yaml")
    assert "GPU 2 (0000:52:00.0) does not respond" in gpustate("plan", policy, *on_node).out
    gpustate(
        "node", "quarantine", *on_node, "--gpu", "0000:52:00.0", "--for", "1d", "-m", "lost", code=0
    )
    divided = ("--set", "mig.config=all-3g.40gb")
    assert "does not respond" not in gpustate("plan", policy, *on_node, *divided, code=0).out
    gpustate("apply", policy, *on_node, "--yes", code=0)
    checks = gpustate("explain", "gpu2", "-i", lab.inventory, "-o", "json", code=0).node("gpu2")
    evidence = {check["name"]: check["evidence"] for check in checks["checks"]}
    assert "7 GPUs" in evidence["container"]
    assert "kernel ran on 7" in evidence["cuda"]
    node13.fault("gpu-off-bus:2", on=False)
