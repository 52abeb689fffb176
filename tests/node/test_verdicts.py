"""Nodes that work are not failed by where their files are, what they are called, or who uses them; nodes that do not are.

Simulated: GPUs, driver, NVML, CUDA. Real: containerd, NVIDIA's runtime and CDI, systemd, the damage. Each case is judged by
``explain``, ``validate`` and ``explain`` again, which have to agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nextsteps
import pytest
import shares
from commands import gpustate

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = pytest.mark.long

POLICY = """
format: gpustate.policy/1
states:
  nouveau:
  driver: {branch: 580}
  container-toolkit:
  containerd:
  validator:
"""
SPEC, CONFIG = "/var/run/cdi/nvidia.yaml", "/etc/containerd/config.toml"
RESTART = "systemctl restart containerd"
UNITS = "nvidia-cdi-refresh.path nvidia-cdi-refresh.service"
UNREFRESHED = f"systemctl disable --now {UNITS}; mkdir -p /etc/cdi"
REFRESHED = (
    f"rm -rf /etc/cdi; systemctl enable --now {UNITS}; systemctl restart nvidia-cdi-refresh.service"
)
KEPT = f"cp -p /root/kept.toml {CONFIG}; {RESTART}"
#: AKS's names, on a node whose containerd gpustate has not configured.
NOTE = "/var/lib/gpustate/containerd.served"
OTHER_NAME = f"""mv {NOTE} /root/; cp -p {CONFIG} /root/kept.toml; cat >{CONFIG} <<'END'
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "nvidia-container-runtime"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
END
{RESTART}"""
TOOLKIT = "/usr/local/nvidia/toolkit"
#: As the toolkit's container of the GPU Operator leaves it.
OPERATORS = f"""cp -p {CONFIG} /root/kept.toml; cp -p /etc/nvidia-container-runtime/config.toml /root/kept-toolkit.toml
systemctl stop {UNITS}; cp -p {SPEC} /root/kept-cdi.yaml; mkdir -p {TOOLKIT}
for f in ctk container-runtime container-runtime.cdi container-runtime.legacy container-runtime-hook cdi-hook container-cli; do
  [ ! -e /usr/bin/nvidia-$f ] || mv /usr/bin/nvidia-$f {TOOLKIT}/
