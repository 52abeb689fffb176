"""Each thing that checks read on a node, removed, renamed, shadowed or slowed down: a node that works is not failed by it.

What checks read is traced on the node (:mod:`nodereads`), so a new reading has its twins without a line here. Whether a twin
works says a program that shares nothing with the validation: CUDA on the node, and a pod that crictl starts. Where both
run on every GPU, no verb may fail; where one does not, the validation has to, and its words name what is broken.

Simulated: GPUs, driver, NVML, CUDA. Real: containerd, runc, NVIDIA's runtime and CDI, systemd, dpkg, the damage.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import gpupods
import nodereads
import pytest
import shares
from commands import gpustate
from labnodes import LabFactory

from gpustate_lab import programs
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes import containers
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

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
NODES, GPUS = 2, 2
SLEEP_S = 3
CHANGES = ("remove", "rename", "shadow", "slow")
#: Of one verb over all nodes, each of whose calls may meet a wrapper that sleeps.
LIMIT_S = 900
FIRST_IN_PATH = "/usr/local/sbin"

#: Prints on how many GPUs a context could be created.
CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDeviceGetCount(ctypes.byref(count))
for number in range(count.value):
    assert not cuda.cuDeviceGet(ctypes.byref(device), number)
    assert not cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    assert not cuda.cuCtxDestroy_v2(context)
print("contexts:", count.value)
"""
#: Starts a pod with every GPU by the handler, prints its log, and removes it.
IN_POD = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
export CONTAINER_RUNTIME_ENDPOINT=unix:///run/containerd/containerd.sock
c="/root/judge/crictl -t 60s"
rm -f /root/judge/log/*
pod=$($c runp -r nvidia /root/judge/pod.json) || exit 0
container=$($c create "$pod" /root/judge/container.json /root/judge/pod.json) && $c start "$container" >/dev/null &&
  for _ in $(seq 300); do [ "$($c ps -q --state exited --id "$container")" = "" ] || break; sleep 0.2; done
cat /root/judge/log/log
$c rmp -f "$pod" >/dev/null
"""


@dataclass(frozen=True)
class Twin:
    """One change of one thing that checks read.

    Args:
        path: of the thing.
        kind: as :func:`nodereads.kinds` has it.
        change: one of :data:`CHANGES`.
    """

    path: str
    kind: str
    change: str

    def __str__(self) -> str:
        return f"{self.change} {self.path}"

    @property
    def name(self) -> PurePosixPath:
        """The last part of the path."""
        return PurePosixPath(PurePosixPath(self.path).name)

    @property
    def place(self) -> str:
        """What is changed: the thing itself, or the first of its name in PATH."""
        if self.change == "shadow" and self.kind == "program":
            return f"{FIRST_IN_PATH}/{self.name}"
        return self.path

    @property
    def away(self) -> str:
        """Where what was in this place is meanwhile."""
        if self.change == "rename":
            return f"{self.path.removesuffix(self.name.suffix)}-old{self.name.suffix}"
        folder = "/run/away" if self.path.startswith("/run/") else "/root/away"
        return f"{folder}/{self.name}"

    @property
    def damage(self) -> str:
        """Script that makes the change."""
        lines = ["set -e; mkdir -p /run/away /root/away", f"place={self.place} away={self.away}"]
        lines.append('real=$(readlink -f "$place"); [ -L "$place" ] || real=$away')
        lines.append('[ ! -e "$place" ] && [ ! -L "$place" ] || mv "$place" "$away"')
        if self.change == "slow":
            run = f'exec -a {self.name} $real "$@"'
            lines.append(f"printf '#!/bin/bash\nsleep {SLEEP_S}\n%s\n' \"{run}\" >$place")
            lines[-1] = lines[-1].replace('"$@"', '\\"\\$@\\"')
        elif self.change == "shadow" and self.kind == "program":
            lines.append("printf '#!/bin/sh\necho shadowed >&2\nexit 1\n' >$place")
        elif self.change == "shadow":
            lines.append(": >$place")
        if self.kind == "program" and self.change in ("shadow", "slow"):
            lines.append("chmod 755 $place")
        return "; ".join(lines)

    @property
    def repair(self) -> str:
        """Script that undoes it; what failed meanwhile may start again."""
        return f"rm -f {self.place}; [ ! -e {self.away} ] && [ ! -L {self.away} ] || mv {self.away} {self.place}; systemctl reset-failed"


@dataclass(frozen=True)
class Verdicts:
    """What two programs that share nothing say of a twin.

    Args:
        works: on the node, and in a pod.
        failures: of ``validate``, ``explain`` and ``health``, in their words.
        notes: of checks that are ok.
    """

    twin: Twin
    works: tuple[bool, bool]
    failures: dict[str, str]
    notes: int

    @property
    def wrong(self) -> str:
        """What is wrong with them; empty: nothing."""
        if all(self.works):
            return f"{self.twin}: works, and fails: {self.failures}" if self.failures else ""
        if "validate" not in self.failures:
            return f"{self.twin}: works on the node, in a pod: {self.works}; nothing fails"
        words = " ".join(self.failures.values())
        return "" if self.is_named(words) else f"{self.twin}: not named: {self.failures}"

    def is_named(self, words: str) -> bool:
        """The words name the broken thing."""
        return str(self.twin.name) in words


def judged_by_cuda(node: Node) -> bool:
    """CUDA runs on every GPU of the node."""
    ran = node.run(["timeout", "100", "python3", "-ISc", CUDA], check=False, timeout_s=120)
    return f"contexts: {GPUS}" in ran.stdout


def judged_by_pod(node: Node) -> bool:
    """CUDA runs on every GPU in a pod."""
    ran = node.run(["timeout", "200", "sh", "-c", IN_POD], check=False, timeout_s=220)
    return f"contexts: {GPUS}" in ran.stdout


def add_judge(node: Node, images: Path) -> None:
    """Put on a node what :func:`judged_by_pod` needs."""
    folder = node.root / "root/judge"
    folder.mkdir()
    shutil.copy(programs.provide("cri-tools", print)["crictl"], folder)
    shutil.copy(images / "pause.tar", folder)
    node.run("ctr -n k8s.io images import /root/judge/pause.tar")
    interpreter = gpupods.import_image(node)
    pod = {
        "metadata": {"name": "judge", "namespace": "judge", "uid": "judge"},
        "log_directory": "/root/judge/log",
        "dns_config": {"servers": ["127.0.0.1"]},  # nodes have no resolv.conf
        "linux": {"security_context": {"namespace_options": {"network": 2}}},
    }
    container = {
        "metadata": {"name": "judge"},
        "image": {"image": gpupods.IMAGE},
        "command": [interpreter, "-ISBc", CUDA],
        "envs": [
            {"key": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"key": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "log_path": "log",
    }
    (folder / "pod.json").write_text(json.dumps(pod))
    (folder / "container.json").write_text(json.dumps(container))


@dataclass(frozen=True)
class Bed:
    """Validated nodes, and what the checks read on them."""

    lab: Lab
    policy: Path
    twins: tuple[Twin, ...]

    def run(self, verb: str, code: int | None = None) -> dict[str, dict[str, Any]]:
        """The rows of a verb over all nodes."""
        before = {"validate": (self.policy,), "explain": ("gpu*",)}.get(verb, ())
        ran = gpustate(
            verb, *before, "-i", self.lab.inventory, "-o", "json", code=code, timeout=LIMIT_S
        )
        rows: list[dict[str, Any]] = ran.document["nodes"]
        return {row["name"]: row for row in rows}

    def verdicts(self, twins: Sequence[Twin]) -> list[Verdicts]:
        """Make one twin of each node, judge all of them by every verb at once, and undo them."""
        pairs = list(zip(self.lab.nodes, twins, strict=False))
        with ThreadPoolExecutor(NODES) as pool:
            try:
                list(pool.map(lambda pair: pair[0].run(pair[1].damage), pairs))
                validated, explained, health = map(self.run, ("validate", "explain", "health"))
                on_node = list(pool.map(lambda pair: judged_by_cuda(pair[0]), pairs))
                in_pod = list(pool.map(lambda pair: judged_by_pod(pair[0]), pairs))
            finally:
                list(pool.map(lambda pair: pair[0].run(pair[1].repair, check=False), pairs))
        return [
            Verdicts(
                twin,
                works,
                failures(validated[node.name], explained[node.name], health[node.name]),
                sum(bool(check["remedy"]) for check in validated[node.name].get("checks", ())),
            )
            for (node, twin), works in zip(pairs, zip(on_node, in_pod, strict=True), strict=True)
        ]


def failures(
    validated: dict[str, Any], explained: dict[str, Any], health: dict[str, Any]
) -> dict[str, str]:
    """The words of each verb that fails a node."""
    words: dict[str, str] = {}
    failed = [check for check in validated.get("checks", ()) if check["outcome"] == "failed"]
    if validated["status"] != "ok" or failed:
        words["validate"] = json.dumps(failed or validated)
    if explained.get("cause") or explained.get("error"):
        last = (explained.get("checks") or [explained])[-1]
        words["explain"] = json.dumps([explained.get("cause"), last])
    bad = [gpu for gpu in health.get("gpus", ()) if gpu["state"] != "well"]
    if bad or health.get("others") or not health.get("gpus"):
        words["health"] = json.dumps(health)
    return words


@pytest.fixture(scope="module")
def bed(
    lab_programs: None, lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Bed:
    if shutil.which("strace") is None:
        pytest.skip("strace is missing, which shows what the checks read")
    folder = tmp_path_factory.mktemp("twins")
    lab = lab_factory(LabSpec(nodes=NODES, images=("debian12",), gpus=(f"{GPUS}xH100",)))
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    gpustate("apply", policy, "-i", lab.inventory, "--yes", code=0, timeout=LIMIT_S)
    first = lab.nodes[0]
    containers.make_images(folder, first.root / containers.BUSYBOX)
    for node in lab.nodes:
        add_judge(node, folder)
        assert judged_by_cuda(node)
        assert judged_by_pod(node)
    return Bed(lab, policy, tuple(generate(lab, folder)))


def generate(lab: Lab, folder: Path) -> Iterator[Twin]:
    """Every change of everything that the checks read."""
    node, inventory = lab.nodes[0], ("-i", lab.inventory)
    baseline = [
        nodereads.traced_logins(
            node, lambda: subprocess.run([*node.ssh_args(), "true"], check=True), folder / "login"
        ),
        nodereads.traced_command(
            node,
            ("python3", "-ISBc", "import ctypes, hashlib, json, subprocess"),
            folder / "python",
        ),
    ]

    def diagnose() -> None:
        gpustate("explain", node.name, *inventory, code=0)
        gpustate("health", *inventory, "-l", node.name, code=0)

    validate = ("sh", "/var/lib/gpustate/validator/validate")
    reads = [
        nodereads.traced_logins(node, diagnose, folder / "diagnosis"),
        nodereads.traced_command(node, validate, folder / "validation"),
    ]
    for path, kind in nodereads.kinds(node, reads, baseline).items():
        for change in CHANGES:
            # The simulated CUDA opens no device node: it runs with a file in the place of one.
            if (kind, change) != ("device", "shadow") and (change != "slow" or kind == "program"):
                yield Twin(path, kind, change)


def test_checks_read_what_gives_containers_their_gpus(bed: Bed) -> None:
    """The trace is no empty one: it has one thing of each kind that the checks are known to read."""
    kinds = {twin.path: twin.kind for twin in bed.twins}
    assert kinds["/usr/bin/nvidia-ctk"] == kinds["/usr/bin/containerd"] == "program"
    assert kinds["/dev/nvidia0"] == "device"
    assert kinds["/run/containerd/containerd.sock"] == "socket"
    assert kinds["/run/cdi/nvidia.yaml"] == "file"
    assert kinds["/usr/lib/x86_64-linux-gnu/libcuda.so.1"] == "link"
    assert len(bed.twins) > 300


def test_a_twin_that_works_is_not_failed_and_one_that_does_not_is_named(bed: Bed) -> None:
    chosen = shares.share("generated twins", bed.twins, most=6, kind=lambda twin: twin.kind)
    verdicts = [
        verdict
        for start in range(0, len(chosen), NODES)
        for verdict in bed.verdicts(chosen[start : start + NODES])
    ]
    counts = Counter(
        (
            "works" if all(v.works) else "broken",
            "failed" if v.failures else "notes" if v.notes else "ok",
        )
        for v in verdicts
    )
    print(f"twins by verdict: {dict(counts)}")
    assert [verdict.wrong for verdict in verdicts if verdict.wrong] == []
    rows = bed.run("validate", code=0)
    assert all(row["status"] == "ok" for row in rows.values())
