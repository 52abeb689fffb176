"""Verbs, help and completion: all there, and nothing heavy imported for them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from commandline import Cli

from gpustate.cli.main import cli
from gpustate.cli.show import show
from gpustate.cli.verbs import GROUPS, VERBS
from gpustate.plan.render import Page

HEAVY = ("gevent", "jinja2", "paramiko", "pydantic", "pyinfra", "pynvml", "rich", "tomlkit", "yaml")


def imported(*words: str) -> set[str]:
    """Heavy modules that a run of gpustate imports."""
    code = (
        "import sys; sys.argv = ['gpustate', *sys.argv[1:]]\n"
        "from gpustate.cli.main import run\n"
        "try: run()\n"
        f"finally: print(*({HEAVY!r} & sys.modules.keys()), file=sys.stderr)\n"
    ).replace(repr(HEAVY), f"set({HEAVY!r})")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("plan", "--help"),
        ("apply", "--help"),
        ("lab", "--help"),
        ("help", "completion", "bash"),
        ("nonsense",),
    ],
)
def test_help_and_mistakes_import_nothing_heavy(words: tuple[str, ...]) -> None:
    assert imported(*words) == set()


def cpu_ms(words: list[str]) -> float:
    """CPU time that a program used, its children's included."""
    pid = os.posix_spawn(
        words[0],
        words,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    return 1000 * (used.ru_utime + used.ru_stime)


def test_help_costs_little_more_than_its_command_line_library() -> None:
    """The best of some runs in turns: others on the machine make caches cold, never warm."""
    program = str(Path(sys.executable).with_name("gpustate"))
    runs = [
        (cpu_ms([program, "--help"]), cpu_ms([sys.executable, "-c", "import click"]))
        for _ in range(9)
    ]
    assert min(own for own, _ in runs) < 3 * min(library for _, library in runs)


def test_a_graph_needs_no_way_to_nodes() -> None:
    assert imported("graph", "nouveau") <= {"pydantic", "yaml"}


def test_every_verb_is_there_with_a_line_of_help(gpustate: Cli) -> None:
    done = gpustate("--help", COLUMNS="100")
    assert (done.status, done.err) == (0, "")
    for name, line in VERBS.items():
        assert name in done.out
        assert line.endswith(".")
        assert line.split()[0] in done.out
    assert " help " not in done.out.partition("Topics:")[0]
    assert len(cli.list_commands(click.Context(cli))) <= 20


PATHS = [*VERBS, "help", *(f"{group} {verb}" for group, verbs in GROUPS.items() for verb in verbs)]


@pytest.mark.parametrize("path", PATHS)
def test_a_verb_has_help_of_its_own(path: str, gpustate: Cli) -> None:
    for option in ("--help", "-h"):
        done = gpustate(*path.split(), option)
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(f"Usage: gpustate {path}")


def test_the_lines_of_verbs_in_groups_are_shown_below_their_group(gpustate: Cli) -> None:
    for group, verbs in GROUPS.items():
        text = " ".join(gpustate(group, "--help").out.split())
        for name, line in verbs.items():
            assert f" {name} {line}".replace("dcgm-exporter", "dcgm- exporter") in text.replace(
                "dcgm-exporter", "dcgm- exporter"
            )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("solve",), "gpustate driver solve"),
        (("diagnose",), "gpustate explain"),
        (("driver", "lock"), "gpustate driver solve"),
        (("policy", "validate"), "gpustate policy resolve"),
        (("rollout", "start"), "gpustate apply"),
        (("node", "unquarantine"), "gpustate node quarantine --end"),
    ],
)
def test_a_verb_that_is_elsewhere_is_named(
    words: tuple[str, ...], command: str, gpustate: Cli
) -> None:
    done = gpustate(*words)
    assert (done.status, done.out) == (1, "")
    assert done.err.endswith(f"no verb {words[-1]!r}; it is: {command}\n")


@pytest.mark.parametrize("words", [("node", "apply"), ("rollout", "lock")])
def test_verbs_of_a_group_are_listed_for_a_verb_of_another(
    words: tuple[str, ...], gpustate: Cli
) -> None:
    assert f"no verb {words[1]!r}; verbs: " in gpustate(*words).err


@pytest.mark.parametrize("path", ["plan", "remove", "node lock", "node", "image bundle make"])
def test_help_of_a_verb_is_that_of_its_option(path: str, gpustate: Cli) -> None:
    done = gpustate("help", *path.split())
    assert (done.status, done.err) == (0, "")
    assert done.out == gpustate(*path.split(), "--help").out


def test_every_verb_with_an_inventory_names_the_help_of_connections(gpustate: Cli) -> None:
    for path in ("apply", "facts", "node lock", "image bundle make"):
        assert (
            "How nodes are connected: gpustate help connection."
            in gpustate("help", *path.split()).out
        )


