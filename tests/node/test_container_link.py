"""The validator starts containers on a booted node, and says why one does not get its GPUs.

Simulated: GPUs, driver, NVML and CUDA. Real: containerd, its shim and CRI, runc, systemd, NVIDIA's container runtime and
hooks, and the damage. Looked at with ctr and mount, not with the program that is tested. Nodes have no pause image.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import nextsteps
import pytest
import shares
from commands import gpustate
from containerbreaks import BREAKS, Break

from gpustate.diagnosis import container_checks
from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = pytest.mark.long

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
POINTS = shares.share("nodes on which containers get no GPUs", BREAKS, most=4)
VALIDATE = "sh /var/lib/gpustate/validator/validate"
#: An idle machine takes 3 s; a busy machine of tests is given more.
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def proven(lab: Lab) -> Iterator[Node]:
    node = lab.node("gpu2")
    node.reset()
    gpustate("apply", POLICY, "-i", lab.inventory, "-l", "gpu2", "--yes", code=0)
    yield node
    node.reset()


def checks(node: Node) -> dict[str, dict[str, str]]:
    """The kept proof's links by name."""
    proof = json.loads(node.run("cat /var/lib/gpustate/proof.json").stdout)
    return {check["name"]: check for check in proof["checks"]}


def traces(node: Node) -> str:
    """Everything that containers leave on a node: namespaces, images, tasks, bundles, mounts, cgroups."""
    return node.run(
        "ctr namespaces ls -q | grep -vx k8s.io; for w in images containers snapshots; do ctr -n k8s.io $w ls; done; ls /run/containerd/io.containerd.runtime.v2.task 2>/dev/null; "
        "grep -c overlay /proc/mounts; ls /run | grep gpustate-validate; pgrep -c containerd-shim; "
        "find /sys/fs/cgroup/devices -name '*gpustate-validate*'; ls /var/lib/containerd/io.containerd.content.v1.content/blobs/sha256",
        check=False,
    ).stdout


def test_a_container_gets_every_gpu_and_nothing_is_left_behind(proven: Node) -> None:
    before = traces(proven)
    began = time.monotonic()
    proven.run(VALIDATE, timeout_s=LIMIT_S)
    assert time.monotonic() - began < LIMIT_S
    assert traces(proven) == before
    link = checks(proven)["container"]
    assert link["outcome"] == "ok"
    assert "handler nvidia: 8 GPUs, 12 device nodes" in link["evidence"]
    assert link["evidence"].count("kernel ran on 8") == 2
    assert "CDI device nvidia.com/gpu=all: 8 GPUs" in link["evidence"]


def test_the_image_has_nothing_of_nvidias(proven: Node) -> None:
    script = (
        "import sys, io, tarfile; sys.path.insert(0, '/var/lib/gpustate/validator/validate.pyz'); "
        "from gpustate.nodeside import container_image as c; d = c.make('x:1')[0]; "
        "o = tarfile.open(fileobj=io.BytesIO(d)); n = [m for m in o.getnames() if m.endswith('layer.tar')][0]; "
        "print('\\n'.join(tarfile.open(fileobj=o.extractfile(n)).getnames()))"
    )
    names = proven.run(["python3", "-I", "-S", "-B", "-c", script]).stdout.split()
    assert any(name.endswith("/libc.so.6") for name in names)
    assert not [name for name in names if "nvidia" in name or "libcuda" in name]


def test_what_a_killed_validation_left_is_removed_by_the_next(proven: Node) -> None:
    before = traces(proven)
    proven.run(
        f"{VALIDATE} >/dev/null 2>&1 & p=$!; "
        "for i in $(seq 600); do ctr -n k8s.io tasks ls -q | grep -q . && break; sleep 0.1; done; "
        "kill -9 $p",
        check=False,
    )
    assert "gpustate-validate" in traces(proven)
    proven.run(VALIDATE, timeout_s=LIMIT_S)
    assert traces(proven) == before


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_a_container_without_gpus_is_explained_and_its_next_step_fixes_it(
    lab: Lab, proven: Node, point: Break
) -> None:
    kind = next(one for one in container_checks.KINDS if one.name == point.kind)
    proven.run(["sh", "-c", point.damage], check=False)
    try:
        proven.run(VALIDATE, check=False, timeout_s=LIMIT_S)
        found = checks(proven)
        assert found["container"]["outcome"] == "failed", found
        evidence = found["container"]["evidence"]
        assert kind.summary in evidence
        assert all(word in evidence for word in point.words), evidence
        assert found["container"]["remedy"] == kind.fix(evidence.partition(":")[0])
        assert "toolkit-ready" not in proven.run("ls /run/nvidia/validations", check=False).stdout
        if not [
            name for name in ("toolkit", "runtime", "cdi") if found[name]["outcome"] == "failed"
        ]:
            ran = gpustate("explain", "gpu2", "-i", lab.inventory, "-o", "json", code=3)
            assert ran.node("gpu2")["cause"] == (point.cause or f"container-{point.kind}"), (
                ran.node("gpu2")
            )
        if point.by_hand:
            proven.run(["sh", "-c", point.heal])
        nextsteps.follow(lab.inventory, proven)
        gpustate("validate", POLICY, "-i", lab.inventory, "-l", "gpu2", code=0)
    finally:
        proven.run(["sh", "-c", point.heal], check=False)
    assert proven.run(VALIDATE, check=False, timeout_s=LIMIT_S).stdout.startswith("pci: ok")
