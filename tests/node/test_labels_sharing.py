"""Labels, the device plugin's configuration and MPS on real nodes with Debian 12, and as Ubuntu, over real SSH.

Simulated: GPUs, NVML, CUDA and NVIDIA's packages, nvidia-cuda-mps-control among them (its commands and
answers are the real one's; the stub CUDA library refuses a second process on a GPU in exclusive mode unless
it is a client of that daemon; on Ubuntu it is in nvidia-compute-utils-580, a part of the driver). Real: systemd, apt,
the file system, everything of gpustate.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import realgfd
from commands import gpustate
from labnodes import also_on_ubuntu, family

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "device-plugin-config": ("simulated node", "debian12", "ubuntu"),
    "gpu-labels": ("simulated node", "debian12", "ubuntu"),
    "mps": ("simulated node", "debian12", "ubuntu"),
    "slurm-gres": ("simulated node", "debian12", "ubuntu"),
}

pytestmark = pytest.mark.node

FEATURES = "/etc/kubernetes/node-feature-discovery/features.d"
CONFIG = "/etc/nvidia-device-plugin/config.yaml"
OURS = """
from gpustate import Policy, registry

sharing = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
ours = (
    registry.get("device-plugin-config")(config={"sharing": sharing}),
    registry.get("gpu-labels")(),
    registry.get("mps")(clients=4),
    registry.get("slurm-gres")(),
)
"""
#: slurmd is nobody's matter here but for its being there.
SLURMD = """
mkdir -p /etc/slurm; echo 'ClusterName=lab' >/etc/slurm/slurm.conf
printf '#!/bin/sh\nexec sleep infinity\n' >/usr/sbin/slurmd; chmod 0755 /usr/sbin/slurmd
printf '[Service]\nExecStart=/usr/sbin/slurmd\n' >/etc/systemd/system/slurmd.service
systemctl daemon-reload; systemctl start slurmd
"""
HELD = """
held = registry.get("quarantine")(gpus=[{"gpu": "@GPU@", "reason": "RMA 4711", "until": "2099-01-01"}])
policy = Policy(held)
"""
DRIVER = """
driver = (registry.get("driver-repository")(), registry.get("driver")(version="580.65.06"))
policy = Policy(*driver, *ours)
"""


@also_on_ubuntu("debian12")
def test_labels_sharing_and_mps_are_set_up_kept_mended_and_taken_away(
    lab_factory: Callable[[LabSpec], Lab], image: str, tmp_path: Path
) -> None:
    lab = lab_factory(LabSpec.parse(nodes=1, image=image, gpus="2xL40S"))
    (node,) = lab.nodes
    inventory = ("-i", lab.inventory)
    whole, alone = tmp_path / "whole.py", tmp_path / "alone.py"
    whole.write_text(OURS + DRIVER)
    alone.write_text(OURS + "policy = Policy(*ours)\n")

    node.run(SLURMD)
    gpustate("apply", whole, *inventory, "--yes", "-o", "json", code=0)
    assert "Type=l40s" in node.run("cat /etc/slurm/gres.conf").stdout
    listed = node.run(f"ls -A {FEATURES}").stdout.split()
    assert listed == ["gpustate"]
    labels = node.run(f"cat {FEATURES}/gpustate").stdout
    for line in (
        "nvidia.com/gpu.product=NVIDIA-L40S-SHARED",
        "nvidia.com/gpu.count=2",
        "nvidia.com/gpu.replicas=4",
        "nvidia.com/gpu.sharing-strategy=time-slicing",
        "nvidia.com/gpu.family=ada-lovelace",
        "nvidia.com/cuda.driver-version.full=580.65.06",
    ):
        assert f"{line}\n" in labels
    shown = gpustate("node", "labels", *inventory, "-o", "json", code=0).document["nodes"][0]
    assert "".join(f"{key}={value}\n" for key, value in sorted(shown["labels"].items())) == labels
    theirs = realgfd.labels(node, f"--config-file={CONFIG}")
    assert theirs == dict(line.split("=", 1) for line in labels.splitlines())
    slurm = gpustate("node", "labels", *inventory, "-o", "slurm", code=0).out
    assert "NodeName=gpu1 Name=gpu Type=l40s File=/dev/nvidia0" in slurm

    query = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control"
    assert node.run(query).stdout == "25.0\n"
    modes = "nvidia-smi --query-gpu=compute_mode --format=csv,noheader"
    assert node.run(modes).stdout == "Exclusive_Process\n" * 2
    assert "validated in" in node.run("cat /var/lib/gpustate/runs/*/out.*").stdout
    # A process that goes past the daemon while a client is there gets CUDA's error 46.
    beside = (
        "gpustate-lab-workload 0 20 & p=$!; sleep 1; "
        "CUDA_MPS_PIPE_DIRECTORY=/nowhere gpustate-lab-workload 0 1 2>&1; kill $p"
    )
    assert "CUDA error 46" in node.run(beside).stdout

    again = gpustate("apply", whole, *inventory, "--yes", "-o", "json", code=0)
    assert again.summary["changed"] == "0"
    node.run(f"sed -i s/gpu.count=2/gpu.count=8/ {FEATURES}/gpustate; systemctl stop gpustate-mps")
    node.run(f"sed -i s/4/5/ {CONFIG}; sed -i s/Type=l40s/Type=h100/ /etc/slurm/gres.conf")
    assert node.run(modes).stdout == "Default\n" * 2
    assert gpustate("drift", whole, *inventory, "-o", "json").code == 2
    gpustate("apply", whole, *inventory, "--yes", "-o", "json", code=0)
    assert "gpu.count=2" in node.run(f"cat {FEATURES}/gpustate").stdout
    assert node.run(modes).stdout == "Exclusive_Process\n" * 2

    # Clients of other users get at the daemon; where its folders cannot be is said before anything is done.
    node.run("chmod 700 /tmp/nvidia-mps")
    gpustate("apply", whole, *inventory, "--yes", "-o", "json", code=0)
    assert node.run("stat -c %a:%U /tmp/nvidia-mps").stdout == "755:root\n"
    node.run("mv /var/log/nvidia-mps /root/; echo >/var/log/nvidia-mps")
    ran = gpustate("plan", whole, *inventory, "-o", "json", code=5)
    assert "/var/log/nvidia-mps is a file, and a folder belongs there" in ran.out
    node.run("rm /var/log/nvidia-mps; mv /root/nvidia-mps /var/log/")

    file = f"{FEATURES}/gpustate"
    for made in ("mkfifo", "mkdir", "ln -s /nowhere"):
        node.run(f"rm {file}; {made} {file}")
        assert f"{file} is a" in gpustate("plan", whole, *inventory, "-o", "json", code=5).out
        node.run(f"rm -d {file}; touch {file}")
    gpustate("apply", whole, *inventory, "--yes", "-o", "json", code=0)

    gpustate("remove", alone, *inventory, "--yes", "-o", "json", code=0)
    assert node.run(modes).stdout == "Default\n" * 2
    left = node.run(
        f"ls {FEATURES}/gpustate {CONFIG} /etc/systemd/system/gpustate-mps.service "
        "/var/lib/gpustate/mps-proof /usr/bin/nvidia-cuda-mps-control /tmp/nvidia-mps /var/log/nvidia-mps "
        "2>/dev/null || :"
    )
    ubuntu = family(image) == "ubuntu"
    assert left.stdout.split() == (["/usr/bin/nvidia-cuda-mps-control"] if ubuntu else [])
    assert gpustate("drift", alone, *inventory, "-o", "json").code == 2

    # One GPU is out of use, as the inventory or the policy says.
    uuid = node.run("nvidia-smi --query-gpu=uuid --format=csv,noheader | head -n 1").stdout.strip()
    whole.write_text(OURS + HELD.replace("@GPU@", uuid))
    file = "/var/lib/gpustate/quarantine.json"
    for outcome in ("changed", "unchanged"):
        ran = gpustate("apply", whole, *inventory, "--yes", "-o", "json", code=0)
        assert ran.node("gpu1")["states"][-1]["outcome"] == outcome
    node.run(f"rm {file}")
    gpustate("apply", whole, *inventory, "--yes", "-o", "json", code=0)
    assert uuid in node.run(f"cat {file}").stdout
    gpustate("remove", whole, *inventory, "--yes", "-o", "json", code=0)
    assert node.run(f"ls {file}", check=False).returncode != 0
