"""The containerd state on real nodes: real containerd 1.6 and 1.7, real systemd.

Looked at with containerd, systemctl, stat and cat, not with the probes. What becomes of every kind of
configuration is in tests/proof/test_containerd_configurations.py.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import commands
import pytest

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"containerd": ("real node", "debian12", "debian13")}

CONFIG = "/etc/containerd/config.toml"
BINARY = "/usr/bin/true"
POLICY = f"""
from gpustate import Policy
from gpustate.states.containerd import ContainerdHandlerRegistered

policy = Policy(ContainerdHandlerRegistered(binary="{BINARY}"))
"""
#: A containerd that dislikes files with the handler, in one of several ways.
WRAPPER = """#!/bin/sh
if grep -q runtimes.nvidia /etc/containerd/config.toml; then
  case "$*" in
    '') if [ -e /run/no-start ]; then echo simulated >&2; exit 1; fi ;;
    *config*)
      if [ -e /run/hang ]; then exec sleep 60; fi
      if [ -e /run/no-read ]; then echo 'simulated: cannot load' >&2; exit 1; fi
      if [ -e /run/changes ]; then
        /usr/bin/containerd.real "$@" | sed 's/max_container_log_line_size = .*/max_container_log_line_size = 7/'
        exit
      fi ;;
  esac
fi
exec /usr/bin/containerd.real "$@"
"""


@pytest.fixture
def wrapped(lab: Lab, node13: Node) -> Node:
    """A node whose containerd runs behind ``WRAPPER``."""
    node13.run("mv /usr/bin/containerd /usr/bin/containerd.real")
    node13.run(["sh", "-c", 'printf %s "$1" >/usr/bin/containerd', "-", WRAPPER])
    node13.run("chmod 0755 /usr/bin/containerd; systemctl restart containerd")
    return node13


def start(verb: str, lab: Lab, node: Node, folder: Path) -> subprocess.Popen[str]:
    policy = folder / "policy.py"
    policy.write_text(POLICY)
    code = "import sys; from gpustate.cli.main import entry; sys.exit(entry())"
    target = ["-i", str(lab.inventory), "-l", node.name, "-o", "json"]
    more = ["--yes"] if verb in ("apply", "remove") else []
    return subprocess.Popen(
        [sys.executable, "-c", code, verb, str(policy), *target, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gpustate(verb: str, lab: Lab, node: Node, folder: Path, *, code: int = 0) -> dict[str, Any]:
    """Run a verb on one node; return the state's part of the document, the summary in it."""
    policy = folder / "policy.py"
    policy.write_text(POLICY)
    target = ["-i", lab.inventory, "-l", node.name, "-o", "json"]
    more = ["--yes"] if verb in ("apply", "remove") else []
    document = commands.gpustate(verb, policy, *target, *more, code=code, timeout=120).document
    state: dict[str, Any] = document["nodes"][0]["states"][0]
    return {**state, "summary": document.get("summary", "")}


def process(node: Node) -> str:
    """Another one after every restart."""
    show = "systemctl show -p MainPID -p ActiveEnterTimestampMonotonic -p ActiveState containerd"
    shown = node.run(show).stdout
    assert "ActiveState=active" in shown
    return shown


def disk(node: Node) -> str:
    """Names, bytes, owners and times below /etc/containerd."""
    return node.run(
        "cd /etc/containerd && find . -type f | sort | xargs stat -c '%n %a %u:%g %Y' && "
        "find . -type f | sort | xargs sha256sum; find . -type d"
    ).stdout


def test_a_containerd_that_does_not_come_up_is_rolled_back(
    lab: Lab, wrapped: Node, tmp_path: Path
) -> None:
    before = disk(wrapped)
    wrapped.run("touch /run/no-start")
    state = gpustate("apply", lab, wrapped, tmp_path, code=7)
    assert state["outcome"] == "rolled back"
    assert "simulated" in state["evidence"]
    assert disk(wrapped) == before
    running = process(wrapped)
    wrapped.run("rm /run/no-start")

    assert gpustate("remove", lab, wrapped, tmp_path)["outcome"] == "unchanged"
    assert process(wrapped) == running
    assert gpustate("apply", lab, wrapped, tmp_path)["outcome"] == "changed"


@pytest.mark.parametrize("fault", ["no-read", "changes"])
def test_what_containerd_makes_of_the_files_is_seen_before_anything_restarts(
    fault: str, lab: Lab, wrapped: Node, tmp_path: Path
) -> None:
    before, running = disk(wrapped), process(wrapped)
    wrapped.run(f"touch /run/{fault}")
    state = gpustate("apply", lab, wrapped, tmp_path, code=7)
    expected = {"no-read": "cannot load", "changes": "max_container_log_line_size = 7"}
    assert expected[fault] in state["reason"]
    assert (disk(wrapped), process(wrapped)) == (before, running)


