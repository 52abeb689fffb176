"""``gpustate lab``: disposable test nodes with simulated GPUs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpustate_lab.api import Lab

_NAME = click.option("--name", default="lab", show_default=True, help="Name of the lab.")


@click.group()
def group() -> None:
    """Manage disposable test nodes with simulated GPUs.

    Real: systemd, sshd, apt, dpkg, containerd. Simulated: GPUs, kernel modules, NVML, CUDA,
    nvidia-smi and NVIDIA's other packages. Needs root, systemd-nspawn and debootstrap.
    """


@group.command()
@click.option("--nodes", type=int, default=2, show_default=True, help="Number of nodes.")
@click.option(
    "--image",
    "images",
    multiple=True,
    default=("debian12",),
    show_default=True,
    metavar="IMAGE[,...]",
    help="Images, assigned in turn; repeatable: debian12, debian13; debian13-containerd2, -containerd22, -containerd23, -containerd24, "
    "-slurm26; debian12-runtimes, debian13-runtimes; debian12-rpm; ubuntu2204, ubuntu2404, ubuntu2604, each with -runtimes.",
)
@click.option(
    "--gpus",
    multiple=True,
    default=("8xH100",),
    show_default=True,
    metavar="GPUS[,...]",
    help="GPUs of the nodes, assigned in turn; repeatable: COUNTxMODEL or none.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME[:ARG]@NODE",
    help="Inject a fault from the first boot on; repeatable.",
)
@click.option(
    "--kubernetes",
    is_flag=False,
    flag_value="1.36",
    default="",
    metavar="[VERSION]",
    help="Join the nodes to a cluster: 1.36 (default), 1.35 or 1.34.",
)
@click.option(
    "--virtual",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Add N kwok nodes with GPUs to the cluster.",
)
@click.option(
    "--pods",
    is_flag=True,
    help="Leave NVIDIA's programs and node feature discovery to pods; nodes have the images.",
)
@click.option("--slurm", is_flag=True, help="Join the nodes to a Slurm cluster.")
@click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False),
    envvar="KUBEBUILDER_ASSETS",
    metavar="DIR",
    help="Use ready binaries from DIR (also KUBEBUILDER_ASSETS); build the rest.",
)
@_NAME
def up(
    nodes: int,
    images: tuple[str, ...],
    gpus: tuple[str, ...],
    faults: tuple[str, ...],
    kubernetes: str,
    virtual: int,
    pods: bool,
    slurm: bool,
    programs: str | None,
    name: str,
) -> None:
    """Create and start a lab; leave a running one unchanged."""
    from gpustate_lab import api
    from gpustate_lab.spec import LabSpec

    spec = LabSpec.parse(
        nodes=nodes,
        image=",".join(images),
        gpus=",".join(gpus),
        faults=faults,
        name=name,
        kubernetes=kubernetes,
        virtual=virtual,
        pods=pods,
        slurm=slurm,
    )
    if programs is not None:
        os.environ["KUBEBUILDER_ASSETS"] = programs
    lab = api.up(spec, say=lambda line: click.echo(line, err=True))
    click.echo(lab.inventory)


@group.command()
@click.argument("lab", required=False)
@_NAME
def down(lab: str | None, name: str) -> None:
    """Remove a lab, by LAB or --name, and list everything removed."""
    from gpustate_lab import api

    name = lab or name
    if not api.down(name, say=click.echo):
        click.echo(f"nothing to remove: lab {name} does not exist")


@group.command("list")
@click.option("--name", help="Show only this lab.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def list_(name: str | None, output: str) -> None:
    """List labs and their nodes; -o json includes the path of the inventory."""
    from gpustate_lab import api

    listed = api.labs() if name is None else [api.find(name)]
    if output == "json":
        click.echo(json.dumps(api.document(listed), indent=2))
        return
    for lab in listed:
        _show(lab)
    if not listed:
        click.echo("no labs; create one: gpustate lab up")


def _show(lab: Lab) -> None:
    click.echo(f"{lab.name}: inventory {lab.inventory}, GPUs simulated")
    for node in lab.nodes:
        faults = f"  faults: {', '.join(node.faults)}" if node.faults else ""
        state = "up" if node.running else "off"
        click.echo(f"  {node.name}  {node.address}  {node.image}  {node.gpus}  {state}{faults}")
    if lab.head is not None:
        state = "up" if lab.head.running else "off"
        click.echo(f"  {lab.head.name}  {lab.head.address}  slurmctld  {state}")


@group.command()
@click.argument("node")
@click.argument("fault")
@click.argument("switch", type=click.Choice(["on", "off"]))
@_NAME
def fault(node: str, fault: str, switch: str, name: str) -> None:
    """Switch a fault (NAME or NAME:ARG) of a node on or off; docs/lab.md lists all faults."""
    from gpustate_lab import api

    target = api.find(name).node(node)
    target.fault(fault, switch == "on")
    click.echo(f"{node}: faults {', '.join(target.faults) or 'none'}")
