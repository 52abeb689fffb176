"""The real CRI-O, alone and as the runtime of a kubelet: handler, validation, pods and removal.

Simulated: GPUs, driver, NVML and CUDA. Real: CRI-O, conmon, crun, runc, systemd, kubelet, NVIDIA's container toolkit and device
plugin. Looked at with crictl, which is not the program that is tested. Configurations of CRI-O and a CRI-O that does not
come up are in test_runtimes.py and in proof/test_runtime_configurations.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import gpustate
from labkubernetes import create, get, kubectl, logs, pod, wait_for, wait_phase
from labnodes import LabFactory
from patience import PATIENCE
from standins import write

from gpustate_lab import programs
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes import containers
from gpustate_lab.node import READY_TIMEOUT_S, Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
IMAGE = "debian13-crio"
PAUSE = "registry.k8s.io/pause:3.10"
VALIDATE = "sh /var/lib/gpustate/validator/validate"
CONFIG = "/etc/nvidia-container-runtime/config.toml"


def add_crictl(node: Node) -> None:
    shutil.copy(programs.provide("cri-tools", print)["crictl"], node.root / "usr/bin")


def files(node: Node) -> str:
    """CRI-O's files: names, bytes, owners and times."""
    find = "find /etc/crio -type f -printf '%p %m %U:%G %T@ ' -exec sha256sum {} \\; | sort"
    return node.run(find).stdout


def handlers(node: Node) -> set[str]:
    """Those of the running CRI-O."""
    info = json.loads(node.run("crictl info").stdout)
    return {handler.get("name", "") for handler in info["runtimeHandlers"]}


def leftovers(node: Node) -> str:
    """Everything that the validation's containers could leave."""
    return node.run(
        "crictl pods -q; crictl images -q; crictl ps -aq; ls -d /run/gpustate-validate*; pgrep -c conmon; "
        "ls /var/lib/containers/storage/vfs/dir; systemctl list-units --all --no-legend '*gpustate-validate-*'",
        check=False,
    ).stdout


def checks(node: Node) -> dict[str, dict[str, str]]:
    """The checks of the last validation by name."""
    record = json.loads(node.run("cat /var/lib/gpustate/proof.json").stdout)
    return {check["name"]: check for check in record["checks"]}


def outcomes(verb: str, lab: Lab) -> dict[str, str]:
    ran = gpustate(verb, POLICY, "-i", lab.inventory, "--yes", "-o", "json", code=0)
    return {state["state"]: state["outcome"] for state in ran.document["nodes"][0]["states"]}


@pytest.fixture(scope="module")
def alone(lab_programs: None, kubeadm_labs: LabFactory) -> Lab:
    lab = kubeadm_labs(LabSpec(nodes=1, images=(IMAGE,), gpus=("2xH100",)))
    add_crictl(lab.nodes[0])
    return lab


def test_containers_of_crio_get_gpus_until_the_policy_is_removed(
    alone: Lab, tmp_path: Path
) -> None:
    (node,) = alone.nodes
    before = files(node)
    assert "nvidia" not in handlers(node)
    assert outcomes("apply", alone)["crio"] == "changed"
    assert "nvidia" in handlers(node)
    evidence = checks(node)["container"]["evidence"]
    # Without the pause image no pod can start, but the handler's program can.
    assert "without a pod: RunPodSandbox" in evidence
    assert "2 GPUs, 6 device nodes" in evidence

    busybox = next(
        layer / containers.BUSYBOX for layer in node.layers if (layer / containers.BUSYBOX).exists()
    )
    containers.make_images(tmp_path, busybox)
    shutil.copy(tmp_path / "pause.tar", node.root / "opt/pause.tar")
    node.run(f"skopeo copy docker-archive:/opt/pause.tar:{PAUSE} containers-storage:{PAUSE}")
    clean = leftovers(node)
    node.run(VALIDATE, timeout_s=300)
    assert leftovers(node) == clean
    found = checks(node)
    assert found["runtime"]["evidence"] == "CRI-O 1.34.0 serves CRI and has the handler nvidia"
    evidence = found["container"]["evidence"]
    assert "cri-o 1.34.0, handler nvidia: 2 GPUs, 6 device nodes" in evidence
    assert "cri-o 1.34.0, CDI device nvidia.com/gpu=all: 2 GPUs" in evidence
    assert evidence.count("kernel ran on 2") == 2

    state = files(node), node.run("systemctl show -P MainPID crio").stdout
    assert set(outcomes("apply", alone).values()) <= {"unchanged", "not applicable"}
    assert (files(node), node.run("systemctl show -P MainPID crio").stdout) == state

    # What is broken for pods is broken for the validation: this node has no libnvidia-container.
    node.run(f"mv {CONFIG} /root/config")
    write(node, CONFIG, '[nvidia-container-runtime]\nmode = "legacy"\n')
    ran = gpustate("validate", POLICY, "-i", alone.inventory, "-o", "json", code=3)
    failed = [check["name"] for check in ran.node("gpu1")["checks"] if check["outcome"] == "failed"]
    assert failed == ["container"]
    assert leftovers(node) == clean
    node.run(f"mv /root/config {CONFIG}")
    gpustate("validate", POLICY, "-i", alone.inventory, code=0)

    # A handler that somebody has renamed fails pods of the RuntimeClass; an apply registers it again.
    node.run(
        "sed -i 's/runtimes.nvidia/runtimes.other/' /etc/crio/crio.conf.d/99-zz-gpustate.toml; systemctl restart crio"
    )
    words = "has no runtime handler nvidia, so pods with runtimeClassName nvidia fail; it has crun, other, runc"
    for verb, *target in (("validate", POLICY), ("explain", "gpu1")):
        ran = gpustate(verb, *target, "-i", alone.inventory, "-o", "json", code=3)
        evidence = {check["name"]: check["evidence"] for check in ran.node("gpu1")["checks"]}
        assert words in evidence["runtime"]
    assert outcomes("apply", alone)["crio"] == "changed"
    assert "nvidia" in handlers(node)
    clean = leftovers(node)

    # A validation that is killed leaves its pod to the next one.
    node.run(
        f"{VALIDATE} >/dev/null 2>&1 & p=$!; n=600; "
        "until crictl pods -q | grep -q . || [ $n = 0 ]; do n=$((n - 1)); sleep 0.1; done; kill -9 $p",
        check=False,
        timeout_s=120,
    )
    assert leftovers(node) != clean
    node.run(VALIDATE, timeout_s=300)
    assert leftovers(node) == clean

    gpustate("remove", POLICY, "-i", alone.inventory, "--yes", code=0)
    assert files(node) == before
    assert "nvidia" not in handlers(node)


