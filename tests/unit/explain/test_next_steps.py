"""Every cause's next step can be pasted: a command of ours that the command line takes, or one of the system."""

from __future__ import annotations

import shlex

import click
from nextsteps import commands, mending

from gpustate.cli.main import cli
from gpustate.diagnosis import remedies
from gpustate.explain.walk import CAUSES
from gpustate.probes import shadowing_libraries


def test_a_cause_s_next_step_has_a_command() -> None:
    assert [cause.name for cause in CAUSES if not commands(cause.remedy)] == []


def test_our_own_commands_are_taken_by_the_command_line() -> None:
    texts = [cause.remedy for cause in CAUSES]
    texts += [text for text in vars(remedies).values() if isinstance(text, str)]
    texts += [remedies.nvml(code) for code in range(1000)]
    texts += [remedies.cuda(code) for code in (None, *range(1000))]
    ours = {one for text in texts for one in commands(text) if one.startswith("gpustate ")}
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
    text = "create a missing node: nvidia-modprobe -c=MINOR -u; replace wrong ones (state driver): gpustate apply p -l n"
    assert commands(text) == ["nvidia-modprobe -c=MINOR -u", "gpustate apply p -l n"]
    assert mending(text) == ["gpustate apply p -l n"]
    assert mending(remedies.CONTAINERD_DOWN) == ["systemctl start containerd"]
    assert mending(shadowing_libraries.REMEDY) == ["ldconfig"]
