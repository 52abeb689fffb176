"""``gpustate facts``: show node facts."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common
from gpustate.plan.render import Page


@click.command()
@common.inventory_options
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def facts(output: str, **options: Any) -> None:
    """Show node facts: distribution, kernel, container runtimes, GPUs on PCI and in NVML."""
    from gpustate.cli.show import show
    from gpustate.core.encode import plain
    from gpustate.core.node import Node
    from gpustate.probes.excluded_gpus import ExcludedGpusQuery
    from gpustate.probes.gpu_facts import GpuFacts

    inventory = common.load_inventory(options)

    def question(node: Node) -> dict[str, Any]:
        observed = node.facts()
        held = node.query(ExcludedGpusQuery())
        return {
            **plain(observed),
            "distribution": observed.distribution,
            "nvml": plain(node.query(GpuFacts())),
            "quarantine": [entry.text for entry in held.active],
        }

    rows, codes = common.query_nodes(inventory, options["forks"], question)
    page = Page()
    for row in rows:
        if "error" in row:
            page.add((row["name"], "bold"), "  ", (row["error"], "red"))
        else:
            _node(page, row["name"], row)
    if output == "json":
        common.write_out(common.as_json({"format": "gpustate.facts/1", "nodes": rows}))
    else:
        show(page)
    common.finish(*codes)


def _node(page: Page, name: str, data: dict[str, Any]) -> None:
    nvml = data["nvml"]
    page.add((name, "bold"), f"  {data['distribution']} {data['machine']}, kernel {data['kernel']}")
    page.add(f"  runtimes: {', '.join(data['runtimes']) or 'none'}")
    if data["first_boot"]:
        style = "green" if data["first_boot"] == "done" else "yellow"
        page.add("  first boot of its image: ", (data["first_boot"], style))
    for line in data["quarantine"]:
        page.add("  GPU in quarantine: ", (line, "cyan"))
    gpus = [device for device in data["pci"] if device["class_id"].startswith(("0300", "0302"))]
    page.add(f"  on PCI: {len(gpus)} GPUs, {len(data['pci']) - len(gpus)} other NVIDIA devices")
    if nvml.get("error"):
        page.add("  NVML: ", (f"{nvml['error_text'] or nvml['error']} ({nvml['error']})", "yellow"))
        return
    mode = nvml["confidential"].replace("off", "")
    confidential = f", confidential computing: {mode}" if mode else ""
    page.add(f"  driver {nvml['driver_version']}{confidential}")
    for gpu in nvml["gpus"]:
        if gpu.get("error"):
            page.add(f"    {gpu['index']}  {gpu['pci']}  ", (f"NVML error {gpu['error']}", "red"))
        else:
            page.add(f"    {gpu['index']}  {gpu['pci']}  {gpu['name']}  {gpu['uuid']}")