@pytest.mark.parametrize("version", ["1.34", "1.36"])
def test_pods_of_a_kubelet_on_crio_get_gpus_until_the_policy_is_removed(
    version: str, lab_programs: None, kubeadm_labs: Callable[[LabSpec], Lab]
) -> None:
    spec = LabSpec(nodes=1, images=(IMAGE,), gpus=("2xH100",), kubernetes=version)
    cluster = kubeadm_labs(spec)
    (node,) = cluster.nodes
    add_crictl(node)
    info = get(cluster, "node", "gpu1")["status"]["nodeInfo"]
    assert info["containerRuntimeVersion"] == "cri-o://1.34.0"
    assert info["kubeletVersion"].startswith(f"v{version}.")
    before = files(node)
    assert outcomes("apply", cluster)["crio"] == "changed"
    assert set(outcomes("apply", cluster).values()) <= {"unchanged", "not applicable"}
    create(
        cluster,
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        },
    )

    def offered() -> bool:
        return get(cluster, "node", "gpu1")["status"]["allocatable"].get("nvidia.com/gpu") == "2"

    wait_for(offered, "gpu1 offers two GPUs")
    script = "ls /dev | grep -cx 'nvidia[0-9]*'; sleep 10000"
    for name, more in (("by-cdi", {}), ("by-handler", {"runtimeClassName": "nvidia"})):
        create(cluster, pod(name, script, gpus=1, **more))
        wait_phase(cluster, name, "Running")
        wait_for(lambda name=name: logs(cluster, name), f"{name} reports")
        assert logs(cluster, name) == "1\n"
    for name in ("by-cdi", "by-handler"):
        node.run("systemctl daemon-reload")
        kubectl(cluster, "exec", name, "--", "sh", "-c", "ls /dev/nvidia[0-9]* >/dev/null")
        kubectl(cluster, "delete", "pod", name, "--now")

    node.reboot(3 * READY_TIMEOUT_S * PATIENCE)
    wait_for(offered, "gpu1 offers two GPUs after a reboot")
    ran = gpustate("validate", POLICY, "-i", cluster.inventory, "-o", "json", code=0)
    found = {check["name"]: check for check in ran.node("gpu1")["checks"]}
    # A kubelet ends pods of others; these have reported by then.
    for way in ("handler nvidia", "CDI device nvidia.com/gpu=all"):
        assert f"cri-o 1.34.0, {way}: 2 GPUs, 6 device nodes" in found["container"]["evidence"]
    assert "pod on gpu1, nvidia.com/gpu: GPU-" in found["pod"]["evidence"]
    assert "kernel ran on 1" in found["pod"]["evidence"]
    assert "gpustate-validate" not in node.run("crictl images; ls -d /run/gpustate-v* || :").stdout
    gpustate("remove", POLICY, "-i", cluster.inventory, "--yes", code=0)
    assert files(node) == before
    assert "nvidia" not in handlers(node)
