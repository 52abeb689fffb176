"""``gpustate mig``: what a GPU can be divided into, and the smallest way there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from gpustate.cli import common
from gpustate.errors import EXIT_PENDING, PolicyError, UsageError

if TYPE_CHECKING:
    from gpustate.mig.config import ConfigFile
    from gpustate.mig.layout import Layout
    from gpustate.mig.tables import Model

BUILTIN = "builtin"

_CURRENT = click.option(
    "--current", metavar="FILE", help="A saved layout: instances, and profiles where it has them."
)
_COUNTED = re.compile(
    r"(?P<before>\d{1,2})\s*[xX]\s*(?P<after>.+)|(?P<name>.+?)\s*[xX]\s*(?P<count>\d{1,2})"
)


@click.group()
def group() -> None:
    """Divide GPUs into MIG devices.

    Nothing here reaches a node: plans are made from saved layouts, or for GPUs as they come.
    """


@group.command()
@click.option("--gpu", "model", metavar="MODEL", help="As nvidia-smi -L has it, or a PCI id.")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def show(model: str | None, output: str) -> None:
    """Show the profiles of a GPU and their places; without --gpu, the GPUs that are known."""
    from gpustate.mig import show as pages
    from gpustate.mig import tables

    if model is None:
        text, data = pages.models_text(), pages.models_data()
    else:
        found = tables.find(model)
        text, data = pages.model_text(found), pages.model_data(found)
    common.write_out(common.as_json(data) if output == "json" else text)


@group.command()
@click.argument("config")
@click.argument("name", required=False)
@click.option("--gpu", "gpus", metavar="[N x]MODEL", help="GPUs without any instance: 8xH200.")
@_CURRENT
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 when something would change.")
def plan(
    config: str,
    name: str | None,
    gpus: str | None,
    current: str | None,
    output: str,
    detailed_exitcode: bool,
) -> None:
    """Say how GPUs get to the configuration NAME of the mig-parted file CONFIG.

    CONFIG may be 'builtin' for the configurations that every mig-parted has: all-balanced,
    all-1g.10gb and so on.
    """
    from gpustate.mig import document
    from gpustate.mig import plan as planner

    wanted = _config_file(config).config(name)
    if (gpus is None) == (current is None):
        raise UsageError("say of which GPUs: --gpu 8xH200, or --current with a saved layout")
    layout = _layout(current) if current is not None else _counted(str(gpus))
    made = planner.plan(wanted, layout)
    data = common.as_json(document.as_data(made))
    common.write_out(data if output == "json" else document.as_text(made))
    if detailed_exitcode and made:
        common.finish(EXIT_PENDING)


@group.command()
@_CURRENT
@click.option("--name", default="current", show_default=True, help="Name of the configuration.")
@click.option("--builtin", is_flag=True, help="The built-in configurations of all known GPUs.")
def export(current: str | None, name: str, builtin: bool) -> None:
    """Write a layout as a mig-parted file."""
    from gpustate.mig import builtin as files

    if (current is None) == (not builtin):
        raise UsageError("say what: --current with a saved layout, or --builtin")
    if current is None:
        common.write_out(files.as_yaml(files.config_file().configs.values()))
    else:
        common.write_out(files.as_yaml([files.export(_layout(current), name)]))


def _config_file(source: str) -> ConfigFile:
    from gpustate.files import TextFiles
    from gpustate.mig import builtin, config

    if source == BUILTIN:
        return builtin.config_file()
    return config.read(TextFiles("mig-parted file", PolicyError, 4).text(source), source)


def _layout(path: str) -> Layout:
    from gpustate.files import TextFiles
    from gpustate.mig import layout

    return layout.read(TextFiles("layout", UsageError, 16).text(path), path)


def _counted(text: str) -> Layout:
    """Read ``H200``, ``8xH200`` or ``H200x8``."""
    from gpustate.mig import layout, tables

    match = _COUNTED.fullmatch(text.strip())
    count, name = 1, text.strip()
    if match is not None and (match["before"] or not _is_model(name)):
        count = int(match["before"] or match["count"])
        name = (match["after"] or match["name"]).strip()
    if count < 1:
        raise UsageError(f"{text!r}: no GPUs")
    model: Model = tables.find(name)
    return layout.empty(model, count)


def _is_model(name: str) -> bool:
    from gpustate.mig import tables

    try:
        tables.find(name)
    except UsageError:
        return False
    return True
