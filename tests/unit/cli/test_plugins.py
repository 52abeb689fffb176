"""Verbs of installed packages: found by entry point, never in the way of gpustate's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpustate.cli.main import cli
from gpustate.cli.verbs import VERBS
from gpustate.errors import UsageError

MODULE = """
import click

@click.group()
def group():
    '''Run drills on a fleet.'''

@group.command()
@click.argument("name")
def start(name):
    '''Start a drill.'''
    click.echo(f"started {name}")

nothing = 3
"""


def install(folder: Path, package: str, points: str) -> None:
    """What pip leaves of a package with entry points."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpustate.verbs]\n{points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "acme_drills.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_drills", raising=False)
    return tmp_path


def test_a_verb_of_a_package_works_like_one_of_gpustates_own(site: Path) -> None:
    install(site, "acme_drills", "drill = acme_drills:group")
    done = CliRunner().invoke(cli, ["drill", "start", "fire"])
    assert (done.exit_code, done.output) == (0, "started fire\n")
    output = CliRunner().invoke(cli, ["--help"]).output
    section = output.partition("Installed packages:")[2]
    assert "drill" in section
    assert "Run drills on a fleet." in section


def test_a_misspelt_verb_of_a_package_is_suggested(site: Path) -> None:
    install(site, "acme_drills", "drill = acme_drills:group")
    done = CliRunner().invoke(cli, ["dril"])
    assert isinstance(done.exception, UsageError)
    assert done.exception.fix == "did you mean 'drill'; see: cli --help"


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("plan = acme_drills:group", "defined by both gpustate and acme_drills 1.0"),
        ("drill = acme_drills:nothing", "acme_drills:nothing is not a command"),
        ("drill = acme_nowhere:group", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_broken_package_is_named(site: Path, points: str, message: str) -> None:
    install(site, "acme_drills", points)
    done = CliRunner().invoke(cli, ["drill"])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_two_packages_with_one_verb_are_both_named(site: Path) -> None:
    install(site, "acme_drills", "drill = acme_drills:group")
    install(site, "other_drills", "drill = acme_drills:group")
    done = CliRunner().invoke(cli, ["drill"])
    assert "acme_drills 1.0" in str(done.exception)
    assert "other_drills 1.0" in str(done.exception)


def test_a_broken_package_does_not_take_gpustates_own_help_with_it(site: Path) -> None:
    install(site, "acme_drills", "drill = acme_nowhere:group")
    done = CliRunner().invoke(cli, ["--help"])
    assert done.exit_code == 0
    assert "unavailable: verb 'drill' of acme_drills 1.0" in " ".join(done.output.split())


def test_gpustates_own_verbs_read_no_entry_points(site: Path) -> None:
    install(site, "acme_drills", "plan = acme_drills:group")
    assert "plan" in VERBS
    done = CliRunner().invoke(cli, ["plan", "--help"])
    assert done.exit_code == 0
    assert "Run drills" not in done.output