done
sed -i 's,/usr/bin/nvidia-c,{TOOLKIT}/nvidia-c,' {CONFIG} {SPEC}
sed -i 's,"nvidia-c\\(tk\\|ontainer-runtime-hook\\)","{TOOLKIT}/nvidia-c\\1",' /etc/nvidia-container-runtime/config.toml; {RESTART}"""
JOB = """nvidia-smi -c EXCLUSIVE_PROCESS; cat >/root/job.py <<'END'
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
time.sleep(3600)
END
systemd-run -q --unit job python3 /root/job.py; sleep 2"""
#: RKE2's containerd, whose handler's program is missing.
BUNDLED = f"""mkdir -p /run/k3s/containerd /etc/rke2 /root/off
{{ printf 'version = 2\\nroot = "/var/lib/containerd/rke2"\\nstate = "/run/k3s/containerd"\\n[grpc]\\n  address = "/run/k3s/containerd/containerd.sock"\\n'
grep -v '^version' {CONFIG} | sed 's,/usr/bin/nvidia-container-runtime,/opt/nvidia-container-runtime,'; }} >/etc/rke2/c.toml
systemctl stop containerd; mv /var/lib/gpustate/containerd.served /root/off/
systemd-run -q --unit rke2-containerd containerd --config /etc/rke2/c.toml; sleep 3"""


@dataclass(frozen=True)
class Case:
    """A node whose looks and workings differ.

    Args:
        damage, heal: scripts of sh.
        words: what the evidence of ``check`` says.
        files: status files afterwards.
        cause: of the node that does not work; empty: it works.
    """

    damage: str
    heal: str
    check: str
    words: str
    cause: str = ""
    files: tuple[str, ...] = ("cuda-ready", "driver-ready", "toolkit-ready")


CASES = {
    "no specification": Case(f"{UNREFRESHED}; rm -f {SPEC}", REFRESHED, "cdi", "NVIDIA's runtime needs none"),
    "an old specification below a good one": Case(
        f"{UNREFRESHED}; sed 's/580[.0-9]*/575.57.08/g' {SPEC} >/etc/cdi/nvidia.yaml", REFRESHED, "cdi", "a later folder has its devices"),
    "a specification in one line": Case(
        f"{UNREFRESHED}; nvidia-ctk cdi generate --format=json --output=/etc/cdi/nvidia.json; rm -f {SPEC}", REFRESHED, "cdi", "/etc/cdi/nvidia.json: "),
    "a handler of another name": Case(OTHER_NAME, f"mv /root/containerd.served {NOTE}; {KEPT}", "container", "handler nvidia-container-runtime: 8 GPUs"),
    "a job that owns a GPU": Case(JOB, "systemctl stop job; nvidia-smi -c DEFAULT", "cuda", "(python3): not tested"),
    "the Operator's toolkit": Case(
        OPERATORS, f"mv {TOOLKIT}/* /usr/bin/; cp -p /root/kept-toolkit.toml /etc/nvidia-container-runtime/config.toml; cp -p /root/kept-cdi.yaml {SPEC}; "
        f"systemctl start {UNITS}; {KEPT}", "toolkit", TOOLKIT),
    "RKE2's containerd without the handler's program": Case(
        BUNDLED, "systemctl stop rke2-containerd; rm -rf /run/k3s /etc/rke2; mv /root/off/containerd.served /var/lib/gpustate/; systemctl start containerd",
        "runtime", "which does not exist", "handler-left-behind", ("driver-ready",)),
}  # fmt: skip
#: As NVIDIA/nvidia-container-toolkit#1956 has it.
NO_TYPE = f"cp -p {CONFIG} /root/kept.toml; sed -i '/runtimes.nvidia\\]/,/BinaryName/{{/runtime_type/d}}' {CONFIG}; {RESTART}"
CASES["a handler without runtime_type"] = Case(
    NO_TYPE, KEPT, "runtime", "has no runtime_type", "handler-without-type", ("driver-ready",)
)
POINTS = shares.share("verdicts on nodes whose looks deceive", list(CASES), most=2)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verdicts") / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture(scope="module")
def node(lab: Lab, policy: Path) -> Iterator[Node]:
    node = lab.node("gpu2")
    node.reset()
    gpustate("apply", policy, "-i", lab.inventory, "-l", "gpu2", "--yes", code=0)
    yield node
    node.reset()


@pytest.mark.parametrize("name", POINTS)
def test_explain_and_validate_agree_on_a_node(
    name: str, lab: Lab, node: Node, policy: Path
) -> None:
    case, code = CASES[name], 3 if CASES[name].cause else 0
    inventory = ("-i", lab.inventory, "-o", "json")
    target = (*inventory, "-l", "gpu2")
    node.run(["sh", "-c", case.damage])
    try:
        before = gpustate("explain", "gpu2", *inventory, code=code).node("gpu2")
        validated = gpustate("validate", policy, *target, code=code).node("gpu2")
        after = gpustate("explain", "gpu2", *inventory, code=code).node("gpu2")
    finally:
        node.run(["sh", "-c", case.heal])
    evidence = {check["name"]: check["evidence"] for check in validated["checks"]}
    assert case.words in evidence[case.check], evidence
    assert {before["cause"] or "", after["cause"] or ""} == {case.cause}
    files = node.run("ls /run/nvidia/validations").stdout.split()
    assert files == list(case.files)


def shadow(program: str, script: str) -> tuple[str, str]:
    """Damage and repair: a program ahead of another in PATH."""
    path = f"/usr/local/sbin/{program}"
    return f"printf '%s\\n' '#!/bin/sh' '{script}' >{path}; chmod 755 {path}", f"rm {path}"


#: Only the query for its version fails: hooks run it for containers.
VERSION = '[ "$1" != --version ] || {{ {}; }}; exec /usr/bin/nvidia-ctk "$@"'


#: What checks read, damaged, while containers get their GPUs.
TWINS = {
    "nvidia-ctk without version": shadow("nvidia-ctk", VERSION.format("exit 1")),
    "nvidia-ctk slow": shadow("nvidia-ctk", VERSION.format("sleep 20; exit 1")),
    "nvidia-container-runtime shadowed": shadow("nvidia-container-runtime", "echo broken; exit 3"),
    "crio beside containerd": shadow("crio", "exit 1"),
    "docker without daemon": shadow("docker", "exit 1"),
    "an old library in another folder": (
        "mkdir -p /usr/lib64; cp /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib64/libcuda.so.470.1",
        "rm /usr/lib64/libcuda.so.470.1",
    ),
}
WORKING = shares.share("damaged stand-ins on nodes that work", list(TWINS), most=1)
MODE = "/etc/nvidia-container-runtime/config.toml"


@pytest.mark.parametrize("name", WORKING)
def test_a_damaged_stand_in_is_a_note_while_containers_get_gpus(
    name: str, lab: Lab, node: Node, policy: Path
) -> None:
    damage, heal = TWINS[name]
    target = ("-i", lab.inventory, "-o", "json", "-l", "gpu2")
    node.run(["sh", "-c", f"cp -p {MODE} /root/kept-mode; {damage}"])
    try:
        gpustate("validate", policy, *target, code=0)
        assert not gpustate("explain", "gpu2", *target[:4], code=0).node("gpu2")["cause"]
        node.run(
            f"sed -i '/^ *mode *=/d; s/^.nvidia-container-runtime.$/&\\nmode = \"no\"/' {MODE}"
        )
        broken = gpustate("validate", policy, *target, code=3).node("gpu2")
        evidence = {check["name"]: check["evidence"] for check in broken["checks"]}
        assert "cannot read its configuration" in evidence["container"], evidence
    finally:
        node.run(["sh", "-c", f"cp -p /root/kept-mode {MODE}; {heal}"])


@dataclass(frozen=True)
class Named:
    """A damage whose cause every verb has to name.

    Args:
        damage, heal: scripts of sh.
        cause: as ``explain`` names it.
        words: what the evidence says.
        next_step: how the first command of the next step begins.
        health: exit code and words of ``health``.
    """

    damage: str
    heal: str
    cause: str
    words: str
    next_step: str
    health: tuple[int, str]


NAMED = {
    "a masked daemon whose socket the specification names": Named(
        "systemctl enable --now nvidia-persistenced; systemctl restart nvidia-cdi-refresh; systemctl mask --now nvidia-persistenced",
        "systemctl unmask nvidia-persistenced; systemctl start nvidia-persistenced", "persistenced-stopped",
        "nvidia-persistenced is masked", "systemctl unmask nvidia-persistenced", (0, "8 well")),
    "a GPU without device node": Named(
        "rm /dev/nvidia3", "nvidia-modprobe -u -c=0; ! test -e /dev/nvidia3 && nvidia-modprobe -c=3", "gpu-without-device-node", "/dev/nvidia3 is missing", "nvidia-modprobe -c=3",
        (3, "7 well, 1 failed")),
    "a handler of another name than the policy's": Named(
        f"cp -a /etc/containerd /root/; sed -i s/runtimes.nvidia/runtimes.other/ {CONFIG} /etc/containerd/conf.d/*.toml; {RESTART}",
        f"rm -r /etc/containerd; mv /root/containerd /etc/; {RESTART}", "containerd-handler-missing",
        "no runtime handler nvidia, so pods with runtimeClassName nvidia fail", "gpustate apply", (0, "8 well")),
    "a specification of which a device node has no path": Named(
        f"cp -p {SPEC} /root/; sed -i -z 's,- path: /dev/nvidia0\\n *major,- major,' {SPEC}",
        f"cp -p /root/nvidia.yaml {SPEC}", "cdi-broken", "a device node has no path", "gpustate apply", (0, "8 well")),
    "a specification that was cut": Named(
        f"cp -p {SPEC} /root/; head -c 3000 /root/nvidia.yaml >{SPEC}", f"cp -p /root/nvidia.yaml {SPEC}", "cdi-broken",
        f"ignore {SPEC}", "gpustate apply", (0, "8 well")),
    "switches without Fabric Manager": Named(
        "systemctl stop nvidia-fabricmanager", "systemctl start nvidia-fabricmanager", "fabric-manager-down",
        "nvidia-fabricmanager is inactive", "gpustate apply", (3, "8 well, the node failed (fabric)")),
    "a link to a library that is gone": Named(
        "mv /usr/lib/x86_64-linux-gnu/libcuda.so.[0-9][0-9]* /root/", "mv /root/libcuda.so.* /usr/lib/x86_64-linux-gnu/", "driver-library-dangling",
        "which does not exist", "gpustate apply", (3, "8 well, the node failed (libraries)")),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_every_verb_names_the_same_cause_and_its_next_step(
    name: str, lab: Lab, node: Node, policy: Path
) -> None:
    case, inventory = NAMED[name], ("-i", lab.inventory)
    target = (*inventory, "-l", "gpu2")
    gpustate("validate", policy, *target, code=0)
    node.run(["sh", "-c", case.damage])
    try:
        explained = gpustate("explain", "gpu2", *inventory, "-o", "json", code=3).node("gpu2")
        validated = gpustate("validate", policy, *target, "-o", "json", code=3).node("gpu2")
        code, words = case.health
        assert words in gpustate("health", *target, code=code).out
        gpustate("drift", policy, *target, code=2)
    finally:
        node.run(["sh", "-c", case.heal])
    assert explained["cause"] == case.cause
    (failed,) = (check for check in explained["checks"] if check["outcome"] == "failed")
    first = next(check for check in validated["checks"] if check["outcome"] == "failed")
    assert first == failed
    assert case.words in failed["evidence"]
    assert nextsteps.commands(failed["remedy"])[0].startswith(case.next_step)


def test_a_gpu_that_a_boot_does_not_find_is_missed_until_it_is_accepted(
    lab: Lab, node: Node, policy: Path
) -> None:
    inventory = ("-i", lab.inventory, "-o", "json")
    target = (*inventory, "-l", "gpu2")
    gpustate("validate", policy, *target, code=0)
    node.run(
        "cd /etc/gpustate-lab; cp -p hardware.json /root/; "
        'python3 -c \'import json; d = json.load(open("hardware.json")); d["gpus"].pop(); json.dump(d, open("hardware.json", "w"))\''
    )
    node.reboot()
    try:
        found = gpustate("explain", "gpu2", *inventory, code=3).node("gpu2")
        assert found["cause"] == "gpu-missing"
        assert "of the last good validation" in found["checks"][0]["evidence"]
        assert "cuda-ready" not in node.run("ls /run/nvidia/validations", check=False).stdout
        gpustate("health", *target, code=3)
        gpustate("drift", policy, *target, code=2)
        gpustate("validate", policy, *target, code=3)
        gpustate("validate", policy, *target, "--set", "validator.gpus=7", code=0)
        gpustate("validate", policy, *target, code=0)
    finally:
        node.run("cp -p /root/hardware.json /etc/gpustate-lab/")
        node.reboot()
