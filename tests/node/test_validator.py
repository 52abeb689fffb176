"""The proof on a booted node: real systemd, sshd and apt; GPUs, driver, NVML and CUDA are simulated.

Looked at with systemctl, stat and a shell that sources the status file, not with the probe.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import forkserver
import pytest

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"validator": ("simulated node", "debian12")}

STATUS = "/run/nvidia/validations"
UNIT = "gpustate-validate.service"
POLICY = """
from gpustate import Policy
from gpustate.registry import get

policy = Policy(
    get("preflight")(gpus="8xH100"),
    get("nouveau")(),
    get("driver-repository")(),
    get("driver")(branch=580),
    get("fabric-manager")(),
    get("validator")(containers="none", timeout_s=20),
)
"""


@dataclass(frozen=True)
class Proven:
    """A node that has been brought all the way, and the commands to go on with."""

    lab: Lab
    node: Node
    policy: Path

    def gpustate(self, verb: str, *more: str) -> tuple[int, str]:
        """Exit code and output; the last line is the summary."""
        words = [verb, *more, "-i", str(self.lab.inventory), "-l", self.node.name]
        done = forkserver.run(words, 400)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    def apply(self) -> tuple[int, str]:
        return self.gpustate("apply", str(self.policy), "--yes")

    def validate(self) -> tuple[int, str]:
        return self.gpustate("validate", str(self.policy))

    def status_files(self) -> list[str]:
        return self.node.run(f"ls {STATUS}", check=False).stdout.split()

    def traces(self) -> str:
        return self.node.run(f"stat -c '%n %i %y' {STATUS}/* /var/lib/gpustate/proof.json").stdout


@pytest.fixture(scope="module")
def proven(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proven]:
    node = lab.node("gpu1")
    node.reset()
    policy = tmp_path_factory.mktemp("validator") / "policy.py"
    policy.write_text(POLICY)
    made = Proven(lab, node, policy)
    code, out = made.apply()
    assert code == 0, out
    yield made
    node.reset()


def test_a_proven_node_has_its_status_files_and_its_boot_unit(proven: Proven) -> None:
    assert proven.status_files() == ["cuda-ready", "driver-ready"]
    script = f"set -eu; . {STATUS}/driver-ready; echo $IS_HOST_DRIVER $NVIDIA_DRIVER_ROOT $DRIVER_ROOT_CTR_PATH $NVIDIA_DEV_ROOT $DEV_ROOT_CTR_PATH"
    assert proven.node.run(script).stdout.split() == ["true", "/", "/host", "/", "/host"]
    assert proven.node.run(f"systemctl is-enabled {UNIT}").stdout.strip() == "enabled"
    proof = json.loads(proven.node.run("cat /var/lib/gpustate/proof.json").stdout)
    assert proof["ok"] is True
    assert proof["made_for"]["boot_id"] == proven.node.boot_id()
    uuids = proven.node.run("nvidia-smi --query-gpu=uuid --format=csv,noheader").stdout.split()
    assert [result["uuid"] for result in proof["cuda"]] == uuids
    assert len(uuids) == 8


def test_a_second_apply_proves_nothing_again(proven: Proven) -> None:
    before = proven.traces()
    code, out = proven.apply()
    assert code == 0
    assert " changed=0 " in out
    assert proven.traces() == before


def test_a_reboot_is_proven_by_the_boot_unit_and_not_waited_for(proven: Proven) -> None:
    proven.node.reboot()
    deadline = time.monotonic() + 60
    show = f"systemctl show -p ActiveState -p ExecMainExitTimestampMonotonic {UNIT}"
    while (said := proven.node.run(show).stdout) and (
        "=inactive" not in said or "Monotonic=0" in said
    ):
        assert time.monotonic() < deadline, said
        time.sleep(0.3)
    assert proven.status_files() == ["cuda-ready", "driver-ready"]
    waited = proven.node.run("systemctl list-dependencies --after multi-user.target --plain").stdout
    assert "ssh.service" in waited
    assert UNIT not in waited
    code, out = proven.apply()
    assert code == 0
    assert " changed=0 " in out


@pytest.mark.parametrize(
    ("fault", "link", "said", "left"),
    [
        (
            "cuda-802",
            "cuda",
            ("CUDA 802", "systemctl restart nvidia-fabricmanager"),
            ["driver-ready"],
        ),
        ("gpu-off-bus:3", "libraries", ("GPU 3 (0000:61:00.0): GPU is lost (NVML 15)",), []),
    ],
)
def test_a_broken_link_is_named_with_evidence_and_next_move(
    proven: Proven, fault: str, link: str, said: tuple[str, ...], left: list[str]
) -> None:
    proven.node.fault(fault, on=True)
    try:
        code, out = proven.validate()
        flat = " ".join(out.split())
        assert code == 3, out
        assert all(words in flat for words in said), out
        assert proven.status_files() == left
        code, out = proven.gpustate("explain", proven.node.name)
        assert code == 3
        assert f"failed: {link}" in out
    finally:
        proven.node.fault(fault, on=False)
    code, out = proven.validate()
    assert code == 0, out
    assert proven.status_files() == ["cuda-ready", "driver-ready"]


def test_a_killed_proof_is_made_again(proven: Proven) -> None:
    proven.node.run(
        "sh /var/lib/gpustate/validator/validate >/dev/null & p=$!; sleep 0.4; kill -9 $p",
        check=False,
    )
    code, out = proven.apply()
    assert code == 0, out
    assert proven.status_files() == ["cuda-ready", "driver-ready"]


def test_a_validation_at_boot_that_still_runs_refuses_no_upgrade(proven: Proven) -> None:
    folder = f"/run/systemd/system/{UNIT}.d"
    holds = '[Service]\\nExecStart=\\nExecStart=/bin/sh -c "exec sleep 600 </dev/nvidia0"\\n'
    proven.node.run(
        f"mkdir -p {folder}; printf '{holds}' >{folder}/holds.conf; systemctl daemon-reload; "
        f"systemctl start --no-block {UNIT}; sleep 1; ls -l /proc/[0-9]*/fd 2>&1 | grep -q /dev/nvidia0"
    )
    for driver in ("570", "580"):
        code, out = proven.gpustate("upgrade", str(proven.policy), "--driver", driver, "--yes")
        assert code == 0, out
        assert proven.node.run(f"systemctl is-active {UNIT}", check=False).stdout != "active\n"
        proven.node.run(f"rm -rf {folder}; systemctl daemon-reload")


def test_the_operators_own_driver_keeps_its_status_files(proven: Proven) -> None:
    text = "IS_HOST_DRIVER=false"
    proven.node.run(f"touch {STATUS}/.driver-ctr-ready; echo {text} >{STATUS}/driver-ready")
    try:
        code, out = proven.validate()
        assert code == 0, out
        assert proven.node.run(f"cat {STATUS}/driver-ready").stdout.strip() == text
    finally:
        proven.node.run(f"rm {STATUS}/.driver-ctr-ready {STATUS}/driver-ready")
        assert proven.validate()[0] == 0


def test_removal_leaves_nothing(proven: Proven) -> None:
    only = proven.policy.with_name("only.py")
    only.write_text(
        "from gpustate import Policy\nfrom gpustate.registry import get\n"
        'policy = Policy(get("validator")(containers="none"))\n'
    )
    proven.node.run(f"touch {STATUS}/plugin-ready")  # somebody else's
    code, out = proven.gpustate("remove", str(only), "--yes")
    assert code == 0, out
    left = proven.node.run(
        f"ls -d /etc/systemd/system/{UNIT} /etc/systemd/system/*.wants/{UNIT} "
        "/var/lib/gpustate/validat* /var/lib/gpustate/proof.json /var/lib/gpustate/status-files",
        check=False,
    ).stdout
    assert left == ""
    assert proven.status_files() == ["plugin-ready"]
