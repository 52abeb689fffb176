"""Ordinary machines of ``tests/data/machines.yaml``, as nodes: the checks say what the expert says.

Plan and matrix are judged without nodes (``tests/unit/compat``). Here each row that the lab can be is installed, and both
``validate`` and ``explain`` give the verdict of its source. ``ELSEWHERE`` says of every other row why the lab is not it.

Simulated: GPUs, fabric, driver, Ubuntu and Amazon Linux. Real: Debian, containerd 1.6 to 2.1, CRI-O, NVIDIA's toolkit, systemd.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from commands import gpustate
from distributions import DISTRIBUTIONS, Machine, rpm_world
from labnodes import LabFactory
from rpmdriver import DriverRpms
from shares import share

from gpustate_lab import api
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

MACHINES = {
    machine["name"]: machine
    for machine in yaml.safe_load(
        (Path(__file__).parents[1] / "data/machines.yaml").read_text("utf-8")
    )["machines"]
}
R580 = "preset: kubernetes-node\ndriver: {version: 580.178.04}\n"


@dataclass(frozen=True)
class Row:
    """How the lab is a machine.

    Args:
        image: of the lab, or the name of an rpm distribution.
        gpus: of the lab.
        policy: that makes the node.
        words: what the evidence of the named checks says, by check.
        before, after: scripts of sh before and after the apply.
        cause: of a machine that does not work.
        instead: what the lab has in place of what the row has, and the checks do not judge.
    """

    image: str
    gpus: str
    policy: str = R580
    words: tuple[tuple[str, str], ...] = ()
    before: str = ":"
    after: str = ":"
    cause: str = ""
    instead: str = ""


ROWS = {
    "Operator 26.7 with a driver on the host": Row(
        "ubuntu2404", "8xH100", words=(("fabric", "complete on 8 GPUs"), ("container", "handler nvidia: 8 GPUs")),
        instead="containerd 1.7, no cluster"),
    "Kubernetes 1.36 with containerd 1.7": Row(
        "ubuntu2404", "1xL40S", words=(("runtime", "containerd serves CRI"), ("container", "containerd 1.7.")),
        instead="an L40S, as the lab has no L4; no cluster"),
    "CNS 19.0 with CRI-O": Row(
        "debian13-crio", "1xL40S", words=(("runtime", "CRI-O 1.34"), ("container", "kernel ran on 1")),
        instead="CRI-O 1.34 on Debian 13, the driver on the host"),
    "Debian 13 with R550's last": Row(
        "debian13", "1xA100", policy="preset: kubernetes-node\ndriver-repository: {origin: distribution}\n"
        "driver: {version: 550.163.01, module_type: proprietary}\n", words=(("driver", "550.163.01 (proprietary) loaded"),)),
    "L40S with a library of NVSwitches left over": Row(
        "debian12", "1xL40S", words=(("fabric", "no NVLink fabric"),),
        after="apt-get install -y -q libnvidia-nscq-570 nvidia-imex-570"),
    "HGX H100 without Fabric Manager": Row(
        "debian12", "8xH100", after="systemctl stop nvidia-fabricmanager; dpkg -P --force-all nvidia-fabricmanager",
        words=(("fabric", "Fabric Manager is not installed"),), cause="fabric-manager-missing"),
    "HGX H100 with an older Fabric Manager": Row(
        "debian12", "8xH100", after="systemctl stop nvidia-fabricmanager; dpkg -P --force-all nvidia-fabricmanager; "
        "apt-get install -y -q nvidia-fabricmanager-570 && { systemctl restart nvidia-fabricmanager || :; }",
        cause="fabric-manager-version"),
    "HGX B200 without nvlsm": Row(
        "debian12", "8xB200", after="systemctl stop nvidia-fabricmanager nvlsm; dpkg -P --force-all nvlsm && { systemctl start nvidia-fabricmanager || :; }",
        cause="nvlink-subnet-manager-missing"),
    "MIG on H100": Row(
        "ubuntu2404", "8xH100", policy=f"{R580}mig: {{config: all-1g.10gb}}\n", words=(("cuda", "kernel ran on 56 devices"), ("cdi", "every file exists"))),
    "EKS 1.34 on Amazon Linux 2023": Row(
        "amzn", "8xH100", words=(("container", "handler nvidia: 8 GPUs"),), instead="580.178.04 and containerd of Debian 12, no cluster"),
    "GB200 NVL72 with ComputeDomains": Row(
        "debian12", "4xGB200", words=(("fabric", "complete on 4 GPUs"),), instead="x86_64, no cluster"),
    "GPUs by DRA": Row(
        "debian13-containerd2", "8xH100", policy="format: gpustate.policy/1\nstates: {nouveau: , driver: {version: 580.178.04}, fabric-manager: , "
        "container-toolkit: , cdi: , validator: }\n", before="printf '#!/bin/sh\\n' >/usr/bin/kubelet; chmod 755 /usr/bin/kubelet",
        words=(("runtime", "by CDI, without a handler"), ("container", "CDI device")), instead="containerd 2.1, no cluster"),
}  # fmt: skip
#: Why the lab is none of the other rows: a pattern of name and facts, and the reason. The first that matches counts.
ELSEWHERE = (
    (r"kubernetes_flavour=(rke2|microk8s|k0s|openshift)|os=rhcos|os=azurelinux|Talos", "the lab has no such distribution"),
    (r"machine=aarch64|GB10", "nodes have the controller's architecture"),
    (r"kubevirt|vgpu", "no virtual GPUs are simulated"),
    (r"gpu=(\d+x)?(V100|T4|K80|P40|A10|A30|A40|L4|A10G|B300|RTX\w+|GH200)\b", "the lab has no such GPU, or no driver for it alone"),
    (r"driver_from=container|gpu_operator|network_operator", "the driver is in a container, whose image only NVIDIA has"),
    (r"dra=yes|compute_domains", "it is an object of a cluster that fails, no node"),
    (r"rule: build-|module_source=dkms", "a module that does not build is no node to check"),
    (r"mig-not-on|mig-a30", "such a GPU has no MIG mode that a node could be in"),
    (r"fabric-manager-on-mnnvl", "what Fabric Manager does to a tray is not simulated"),
    (r"gds=yes", "no check is about GPUDirect Storage"),
    (r"driver=(610|615|620|570\.124|470|520|525)", "the lab's repositories have no such driver"),
)  # fmt: skip


def test_every_machine_is_a_node_of_the_lab_or_has_a_reason() -> None:
    assert set(ROWS) <= set(MACHINES)
    for name, machine in MACHINES.items():
        facts = f"{name} {machine['set']} rule: {machine.get('rule', '')}"
        reasons = [why for pattern, why in ELSEWHERE if re.search(pattern, facts)]
        assert (name in ROWS) or reasons, name
    assert {MACHINES[name]["works"] for name in ROWS} == {True, False}


@pytest.fixture
def machine(
    name: str, kubeadm_labs: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, Path]]:
    """A fresh node that can become the machine, and its inventory."""
    row = ROWS[name]
    distribution = DISTRIBUTIONS.get(row.image)
    rpm = distribution is not None and bool(distribution.tag)
    image = "debian12-rpm" if rpm else row.image
    lab = kubeadm_labs(LabSpec(nodes=1, images=(image,), gpus=(row.gpus,)))
    (node,) = lab.nodes
    inventory = lab.inventory
    if rpm and distribution is not None:
        folder = tmp_path_factory.mktemp("rpm")
        world = rpm_world(distribution, DriverRpms(folder / "drivers"), folder / "world")
        inventory = Machine(lab, distribution, folder, world).inventory
    yield node, inventory
    api.down(lab.name)


@pytest.mark.parametrize("name", share("ordinary machines as nodes", list(ROWS), most=1))
def test_the_checks_of_a_machine_say_what_its_source_says(
    name: str, machine: tuple[Node, Path], tmp_path: Path
) -> None:
    row, (node, inventory) = ROWS[name], machine
    policy = tmp_path / "policy.yaml"
    policy.write_text(row.policy)
    code = 0 if MACHINES[name]["works"] else 3
    assert bool(row.cause) is bool(code)
    node.run(["sh", "-c", row.before])
    gpustate("apply", policy, "-i", inventory, "--yes", code=0, timeout=900)
    node.run(["sh", "-c", row.after], timeout_s=300)
    target = ("-i", inventory, "-o", "json")
    validated = gpustate("validate", policy, *target, code=code).node(node.name)
    explained = gpustate("explain", node.name, *target, code=code).node(node.name)
    checks = {check["name"]: check for check in validated["checks"]}
    assert (explained["cause"] or "") == row.cause, explained
    for check, words in row.words:
        assert words in checks[check]["evidence"], checks
    if not code:
        assert {checks["container"]["outcome"], checks["cuda"]["outcome"]} == {"ok"}, checks
    else:
        first = next(check for check in validated["checks"] if check["outcome"] == "failed")
        assert first["name"] == explained["checks"][-1]["name"]
