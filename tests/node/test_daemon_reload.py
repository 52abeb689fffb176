"""The validator knows which containers would lose their GPUs at a ``systemctl daemon-reload``; a real one is the judge.

Simulated: GPUs and driver; nvidia-container-cli, which does what libnvidia-container does to the device cgroup. Real:
systemd, containerd with the systemd cgroup driver, runc 1.1.5 (Debian 12) and 1.1.15 (Debian 13), NVIDIA's runtime and hook.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import gpustate
from labnodes import LabFactory

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

STATES = (
    *("preflight", "nouveau", "driver-repository", "driver", "persistenced"),
    *("toolkit-repository", "container-toolkit", "containerd", "cdi", "validator"),
)
#: As kubeadm leaves it.
SETUP = (
    "mkdir -p /etc/containerd; containerd config default | "
    "sed 's/SystemdCgroup = false/SystemdCgroup = true/; s/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "
    ">/etc/containerd/config.toml; systemctl restart containerd"
)
CLI = "/usr/bin/nvidia-container-cli"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
#: Reloads systemd while the test container waits, and prints whether its cgroup still has the GPU then.
RELOAD = """
import re, subprocess, sys
sys.path.insert(0, "/var/lib/gpustate/validator/validate.pyz")
from gpustate.nodeside import container_scope, validate

observe = container_scope.observe

def reload(pid, run, **more):
    group = re.search(r":devices:(.*)", open(f"/proc/{pid}/cgroup").read())[1]
    devices = lambda: "c 195:255 rw" in open(f"/sys/fs/cgroup/devices{group}/devices.list").read()
    before = devices()
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    print("kept" if before and devices() else "lost" if before else "never had", flush=True)
    return observe(pid, run, **more)

container_scope.observe = reload
sys.argv = ["validate", "--config", "/var/lib/gpustate/validator/config.json"]
validate.main()
"""


@pytest.fixture(scope="module")
def lab(lab_factory: LabFactory) -> Lab:
    lab = lab_factory(LabSpec(nodes=2, images=("debian12", "debian13"), gpus=("2xH100",)))
    for node in lab.nodes:
        node.run(SETUP)
    return lab


def evidence(node: Node) -> str:
    """That of the kept proof's containers."""
    proof = json.loads(node.run("cat /var/lib/gpustate/proof.json").stdout)
    return next(str(one["evidence"]) for one in proof["checks"] if one["name"] == "container")


def after_reload(node: Node) -> set[str]:
    """What became of the GPU in the test containers at a daemon-reload."""
    if not Path("/sys/fs/cgroup/devices").is_dir():
        pytest.skip("the device cgroup of cgroup v2 cannot be read")
    (node.root / "root/reload.py").write_text(RELOAD)
    out = node.run("python3 -I -S -B /root/reload.py", check=False, timeout_s=300).stdout
    return set(re.findall(r"(?m)^(kept|lost|never had)$", out))


def test_the_links_are_asked_for_where_runc_needs_them_and_only_there(
    lab: Lab, tmp_path: Path
) -> None:
    old, new = lab.node("gpu1"), lab.node("gpu2")
    policy = tmp_path / "policy.yaml"
    lines = "".join(f"  {name}:\n" for name in STATES)
    policy.write_text(f"format: gpustate.policy/1\nstates:\n{lines}  dev-char: false\n")
    ran = gpustate("apply", policy, "-i", lab.inventory, "--yes", code=3)
    assert "gpu2  failed" not in ran.out
    assert "runc 1.1.15 and systemd 257" in evidence(new)
    assert not list((new.root / "dev/char").glob("195:*"))
    assert after_reload(new) == {"kept"}
    assert "runc 1.1.5 and systemd 252 need a link in /dev/char for /dev/nvidia" in evidence(old)
    assert after_reload(old) == {"lost"}
    policy.write_text(policy.read_text().replace("dev-char: false", "dev-char:"))
    gpustate("apply", policy, "-i", lab.inventory, "--yes", code=0)
    assert after_reload(old) == {"kept"}
    assert not list((new.root / "dev/char").glob("195:*"))
    gpustate("validate", policy, "-i", lab.inventory, code=0)


def test_devices_that_a_hook_added_are_lost_whatever_the_links(lab: Lab, tmp_path: Path) -> None:
    node = lab.node("gpu1")  # systemd 257 would leave the device cgroup of cgroup v1 as it is
    policy = tmp_path / "policy.yaml"
    lines = "".join(f"  {name}:\n" for name in (*STATES, "dev-char"))
    policy.write_text(f"format: gpustate.policy/1\nstates:\n{lines}")
    limit = ("-i", lab.inventory, "-l", "gpu1")
    gpustate("apply", policy, *limit, "--yes", code=0)
    script = (Path(__file__).parents[1] / "support/container_cli.sh").read_text()
    (node.root / "root/cli").write_text(script)
    node.run(f"cp -p {CLI} /root/cli.kept; cat /root/cli >{CLI}")
    node.run(f"sed -i 's/^ *mode = .auto.*/mode = \"legacy\"/' {TOOLKIT}")
    assert "lost" in after_reload(node)
    explained = gpustate("explain", "gpu1", "-i", lab.inventory, code=3).out
    assert "NVIDIA's hook added /dev/nvidia" in explained
    assert "--set container-toolkit.mode=cdi" in explained
    gpustate("apply", policy, *limit, "--yes", "--set", "container-toolkit.mode=cdi", code=0)
    assert after_reload(node) == {"kept"}
    node.run(f"cp -p /root/cli.kept {CLI}")
