"""Options are few, so that a person holds them, and a verb's help is a page."""

from __future__ import annotations

from collections.abc import Iterator

import click
from commandline import Cli

from gpustate.cli.main import cli
from gpustate.cli.verbs import VERBS, load


def options_of(command: click.Command) -> Iterator[str]:
    """Names of the options that the help of a command lists, and of those below it."""
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield next((name for name in param.opts if name.startswith("--")), param.opts[0])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_of(below)


def test_all_verbs_together_have_few_options() -> None:
    names = {name for verb in VERBS for name in options_of(load(verb))}
    assert len(names) <= 70, sorted(names)
    assert {"--set", "--values", "--patch", "--serial"} <= names


def test_the_options_of_apply_are_held_in_the_head() -> None:
    assert len([*options_of(load("apply"))]) <= 24


def test_the_help_of_apply_fits_on_a_screen(gpustate: Cli) -> None:
    lines = gpustate("apply", "--help", COLUMNS="80").out.splitlines()
    assert len(lines) <= 50, "\n".join(lines)
    assert max(map(len, lines)) <= 80


def test_no_option_says_the_opposite_of_another() -> None:
    names = {name for verb in VERBS for name in options_of(load(verb))}
    assert [name for name in names if f"--no-{name.removeprefix('--')}" in names] == []
    assert isinstance(cli, click.Group)
