"""A failed step comes with its command and one that shows why, both for a root shell on the node."""

from __future__ import annotations

import re
import subprocess

import pytest

from gpustate import ops
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.core.policy import Policy
from gpustate.core.step import Step
from gpustate.engine import journal
from gpustate.ops.upload import Upload
from gpustate.plan import document, html, markdown, render

STEPS: dict[type[Step], Step] = {
    type(step): step
    for step in (
        ops.AptHold(("a", "b")),
        ops.AptInstall((("nvidia-driver", "580-1"), ("x", "")), remove=("old",), reinstall=True),
        ops.AptRemove(("a",)),
        ops.AptUpdate("/etc/apt/sources.list.d/x.list"),
        ops.RpmHold(("a",), manager="dnf"),
        ops.RpmInstall((("a", "1-2"),), manager="zypper"),
        ops.RpmRemove(("a",), manager="dnf"),
        ops.RpmUpdate("dnf", "cuda"),
        ops.DaemonReload(),
        ops.EnableUnit("x.service"),
        ops.StartUnit("x.service"),
        ops.DisableUnit("x.service"),
        ops.RestartUnit("it's.service"),
        ops.PutText("/etc/x y/z", "text\n"),
        ops.RemoveFile("/etc/z"),
        ops.KeepOriginal("/etc/z"),
        ops.RestoreOriginal("/etc/z"),
        ops.RebuildInitramfs(),
        ops.LoadModules(("nvidia", "nvidia-uvm")),
        ops.UnloadModules(("nvidia-uvm", "nvidia")),
        ops.Run("systemctl restart x.service", "restart it", shown="systemctl restart x.service"),
    )
}
#: Steps without a command of their own: what they do is done by the program around them.
WITHOUT = {ops.PutText, ops.KeepOriginal, ops.RestoreOriginal, ops.ForgetOriginal, Upload}
#: First words of commands that only read.
READING = {"cat", "tail", "dpkg", "apt-cache", "apt-mark", "dnf", "zypper", "systemctl", "journalctl", "ls", "lsattr", "df", "dkms", "dmesg", "lsmod", "fuser"}  # fmt: skip


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: type(step).__name__)
def test_commands_are_shell_and_the_second_only_reads(step: Step) -> None:
    assert bool(step.command) == (type(step) not in WITHOUT)
    assert step.inspect
    for text in (step.command, step.inspect):
        done = subprocess.run(["sh", "-n", "-c", text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (text, done.stderr)
    plain = re.sub(r"'[^']*'", "", step.inspect)
    firsts = {part.split()[0] for part in re.split("[|;]", plain) if part.strip()}
    assert firsts <= READING | {"grep"}, step.inspect


def test_words_are_quoted() -> None:
    assert STEPS[ops.RestartUnit].command == """systemctl restart 'it'"'"'s.service'"""
    assert "'/etc/x y/z'" in STEPS[ops.PutText].inspect


def test_a_pinned_installation_can_be_pasted() -> None:
    wanted = "apt-get install --reinstall nvidia-driver=580-1 x old-"
    assert STEPS[ops.AptInstall].command == wanted


def test_the_journal_s_failed_step_brings_both() -> None:
    step = STEPS[ops.RestartUnit]
    program = ops.compile_program((ops.Block("containerd", (), (step,)),), {})
    record = journal.Record()
    record.take({"e": "result", "i": 1, "rc": 1, "out": "no"}, program)
    found = record.states["containerd"]
    assert (found.command, found.inspect) == (step.command, step.inspect)


def test_every_output_shows_both() -> None:
    state = StateResult(
        "containerd",
        Outcome.FAILED,
        reason="restart containerd ended with 1",
        command="systemctl restart containerd.service",
        inspect="journalctl -u containerd.service",
    )
    row = document.state_data(state)
    assert (row["command"], row["inspect"]) == (state.command, state.inspect)
    node = NodeResult("gpu1", NodeStatus.FAILED, states=[state])
    result = document.result_document(
        [node], run="r", created="2026-01-01T00:00:00Z", verb="apply", summary="", exit_code=1
    )
    text = render.troubles_page(result).plain()
    assert "command: systemctl restart containerd.service" in text
    assert "inspect: journalctl -u containerd.service" in text
    plan = document.plan_document(Policy(), "p", [node], run="r", created="2026-01-01T00:00:00Z")
    assert "journalctl -u containerd.service" in markdown.report(plan)
    assert "<code>systemctl restart containerd.service</code>" in html.report(plan)
