"""The runtime that a node uses is judged, and not the programs that are installed beside it; CDI by what containerd does.

Simulated: GPUs, driver, NVML, CUDA. Real: docker, podman, crun, containerd 1.7 and 2.1, NVIDIA's runtime and CDI, systemd, the
damage. The kubelet is a program that is only there. A container with GPUs decides; the same node fails without one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import gpustate
from labnodes import LabFactory

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

CONFIG, TOOLKIT = "/etc/containerd/config.toml", "/etc/nvidia-container-runtime/config.toml"
SPEC, HOOK = "/var/run/cdi/nvidia.yaml", "/usr/bin/nvidia-cdi-hook"
#: With the lab's wrapper of runc, which leaves out an OOM score that the machine of tests may forbid.
CRUN = (
    "sed s/runc/crun/g /usr/local/sbin/runc >/usr/local/sbin/crun; chmod 755 /usr/local/sbin/crun; "
    f"sed -i 's/^ *runtimes *=.*/runtimes = [\"crun\"]/' {TOOLKIT}; grep -q '^runtimes = ..crun' {TOOLKIT}"
)
#: A kubelet whose program alone is there; containers' storage that a node of the lab can have.
KUBELET = "printf '#!/bin/sh\\n' >/usr/bin/kubelet; chmod 755 /usr/bin/kubelet"
STORAGE = 'mkdir -p /etc/containers; printf \'[storage]\\ndriver = "vfs"\\nrunroot = "/run/c"\\ngraphroot = "/var/lib/c"\\n\' >/etc/containers/storage.conf'
OFF = "systemctl disable --now docker.socket docker containerd"
NO_CRI = f"mv /usr/bin/podman /root/; echo 'disabled_plugins = [\"cri\"]' >{CONFIG}"
NO_MODE = f"sed -i '/^ *mode *=/d; s/^.nvidia-container-runtime.$/&\\nmode = \"no\"/' {TOOLKIT}"
CRI_2 = 'printf "\\n[plugins.\\"io.containerd.cri.v1.runtime\\"]\\n%s\\n"'


@dataclass(frozen=True)
class Case:
    """A node whose containers get their GPUs, and its twin whose containers do not.

    Args:
        image: of the node.
        states: of the policy, beside driver, toolkit and validator.
        before, after: scripts of sh before and after the apply.
        words: what the evidence of the container says.
        broken: script that takes the GPUs from containers.
        cause: what ``explain`` calls that.
    """

    image: str
    states: tuple[str, ...]
    before: str
    after: str
    words: str
    broken: str
    cause: str


CASES = {
    "podman beside a disabled containerd": Case(
        "debian13-runtimes", ("podman", "cdi"), f"{OFF}; mv /usr/bin/docker /root/; {STORAGE}", ":", "podman",
        f"systemctl disable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service; rm -f {SPEC}", "cdi-missing"),
    "docker beside a containerd without CRI and a kubelet": Case(
        "debian13-runtimes", ("docker",), STORAGE, f"{NO_CRI}; {KUBELET}; systemctl restart containerd docker", "docker", NO_MODE,
        "container-toolkit-config"),
    "containerd beside a docker that fails": Case(
        "debian13-runtimes", ("containerd",), STORAGE, f"{KUBELET}; echo '{{' >/etc/docker/daemon.json; systemctl restart docker || :",
        "containerd", NO_MODE, "container-toolkit-config"),
    "crun in place of runc": Case(
        "debian13-runtimes", ("containerd",), ":", CRUN, "containerd",
        f"mv {HOOK} {HOOK}.away; printf '#!/bin/sh\\nexit 4\\n' >{HOOK}; chmod 755 {HOOK}", "container-hook-failed"),
    "containerd 2 without a handler": Case(
        "debian13-containerd2", ("cdi",), ":", KUBELET, "CDI device",
        f"{CRI_2} 'enable_cdi = false' >>{CONFIG}; systemctl restart containerd", "containerd-handler-missing"),
    "containerd 2 that reads another folder": Case(
        "debian13-containerd2", ("cdi",), ":", KUBELET, "CDI device",
        f"{CRI_2} 'cdi_spec_dirs = [\"/opt/cdi\"]' >>{CONFIG}; systemctl restart containerd", "containerd-handler-missing"),
}  # fmt: skip


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def labs(lab_factory: LabFactory) -> Callable[[str], Lab]:
    return functools.cache(
        lambda image: lab_factory(LabSpec(nodes=1, images=(image,), gpus=("2xH100",)))
    )


@pytest.fixture
def inventory(case: Case, labs: Callable[[str], Lab]) -> Iterator[tuple[Node, Path]]:
    lab = labs(case.image)
    (node,) = lab.nodes
    node.reset()
    yield node, lab.inventory
    node.reset()


def test_a_node_is_judged_by_the_runtime_that_it_uses(
    case: Case, inventory: tuple[Node, Path], tmp_path: Path
) -> None:
    node, hosts = inventory
    policy = tmp_path / "policy.yaml"
    states = ("nouveau", "driver", "container-toolkit", *case.states, "validator")
    policy.write_text(
        "".join(["format: gpustate.policy/1\nstates:\n", *(f"  {s}:\n" for s in states)])
    )
    node.run(["sh", "-c", case.before])
    gpustate("apply", policy, "-i", hosts, "--yes", "--set", "driver.branch=580", code=0)
    node.run(["sh", "-c", case.after])
    target = (policy, "-i", hosts, "-o", "json", "--set", "driver.branch=580")
    validated = gpustate("validate", *target, code=0).node(node.name)
    evidence = {check["name"]: check["evidence"] for check in validated["checks"]}
    assert case.words in evidence["container"], evidence
    assert "kernel ran on 2" in evidence["container"], evidence
    assert not gpustate("explain", node.name, "-i", hosts, "-o", "json", code=0).node(node.name)[
        "cause"
    ]
    node.run(["sh", "-c", case.broken])
    gpustate("validate", *target, code=3)
    explained = gpustate("explain", node.name, "-i", hosts, "-o", "json", code=3).node(node.name)
    assert explained["cause"] == case.cause, explained


def test_a_docker_that_lost_its_runtime_fails_validation_as_it_fails_explain(
    labs: Callable[[str], Lab], tmp_path: Path
) -> None:
    """Containers get their GPUs by CDI, and ``--runtime nvidia``, which the policy registers, fails."""
    lab = labs("debian13-runtimes")
    (node,) = lab.nodes
    node.reset()
    policy = tmp_path / "policy.yaml"
    states = ("nouveau", "driver", "container-toolkit", "docker", "cdi", "validator")
    policy.write_text(f"format: gpustate.policy/1\nstates: {{{': , '.join(states)}: }}\n")
    target = (policy, "-i", lab.inventory, "-o", "json", "--set", "driver.branch=580")
    node.run(["sh", "-c", STORAGE])
    gpustate("apply", *target, "--yes", code=0)
    try:
        node.run("mv /etc/docker/daemon.json /root/; systemctl restart docker")
        explained = gpustate("explain", node.name, *target[1:5], code=3).node(node.name)
        validated = gpustate("validate", *target, code=3).node(node.name)
        gpustate("drift", *target, code=2)
    finally:
        node.reset()
    assert explained["cause"] == "docker-without-runtime"
    first = next(check for check in validated["checks"] if check["outcome"] == "failed")
    assert first == explained["checks"][-1]
