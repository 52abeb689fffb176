"""Every cause's next step can be pasted: a command of ours that the command line takes, or one of the system."""

from __future__ import annotations

import re
import shlex

import click
from nextsteps import commands, mending, untypeable

from gpustate.cli.main import cli
from gpustate.diagnosis import health, remedies
from gpustate.diagnosis.container_checks import KINDS
from gpustate.explain.walk import CAUSES
from gpustate.formats import nvml_report, xids
from gpustate.probes import shadowing_libraries


def test_a_cause_s_next_step_has_a_command() -> None:
    assert [cause.name for cause in CAUSES if cause.remedy and not commands(cause.remedy)] == []


def static_texts() -> list[str]:
    """Every next step that does not depend on a node."""
    texts = [cause.remedy for cause in CAUSES]
    for module in (remedies, health):
        texts += [text for text in vars(module).values() if isinstance(text, str)]
    texts += [remedies.nvml(code) for code in range(1000)]
    texts += [remedies.cuda(code) for code in (None, *range(1000))]
    texts += [
        kind.fix(way) for kind in KINDS for way in ("docker 26.1", "containerd 2.1", "CRI-O 1")
    ]
    texts += [remedies.runtime_down(unit) for unit in ("docker", "crio", "k3s-agent")]
    texts.append(remedies.ordering_cycle(["a.service", "nvidia-cdi-refresh.service", "x.target"]))
    return texts + [fix for _, fix in xids.ACTIONS.values()]


def test_a_command_of_a_next_step_can_be_typed_as_it_stands() -> None:
    assert [bad for text in static_texts() for bad in untypeable(text)] == []


def test_a_choice_or_prose_in_a_command_is_seen() -> None:
    for text in (
        "start it: systemctl enable --now docker, or crio; or apply",
        "read the journal: journalctl -u containerd -n 50, or -u docker",
        "then: systemctl daemon-reload, and systemctl restart the service",
        "restart both: systemctl restart nvidia-dcgm, then the exporter; list",
    ):
        assert untypeable(text), text
    assert untypeable("remove images: crictl rmi --prune, or docker system prune") == []
    assert untypeable("unmask it (systemctl unmask x), then apply") == []


def test_missing_device_nodes_are_created_and_those_of_nvidia_uvm_keep_their_numbers() -> None:
    """With ``-u`` the numbers of nvidia-modprobe are those of nvidia-uvm, which a GPU's would replace."""
    for missing, step in (
        (["/dev/nvidia1", "/dev/nvidia3"], "nvidia-modprobe -c=1 -c=3"),
        (["/dev/nvidiactl"], "nvidia-modprobe -c=255"),
        (["/dev/nvidia-uvm", "/dev/nvidia0"], "nvidia-modprobe -c=0 && nvidia-modprobe -u -c=0"),
    ):
        assert mending(remedies.device_nodes(missing))[0] == step
    assert commands(remedies.device_nodes([])) == ["gpustate apply POLICY -l NODE"]
    assert [text for text in static_texts() if re.search(r"modprobe .*-c=[^0].* -u", text)] == []


def test_our_own_commands_are_taken_by_the_command_line() -> None:
    ours = {one for text in static_texts() for one in commands(text) if one.startswith("gpustate ")}
    assert len(ours) > 10
    for text in sorted(ours):
        words = shlex.split(text.replace("-l NODE", "-i hosts -l NODE"))[1:]
        context = click.Context(cli)
        name, command, rest = cli.resolve_command(context, words)
        while isinstance(command, click.Group):
            name, command, rest = command.resolve_command(context, rest)
        assert command is not None
        assert name is not None
        command.make_context(name, rest, parent=context)


def test_commands_are_told_apart_from_their_words() -> None:
    text = "create one: nvidia-modprobe -f FILE; replace wrong ones (state driver): gpustate apply p -l n"
    assert commands(text) == ["nvidia-modprobe -f FILE", "gpustate apply p -l n"]
    assert mending(text) == ["gpustate apply p -l n"]
    assert mending(remedies.CONTAINERD_DOWN) == ["systemctl start containerd"]
    assert mending(shadowing_libraries.REMEDY) == ["ldconfig"]


#: What ends the jobs of a node, or replaces what works.
_HARMFUL = re.compile(
    r"gpu-reset|reboot|power-cycle|replace (?:it|the GPU)|kill|stop the workload|unbind|remove that entry"
)
#: Causes by a time limit, by a GPU in use, or by a file or a module that is missing alone.
_WORKING = (
    *("nvml-timeout", "gpu-exclusive-and-taken", "uvm-not-loaded", "uvm-node-not-made", "device-node-missing"),
    *("cdi-missing", "cdi-names-missing-files", "driver-library-missing", "toolkit-missing"),
    *("containerd-handler-missing", "containerd-disabled", "device-plugin-not-running", "labels-stale"),
)  # fmt: skip


def test_no_next_step_harms_a_node_for_slowness_use_or_a_missing_file() -> None:
    texts = {cause.name: cause.remedy for cause in CAUSES if cause.name in _WORKING}
    assert set(texts) == set(_WORKING)
    texts |= {f"NVML {code}": remedies.nvml(code) for code in (nvml_report.TIMEOUT, 12)}
    texts |= {f"CUDA {code}": remedies.cuda(code) for code in (2, 46, 100)}
    texts["no answer"] = remedies.cuda(None, "no answer within 60 s")
    assert {name: text for name, text in texts.items() if _HARMFUL.search(text)} == {}
    assert texts[f"NVML {nvml_report.TIMEOUT}"].startswith("switch persistence mode on")


def test_a_reset_stops_what_keeps_the_gpu_open_and_starts_it_again() -> None:
    """nvidia-persistenced is a client of every GPU, and a reset with a client ends with "In use by another client"."""
    resets = [text for text in static_texts() if "--gpu-reset" in text]
    alone = [text for text in resets if " -i INDEX" in text]
    assert len(alone) > 5
    assert [text for text in alone if xids.RESET_COMMAND not in text] == []
    assert [text for text in resets if "nvidia-persistenced" not in text] == []
    around = commands(health.RESET)
    assert [step for step in around if "persistenced" in step] == [
        "systemctl stop nvidia-persistenced",
        "systemctl start nvidia-persistenced",
    ]
