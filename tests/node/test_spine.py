"""The whole way on real Debian 12 and 13 nodes, and on one that answers as Ubuntu, over real SSH: plan, apply,
validate, apply again, remove; killed in the middle, on either side; with hardware and packages that misbehave.

Simulated: GPUs, PCI, NVML, CUDA, NVIDIA's packages with their real names and dependencies, and that a root is
Ubuntu's (docs/lab.md). Real: everything else.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import GPUSTATE, gpustate
from labnodes import also_on_ubuntu, family

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {
    "preflight": ("real node", "debian12", "debian13", "ubuntu"),
    "nouveau": ("simulated node", "debian12", "debian13", "ubuntu"),
    "driver-repository": ("simulated node", "debian12", "debian13", "ubuntu"),
    "driver": ("simulated node", "debian12", "debian13", "ubuntu"),
    "fabric-manager": ("simulated node", "debian12", "debian13", "ubuntu"),
    "persistenced": ("simulated node", "debian12", "debian13", "ubuntu"),
    "toolkit-repository": ("simulated node", "debian12", "debian13", "ubuntu"),
    "container-toolkit": ("simulated node", "debian12", "debian13", "ubuntu"),
    "containerd": ("real node", "debian12", "debian13", "ubuntu"),
    "cdi": ("simulated node", "debian12", "debian13", "ubuntu"),
    "validator": ("simulated node", "debian12", "debian13", "ubuntu"),
}

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "docs/examples/clusterpolicy.yaml"
UPSTREAM = ROOT.parent / "shared/upstream/gpu-operator/v1_clusterpolicy.yaml"

#: When each service last became active, by unit; what a second apply must not move.
ACTIVE = "systemctl show --property=Id,ActiveEnterTimestampMonotonic --type=service,socket,path '*' | paste -sd' '"
#: Every file outside gpustate's own folder that was touched after the mark.
TOUCHED = (
    "find / -xdev -newer /var/tmp/mark ! -type d ! -path '/proc/*' ! -path '/sys/*' ! -path '/run/*' "
    "! -path '/var/lib/gpustate/*' ! -path '/var/log/*' ! -path '/tmp/*' ! -path '/var/tmp/*' ! -path '/var/lib/systemd/*' "
    "! -path '/var/lib/containerd/*' ! -path '/root/*'"
)

#: What each transaction of apt has installed.
INSTALLED = "grep ^Install: /var/log/apt/history.log"
#: The package of libcuda.so.1, which the driver's set includes and holds.
LIBRARY = {"debian": "libcuda1", "ubuntu": "libnvidia-compute-580"}
#: Something of every state of the policy is removed or changed; reads library.
DAMAGE = """
rm /etc/modprobe.d/gpustate-nouveau.conf /etc/apt/sources.list.d/gpustate-toolkit-repository.sources
echo '# damaged' >>/etc/apt/preferences.d/gpustate-driver-repository
chmod 700 /etc/apt/keyrings
apt-mark unhold $library nvidia-container-toolkit
systemctl disable --now nvidia-persistenced nvidia-fabricmanager
rm /usr/lib/systemd/system/nvidia-fabricmanager.service
rm "$(modinfo -n nvidia-uvm)"; depmod
for f in /var/lib/apt/lists/*_Packages*; do : >"$f"; done
rm /var/run/cdi/nvidia.yaml
rm -f /etc/udev/rules.d/71-nvidia-dev-char.rules /dev/char/195:*
echo nvidia.com/gpu.count=9 >/etc/kubernetes/node-feature-discovery/features.d/gpustate
"""
DAMAGED = {
    *("nouveau", "driver-repository", "toolkit-repository", "driver", "persistenced"),
    *("fabric-manager", "container-toolkit", "containerd", "cdi", "gpu-labels"),
}


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def converged(lab: Lab, policy: Path, limit: str = "all") -> None:
    """A further apply says that there is nothing to do, at one connection and one exec a node."""
    ran = gpustate("apply", policy, "-i", lab.inventory, "-l", limit, "--yes", "-o", "json", code=0)
    for row in ran.document["nodes"]:
        outcomes = {state["state"]: state["outcome"] for state in row["states"]}
        assert set(outcomes.values()) <= {"unchanged", "not applicable"}, outcomes
        assert (row["connections"], row["execs"]) == (1, 1)


@also_on_ubuntu("debian12")
def test_a_cluster_policy_is_planned_applied_validated_and_applied_again(
    fresh_home: Lab, image: str
) -> None:
    """Debian's lab has a node of Debian 13 beside that of Debian 12."""
    library = LIBRARY[family(image)]
    inventory = ("-i", fresh_home.inventory)
    before = {
        node.name: node.run("cat /etc/containerd/config.toml 2>/dev/null || :").stdout
        for node in fresh_home.nodes
    }
    gpustate("plan", POLICY, *inventory, "--detailed-exitcode", code=2)
    assert gpustate("drift", POLICY, *inventory, "-o", "json").code == 2
    done = gpustate("apply", POLICY, *inventory, "--yes", "-o", "json", code=0)
    assert done.summary["changed"] == str(len(fresh_home.nodes))
    for node in fresh_home.nodes:
        # A transaction with the driver, headers and toolkit, and one of what follows the loaded driver.
        brought = [row for row in node.run(INSTALLED).stdout.splitlines() if "nvidia" in row]
        assert len(brought) == 2, brought
        assert "nvidia-container-toolkit:" in brought[0]
        assert "580.65.06" in node.run("nvidia-smi").stdout
        assert "nvidia-container-runtime" in node.run("containerd config dump").stdout
        assert "driver-ready" in node.run("ls /run/nvidia/validations").stdout
        assert "IS_HOST_DRIVER=true" in node.run("cat /run/nvidia/validations/driver-ready").stdout
        assert library in node.run("apt-mark showhold").stdout
        node.run("touch /var/tmp/mark; sleep 1.1")
    active = {node.name: node.run(ACTIVE).stdout for node in fresh_home.nodes}
    again = gpustate("apply", POLICY, *inventory, "--yes", "-o", "json", code=0)
    assert again.summary["changed"] == "0"
    for node in fresh_home.nodes:
        assert node.run(ACTIVE).stdout == active[node.name]
        assert node.run(TOUCHED).stdout == ""
    converged(fresh_home, POLICY)
    assert gpustate("drift", POLICY, *inventory, "-o", "json").code == 0
    proven = gpustate("validate", POLICY, *inventory, "-o", "json", code=0)
    for row in proven.document["nodes"]:
        links = {check["name"]: check["outcome"] for check in row["checks"]}
        assert links["cuda"] == "ok"
        assert "failed" not in links.values()
    assert gpustate("explain", "gpu1", *inventory, code=0).out.startswith("gpu1  all checks passed")
    for node in fresh_home.nodes:
        node.run(f"library={library}\n{DAMAGE}")
        (node.root / "etc/containerd/config.toml").write_text(before[node.name])
    damaged = gpustate("drift", POLICY, *inventory, "-o", "json", code=2)
    for node in fresh_home.nodes:
        rows = damaged.node(node.name)["states"]
        unseen = {row["state"] for row in rows if row["outcome"] in ("unchanged", "not applicable")}
        assert not unseen & DAMAGED, node.name
    gpustate("apply", POLICY, *inventory, "--yes", "-o", "json", code=0)
    converged(fresh_home, POLICY)
    for node in fresh_home.nodes:
        node.run("modinfo nvidia-uvm; test -e /usr/lib/systemd/system/nvidia-fabricmanager.service")
        node.reboot()
        node.run("systemctl is-system-running --wait || :", timeout_s=90)
    wait_until(
        lambda: all(
            "proof" in node.run("ls /var/lib/gpustate").stdout for node in fresh_home.nodes
        ),
        60,
        "boot proof",
    )
    converged(fresh_home, POLICY)
    removed = gpustate("remove", POLICY, *inventory, "--yes", "-o", "json")
    assert removed.code == 0, removed.out
    for node in fresh_home.nodes:
        assert (
            node.run("cat /etc/containerd/config.toml 2>/dev/null || :").stdout == before[node.name]
        )
        assert (
            "nvidia"
            not in node.run(
                "dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' | grep ' .i' || :"
            ).stdout
        )
        assert (
            node.run(
                "find /etc -name '*gpustate*' ! -path '/etc/gpustate-lab*' ! -name '*gpustate-lab*'"
            ).stdout
            == ""
        )
        left = node.run(
            "apt-mark showhold; dkms status; find /lib/modules -name 'nvidia*.ko*'; "
            "cut -d ' ' -f 1 /run/gpustate-lab/proc/modules | grep nvidia; dpkg --audit"
        )
        assert left.stdout == ""
        assert node.run("systemctl is-active containerd").stdout.strip() == "active"


@pytest.mark.long
@pytest.mark.skipif(
    not UPSTREAM.is_file(),
    reason="the Operator's own sample lies in ../shared/upstream, which is absent here",
)
def test_the_operators_own_sample_goes_the_same_way_unmodified(fresh_lab: Lab) -> None:
    done = gpustate("apply", UPSTREAM, "-i", fresh_lab.inventory, "--yes", code=0)
    assert done.summary["changed"] == "2"
    assert "Notes on the policy" not in done.out
    planned = gpustate("plan", UPSTREAM, "-i", fresh_lab.inventory, code=0)
    assert "Notes on the policy" in planned.out
    converged(fresh_lab, UPSTREAM)


def start_apply(lab: Lab, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [GPUSTATE, "apply", str(POLICY), "-i", str(lab.inventory), "-l", name, "--yes"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def installing(node: Node) -> bool:
    """The driver's packages are being installed right now."""
    return (
        "dkms"
        in node.run(
            "ps -eo args | grep -v grep | grep -E 'dpkg .*(unpack|configure)|dkms' || :"
        ).stdout
    )


@pytest.mark.proof
def test_killed_on_the_controller_in_the_middle_the_next_apply_converges(
    lab: Lab, node12: Node
) -> None:
    process = start_apply(lab, "gpu1")
    wait_until(lambda: installing(node12), 60, "dpkg at work")
    process.send_signal(signal.SIGKILL)
    process.wait()
    ran = gpustate(
        "apply", POLICY, "-i", lab.inventory, "-l", "gpu1", "--yes", "-o", "json", code=0
    )
    # Whether the program was still at work when we came back, or had just finished: it was not done twice.
    assert (
        node12.run("grep -c ' install nvidia-smi:amd64 ' /var/log/dpkg.log || :").stdout.strip()
        == "1"
    )
    assert ran.node("gpu1")["status"] == "ok"
    converged(lab, POLICY, "gpu1")


@pytest.mark.proof
def test_killed_on_the_node_in_the_middle_the_next_apply_converges(lab: Lab, node13: Node) -> None:
    process = start_apply(lab, "gpu2")
    wait_until(lambda: installing(node13), 60, "dpkg at work")
    node13.kill()
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    node13.boot()
    ran = gpustate("apply", POLICY, "-i", lab.inventory, "-l", "gpu2", "--yes")
    assert ran.code == 0, ran.out + ran.err
    converged(lab, POLICY, "gpu2")


@pytest.mark.long
def test_nouveau_in_use_costs_one_reboot_after_the_driver_is_built(
    lab_factory: Callable[[LabSpec], Lab],
) -> None:
    lab = lab_factory(
        LabSpec.parse(nodes=1, image="debian12", gpus="2xL40S", faults=["nouveau-stuck@gpu1"])
    )
    (node,) = lab.nodes
    first = node.boot_id()
    refused = gpustate(
        "apply", POLICY, "-i", lab.inventory, "--yes", "--max-disruption", "drain", code=5
    )
    assert "may cause disruption reboot" in refused.out
    ran = gpustate("apply", POLICY, "-i", lab.inventory, "--yes", "-o", "json", code=0)
    assert ran.summary["reboots"] == "1"
    assert node.boot_id() != first
    assert "nouveau" not in node.run("cat /run/gpustate-lab/proc/modules").stdout
    converged(lab, POLICY)


@pytest.mark.long
def test_what_breaks_is_named_with_evidence_and_remedy(lab: Lab, node12: Node) -> None:
    inventory = ("-i", lab.inventory, "-l", "gpu1")
    broken = gpustate("explain", "gpu1", "-i", lab.inventory, "-o", "json", code=3).node("gpu1")
    assert broken["broken"] == "driver"
    gpustate("apply", POLICY, *inventory, "--yes", "-o", "json", code=0)
    node12.fault("gpu-off-bus:3", on=True)
    ran = gpustate("validate", POLICY, *inventory, "-o", "json", code=3)
    failed = [check for check in ran.node("gpu1")["checks"] if check["outcome"] == "failed"]
    assert "GPU is lost" in failed[0]["evidence"]
    assert failed[0]["remedy"]
    explained = gpustate("explain", "gpu1", "-i", lab.inventory, code=3)
    assert "GPU is lost" in explained.out
    assert "next:" in explained.out
    junit = gpustate("validate", POLICY, *inventory, "-o", "junit", code=3)
    assert "<failure message=" in junit.out
    node12.fault("gpu-off-bus:3", on=False)
    gpustate("validate", POLICY, *inventory, code=0)


@pytest.mark.long
def test_a_module_that_fails_to_build_is_told_by_its_first_compiler_error(
    lab: Lab, node12: Node
) -> None:
    node12.fault("dkms-build", on=True)
    try:
        ran = gpustate(
            "apply", POLICY, "-i", lab.inventory, "-l", "gpu1", "--yes", "-o", "json", code=7
        )
        driver = next(s for s in ran.node("gpu1")["states"] if s["state"] == "driver")
        assert driver["outcome"] == "rolled back"
        assert node12.run("dpkg --audit; dpkg-query -W 'libcuda1*' 2>/dev/null || :").stdout == ""
        assert "error:" in driver["reason"] + driver.get("evidence", "")
        outcomes = {s["state"]: s["outcome"] for s in ran.node("gpu1")["states"]}
        assert outcomes["cdi"] == "not run"
    finally:
        node12.fault("dkms-build", on=False)
    gpustate("apply", POLICY, "-i", lab.inventory, "-l", "gpu1", "--yes", "-o", "json", code=0)
    converged(lab, POLICY, "gpu1")
