"""``gpustate node labels``: show the labels of GPU feature discovery, or Slurm's lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import PolicyError

if TYPE_CHECKING:
    from gpustate.core.node import Node
    from gpustate.formats.deviceplugin import PluginConfig

_ON_NODE = "/etc/nvidia-device-plugin/config.yaml"


@click.command()
@common.inventory_options
@click.option("--config", metavar="FILE", help="The device plugin's configuration, or a ConfigMap.")
@click.option(
    "--config-name", metavar="NAME", default="", help="Key of the ConfigMap's data to use."
)
@click.option(
    "--mig-strategy",
    type=click.Choice(["none", "single", "mixed"]),
    help="MIG strategy, as for GPU feature discovery.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "slurm"]),
    default="text",
    show_default=True,
)
def labels(
    output: str, config: str | None, config_name: str, mig_strategy: str | None, **options: Any
) -> None:
    """Compute the labels of GPU feature discovery from NVML; nothing is written.

    Without --config, a node's own /etc/nvidia-device-plugin/config.yaml applies. -o slurm prints
    gres.conf and slurm.conf lines for the whole cluster.
    """
    plugin = _plugin_config(config, config_name)
    inventory = common.load_inventory(options)
    query = _slurm if output == "slurm" else lambda node: _labels(node, plugin, mig_strategy)
    rows, codes = common.query_nodes(inventory, options["forks"], query)
    if output == "json":
        common.write_out(common.as_json({"format": "gpustate.labels/1", "nodes": rows}))
    else:
        (_slurm_page if output == "slurm" else _page)(rows)
    common.finish(*codes)


def _plugin_config(config: str | None, name: str) -> PluginConfig | None:
    from gpustate.errors import UsageError
    from gpustate.files import TextFiles
    from gpustate.formats import deviceplugin

    if config is None:
        if name:
            raise UsageError("--config-name needs --config", fix="name the ConfigMap with --config")
        return None
    text = TextFiles("device plugin configuration", PolicyError, 4).text(config)
    return deviceplugin.choose(deviceplugin.read_all(text, config), name, place=config)


def _labels(node: Node, plugin: PluginConfig | None, mig_strategy: str | None) -> dict[str, Any]:
    from gpustate.formats import deviceplugin
    from gpustate.formats import labels as gfd
    from gpustate.probes.gpu_labels import observe

    observed = observe(node)
    text = node.read_text(_ON_NODE)
    try:
        config = plugin or deviceplugin.read(text or "", _ON_NODE)
    except PolicyError as error:
        return {"error": str(error)}
    strategy = mig_strategy or config.mig_strategy or "none"
    result = gfd.compute(observed, gfd.Options(strategy, config.sharing))
    if result.problem is not None:
        return {"error": result.problem}
    notes = [*config.warnings, *result.notes]
    return {"labels": dict(result.values), "unfit": gfd.unfit(result.values), "notes": notes}


def _slurm(node: Node) -> dict[str, Any]:
    from gpustate.probes.slurm_gpus import desired_gres

    result = desired_gres(node, for_slurmd=False)
    if result.problem is not None:
        return {"error": result.problem}
    lines = [f"NodeName={result.host} {line}" for line in result.lines]
    return {"gres": lines, "node": result.node_line}


def _page(rows: list[dict[str, Any]]) -> None:
    from gpustate.cli.show import show
    from gpustate.plan.render import Page

    page = Page()
    for row in rows:
        if "error" in row:
            page.add((row["name"], "bold"), "  ", (row["error"], "red"))
            continue
        page.add((row["name"], "bold"))
        for label, value in row["labels"].items():
            why = row["unfit"].get(label)
            refused = f"  Kubernetes would reject it: {why}" if why else ""
            page.add(f"  {label}={value}", (refused, "yellow"))
        for note in row["notes"]:
            page.add("  ", (f"note: {note}", "yellow"))
    show(page)


def _slurm_page(rows: list[dict[str, Any]]) -> None:
    from gpustate.formats.words import printable

    lines = ["# gres.conf"]
    lines += [line for row in rows for line in row.get("gres", [])]
    lines += ["", "# slurm.conf: GresTypes=gpu, and add to the lines of these nodes"]
    lines += [row["node"] for row in rows if row.get("node")]
    lines += [f"# {row['name']}: {row['error']}" for row in rows if "error" in row]
    common.write_out("".join(f"{printable(line)}\n" for line in lines))