def test_a_restart_that_a_killed_run_still_owes_is_made_good_for_or_rolled_back(
    lab: Lab, wrapped: Node, tmp_path: Path
) -> None:
    before, running = disk(wrapped), process(wrapped)
    for outcome, code in (("rolled back", 7), ("changed", 0)):
        wrapped.run("touch /run/hang")
        apply = start("apply", lab, wrapped, tmp_path)
        for _ in range(100):
            if wrapped.run("pgrep -fx 'sleep 60'", check=False).returncode == 0:
                break
            time.sleep(0.1)
        wrapped.run(
            "rm /run/hang; pkill -KILL -f '[/]runs/.*/program'; pkill -KILL -f '[/]runs/.*/step'"
        )
        wrapped.run("pkill -KILL -fx 'sleep 60'")
        apply.communicate(timeout=60)
        assert apply.returncode == 1
        assert disk(wrapped) != before
        assert process(wrapped) == running

        plan = gpustate("plan", lab, wrapped, tmp_path)
        assert [change["field"] for change in plan["changes"]] == ["read"]
        wrapped.run("touch /run/no-start" if code else "rm /run/no-start")
        assert gpustate("apply", lab, wrapped, tmp_path, code=code)["outcome"] == outcome
        assert (disk(wrapped) == before) == bool(code)
        assert process(wrapped) != running
        running = process(wrapped)
    assert " changed=0 " in gpustate("apply", lab, wrapped, tmp_path)["summary"]
    assert process(wrapped) == running


def test_a_handler_that_somebody_registered_without_a_restart_costs_the_restart_only(
    lab: Lab, node12: Node, tmp_path: Path
) -> None:
    table = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%s]\nruntime_type = "io.containerd.runc.v2"\n'
    options = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\nBinaryName = "%s"\n'
    cdi = 'container_annotations = ["cdi.k8s.io/*"]\n'
    theirs = table % "runc" + table % "nvidia" + cdi + options % BINARY
    time.sleep(1.1)
    node12.run(["sh", "-c", f'printf %s "$1" >>{CONFIG}', "-", theirs])
    there, running = disk(node12), process(node12)
    changes = gpustate("apply", lab, node12, tmp_path)["changes"]
    assert [change["field"] for change in changes] == ["read"]
    assert disk(node12) == there
    restarted = process(node12)
    assert restarted != running

    node12.run(f"echo '# edited' >>{CONFIG}")
    assert " changed=0 " in gpustate("apply", lab, node12, tmp_path)["summary"]
    assert process(node12) == restarted


def test_a_drop_in_newer_than_its_root_is_healed_and_never_given_back(
    lab: Lab, node13: Node, tmp_path: Path
) -> None:
    newer = (
        'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\n'
        f'options = {{ BinaryName = "{BINARY}" }}\n'
    )
    write = 'mkdir -p /etc/containerd/conf.d; printf %s "$1" >/etc/containerd/conf.d/99-nvidia.toml'
    node13.run(["sh", "-c", write, "-", newer])
    node13.run(
        f"sed -i '1a imports = [\"conf.d/*.toml\"]' {CONFIG}; systemctl restart containerd || :"
    )
    assert node13.run("systemctl is-active containerd", check=False).stdout != "active\n"
    assert gpustate("apply", lab, node13, tmp_path)["outcome"] == "changed"
    running, healed = process(node13), disk(node13)
    assert " changed=0 " in gpustate("apply", lab, node13, tmp_path)["summary"]

    state = gpustate("remove", lab, node13, tmp_path, code=5)
    assert "/etc/containerd/conf.d/99-nvidia.toml" in state["reason"]
    assert "containerd 1.7 does not start" in state["reason"]
    assert (process(node13), disk(node13)) == (running, healed)


def test_a_containerd_that_runs_without_its_cri_plugin_is_refused_by_what_the_process_says(
    lab: Lab, node13: Node, tmp_path: Path
) -> None:
    table = '[plugins."io.containerd.grpc.v1.cri".registry'
    text = f'version = 2\n{table}]\nconfig_path = "/x"\n{table}.mirrors."y"]\nendpoint = ["https://z"]\n'
    (node13.root / CONFIG.removeprefix("/")).write_text(text)
    node13.run("systemctl restart containerd")
    before, running = disk(node13), process(node13)
    for verb, code in (("apply", 5), ("drift", 2)):
        reason = gpustate(verb, lab, node13, tmp_path, code=code)["reason"]
        assert "no pod can start" in reason
        assert "`mirrors` cannot be set when `config_path` is provided" in reason
    assert (disk(node13), process(node13)) == (before, running)
    # Repaired in the file and not yet read: one restart, with the handler.
    time.sleep(1.1)
    (node13.root / CONFIG.removeprefix("/")).write_text("version = 2\n")
    assert gpustate("apply", lab, node13, tmp_path)["outcome"] == "changed"
    assert " ok" in node13.run("ctr plugins ls | grep ' cri '").stdout
    assert gpustate("apply", lab, node13, tmp_path)["outcome"] == "unchanged"


def test_a_containerd_that_somebody_disabled_is_drift_and_runs_again_after_an_apply(
    lab: Lab, node12: Node, tmp_path: Path
) -> None:
    assert gpustate("apply", lab, node12, tmp_path)["outcome"] == "changed"
    before = disk(node12)
    node12.run("systemctl disable --now containerd")
    (change,) = gpustate("drift", lab, node12, tmp_path, code=2)["changes"]
    assert (change["field"], change["disruption"]) == ("running", "none")
    assert "containerd.service is disabled" in change["why"]
    assert gpustate("apply", lab, node12, tmp_path)["outcome"] == "changed"
    assert node12.run("systemctl is-enabled containerd").stdout == "enabled\n"
    assert "ActiveState=active" in process(node12)
    assert disk(node12) == before
    assert gpustate("drift", lab, node12, tmp_path)["outcome"] == "unchanged"

    node12.run("systemctl disable --now containerd; systemctl mask containerd")
    reason = gpustate("apply", lab, node12, tmp_path, code=5)["reason"]
    assert "containerd.service is masked" in reason
    node12.run("systemctl unmask containerd; systemctl enable --now containerd")
    assert gpustate("apply", lab, node12, tmp_path)["outcome"] == "unchanged"