def test_the_table_of_verbs_and_the_commands_agree() -> None:
    context = click.Context(cli)
    group = cli
    assert isinstance(group, click.Group)
    for verb in group.list_commands(context):
        command = group.get_command(context, verb)
        assert command is not None
        assert command.help, f"{verb} has no help"
    assert group.get_command(context, "nonsense") is None


def test_without_a_verb_the_help_is_shown_and_it_is_a_mistake(gpustate: Cli) -> None:
    done = gpustate()
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("Usage: gpustate [OPTIONS] COMMAND")


def test_the_version_is_the_package_s(gpustate: Cli) -> None:
    from gpustate import __version__

    assert gpustate("--version").out == f"gpustate {__version__}\n"


@pytest.mark.parametrize(
    ("shell", "mark"),
    [("bash", "complete -o nosort"), ("zsh", "#compdef gpustate"), ("fish", "complete --no-files")],
)
def test_completion_is_printed_for_a_shell(shell: str, mark: str, gpustate: Cli) -> None:
    done = gpustate("help", "completion", shell)
    assert (done.status, done.err) == (0, "")
    assert mark in done.out
    assert "_GPUSTATE_COMPLETE" in done.out


def test_completion_of_bash_is_bash(gpustate: Cli) -> None:
    script = gpustate("help", "completion", "bash").out
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_verbs_are_completed() -> None:
    program = Path(sys.executable).with_name("gpustate")
    done = subprocess.run(
        [program],
        env={
            "PATH": "/usr/bin:/bin",
            "_GPUSTATE_COMPLETE": "bash_complete",
            "COMP_WORDS": "gpustate node un",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["plain,unlock"]


class Terminal(io.StringIO):
    """Text somebody looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal, {"TERM": "xterm"}, True),
        (Terminal, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {"TERM": "xterm"}, False),
    ],
)
def test_a_terminal_gets_colours_unless_somebody_asked_for_none(
    stream: type[io.StringIO],
    environment: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = Page()
    page.add(("gpu1", "bold"), "  ", ("failed", "red"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    printed = stream()
    monkeypatch.setattr(sys, "stdout", printed)
    show(page)
    told = printed.getvalue()
    assert ("\x1b[31m" in told) is coloured
    assert click.unstyle(told).replace(" \n", "\n") == "gpu1  failed\n"


def test_json_goes_to_standard_output_alone(gpustate: Cli, project: Path) -> None:
    (project / "hosts.ini").write_text(
        f"here ansible_connection=local gpustate_state_folder={project}/state\n"
    )
    done = gpustate("facts", "-i", "hosts.ini", "-o", "json")
    assert done.status == 0
    assert json.loads(done.out)["format"] == "gpustate.facts/1"


def test_what_an_inventory_says_in_vain_is_told_on_standard_error(
    gpustate: Cli, project: Path
) -> None:
    (project / "hosts.ini").write_text(
        "gpu1\ngpu2\n[all:vars]\nansible_connection=local\nansible_become_method=su\n"
        f"gpustate_state_folder={project}/state\n"
    )
    done = gpustate("facts", "-i", "hosts.ini", "-o", "json")
    assert len(json.loads(done.out)["nodes"]) == 2
    assert done.err.splitlines() == [
        "gpustate: note: hosts.ini:5: not used: ansible_become_method is 'su', and only sudo is supported"
    ]


def test_notes_of_the_inventory_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpustate import inventory
    from gpustate.cli import common
    from gpustate.core.inventory import Inventory, InventoryNode

    made = Inventory("hosts.ini", (InventoryNode("gpu1"),), notes=("hosts.ini:3: in vain",))
    monkeypatch.setattr(inventory, "load", lambda source, **_: made)
    common.load_inventory({"inventory": "hosts.ini"})
    captured = capsys.readouterr()
    assert captured.err == "gpustate: note: hosts.ini:3: in vain\n"
    assert captured.out == ""


def test_connection_options_stand_in_where_the_inventory_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gpustate import inventory
    from gpustate.cli import common
    from gpustate.core.inventory import Connection, Inventory, InventoryNode

    own = Connection(user="ops", key_file="/own", strict_host_key="no")
    nodes = (InventoryNode("a"), InventoryNode("b", connection=own))
    monkeypatch.setattr(inventory, "load", lambda source, **_: Inventory("x", nodes))
    key = tmp_path / "key"
    key.write_text("x")
    options = {
        "inventory": "x",
        "user": "me",
        "private_key": str(key),
        "become": True,
        "host_key_checking": "accept-new",
    }
    first, second = common.load_inventory(options).nodes
    assert first.connection == Connection(
        user="me", key_file=str(key), become=True, strict_host_key="accept-new"
    )
    assert second.connection == Connection(
        user="ops", key_file="/own", become=True, strict_host_key="accept-new"
    )
