"""``gpustate node mig``: MIG profiles, layouts, and the smallest change between layouts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.cli.verbs import Verbs
from gpustate.errors import EXIT_PENDING, GpustateError, PolicyError, UsageError

if TYPE_CHECKING:
    from gpustate.mig.config import ConfigFile
    from gpustate.mig.layout import Layout
    from gpustate.mig.tables import Model

BUILTIN = "builtin"

_CURRENT = click.option(
    "--current",
    metavar="FILE",
    help="Layout of a node, saved with `gpustate node mig show -i INVENTORY -l NODE -o json`.",
)
_COUNTED = re.compile(
    r"(?P<before>\d{1,2})\s*[xX]\s*(?P<after>.+)|(?P<name>.+?)\s*[xX]\s*(?P<count>\d{1,2})"
)


@click.group(cls=Verbs)
def group() -> None:
    """MIG: show profiles and layouts, plan layout changes.

    Nothing here changes a node. With -i, nodes are queried for their layout; otherwise plans start from
    saved layouts or from unpartitioned GPUs. The state mig applies a layout.
    """


@group.command()
@click.option(
    "--gpu", "model", metavar="MODEL", help="GPU as nvidia-smi -L prints it, or a PCI id."
)
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
@common.inventory_options
def show(model: str | None, output: str, **options: Any) -> None:
    """Show the layout of nodes (-i), the profiles of a GPU (--gpu), or all known GPUs."""
    from gpustate.mig import show as pages
    from gpustate.mig import tables

    if options["inventory"] is not None:
        if model is not None:
            raise UsageError("--gpu and -i contradict each other", fix="give one of them")
        _show_nodes(output, options)
        return
    if model is None:
        text, data = pages.models_text(), pages.models_data()
    else:
        table = tables.find(model)
        text, data = pages.model_text(table), pages.model_data(table)
    common.write_out(common.as_json(data) if output == "json" else text)


def _show_nodes(output: str, options: dict[str, Any]) -> None:
    from gpustate.mig import layout
    from gpustate.mig.document import layout_text

    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    codes: list[int] = []
    for name, observed in _nodes(options):
        if isinstance(observed, GpustateError):
            codes.append(observed.exit_code)
            rows.append({"name": name, "error": str(observed)})
            texts.append(f"{name}  {observed}\n")
        else:
            rows.append({"name": name, **layout.as_data(observed)})
            texts.append(f"{name}\n{layout_text(observed)}")
    data = {"format": layout.FORMAT_OF_NODES, "nodes": rows}
    common.write_out(common.as_json(data) if output == "json" else "".join(texts))
    common.finish(*codes)


@group.command()
@click.argument("config")
@click.argument("name", required=False)
@click.option("--gpu", "gpus", metavar="[N x]MODEL", help="Unpartitioned GPUs: 8xH200.")
@_CURRENT
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 if there are pending changes.")
@common.inventory_options
def plan(
    config: str,
    name: str | None,
    gpus: str | None,
    current: str | None,
    output: str,
    detailed_exitcode: bool,
    **options: Any,
) -> None:
    """Plan the changes from the current layout to the configuration NAME of the mig-parted file CONFIG.

    NAME may be omitted if CONFIG has one configuration. CONFIG may be a ConfigMap with such a file, as for the GPU Operator, or 'builtin' for mig-parted's
    default configurations: all-balanced, all-1g.10gb and so on.
    """
    from gpustate.mig import document
    from gpustate.mig import plan as planner

    target = _config_file(config).config(name)
    sources = {"-i": options["inventory"], "--gpu": gpus, "--current": current}
    _one_of(sources, "no GPUs: give -i INVENTORY, --gpu 8xH200, or --current with a saved layout")
    if options["inventory"] is None:
        layout = _layout(current) if current is not None else _counted(str(gpus))
        planned = planner.plan(target, layout)
        data = common.as_json(document.as_data(planned))
        common.write_out(data if output == "json" else document.as_text(planned))
        common.finish(EXIT_PENDING if detailed_exitcode and planned else 0)
        return
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    codes: list[int] = []
    for node, current_layout in _nodes(options):
        try:
            if isinstance(current_layout, GpustateError):
                raise current_layout
            planned = planner.plan(target, current_layout)
        except GpustateError as error:
            codes.append(error.exit_code)
            rows.append({"name": node, "error": str(error)})
            texts.append(f"{node}  {error}\n")
            continue
        codes.append(EXIT_PENDING if detailed_exitcode and planned else 0)
        rows.append({"name": node, **document.as_data(planned)})
        texts.append(f"{node}\n{document.as_text(planned)}")
    combined = {"format": "gpustate.mig-node-plans/1", "nodes": rows}
    common.write_out(common.as_json(combined) if output == "json" else "".join(texts))
    common.finish(*codes)


@group.command()
@_CURRENT
@click.option(
    "--name", help="Name of the configuration [default: 'current'; with -i, the node's name]."
)
@click.option("--builtin", is_flag=True, help="The built-in configurations of all known GPUs.")
@common.inventory_options
def export(current: str | None, name: str | None, builtin: bool, **options: Any) -> None:
    """Write a layout as a mig-parted file; several nodes become one configuration each."""
    from gpustate.mig import builtin as files

    sources = {"-i": options["inventory"], "--current": current, "--builtin": builtin or None}
    _one_of(
        sources, "nothing to export: give -i INVENTORY, --current with a saved layout, or --builtin"
    )
    if builtin:
        common.write_out(files.as_yaml(files.config_file().configs.values()))
        return
    if current is not None:
        common.write_out(files.as_yaml([files.export(_layout(current), name or "current")]))
        return
    configs, codes = [], []
    for node, layout in _nodes(options):
        if isinstance(layout, GpustateError):
            codes.append(layout.exit_code)
            click.echo(f"gpustate: {node}: {layout}", err=True)
        else:
            configs.append(files.export(layout, name or node))
    if name and len(configs) > 1:
        raise UsageError("--name with several nodes", fix="omit it, or select one node with -l")
    if configs:
        common.write_out(files.as_yaml(configs))
    common.finish(*codes)


def _one_of(sources: Mapping[str, Any], otherwise: str) -> None:
    """Refuse none, and more than one, of options that exclude each other."""
    names = [name for name, value in sources.items() if value is not None]
    if not names:
        raise UsageError(otherwise)
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} contradict each other", fix="give one of them")


def _nodes(options: dict[str, Any]) -> Iterator[tuple[str, Layout | GpustateError]]:
    """The MIG layout of each node with its clients, or an error."""
    from gpustate.core.node import Node
    from gpustate.engine import fleet
    from gpustate.errors import RefusedError
    from gpustate.mig import live
    from gpustate.mig.live import uses_of
    from gpustate.probes.gpu_clients import GpuClientsQuery
    from gpustate.probes.gpu_facts import GpuFacts

    def question(node: Node) -> Layout:
        pci = node.facts().gpus
        nvml = node.query(GpuFacts())
        uses = [use for holder in node.query(GpuClientsQuery()) for use in uses_of(holder)]
        if nvml.error is not None:
            raise RefusedError(f"NVML does not answer: {nvml.error_text or nvml.error_name}")
        gpus = live.in_order(nvml, pci)
        for number, gpu in enumerate(gpus):
            if gpu.error is not None:
                raise RefusedError(
                    f"GPU {number} ({gpu.pci}) does not respond (NVML error {gpu.error})"
                )
        return live.layout(gpus, pci, uses)

    inventory = common.load_inventory(options)
    for node, layout, error in fleet.question(inventory.nodes, options["forks"], question):
        if layout is not None:
            yield node.name, layout
        else:
            yield node.name, error or GpustateError("no answer")


def _config_file(source: str) -> ConfigFile:
    from gpustate.files import TextFiles
    from gpustate.mig import builtin, config

    if source == BUILTIN:
        return builtin.config_file()
    path = "/dev/stdin" if source == "-" else source
    text = TextFiles("mig-parted file", PolicyError, 4).text(path)
    if "apiVersion" in text:
        from gpustate.gpu_operator.companions import mig_text

        text = mig_text(text, source) or text
    return config.read(text, source)


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
        raise UsageError(f"{text!r}: the number of GPUs is 0", fix="write, for example: 8xH200")
    model: Model = tables.find(name)
    return layout.empty(model, count)


def _is_model(name: str) -> bool:
    from gpustate.mig import tables

    try:
        tables.find(name)
    except UsageError:
        return False
    return True
