"""``gpustate lab``: disposable test nodes with simulated GPUs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate_lab.api import Lab

DEFAULT = "lab"
_NAME = click.option("--name", help=f"Name of the lab [default: {DEFAULT}].")
_LAB = click.argument("lab", required=False)


def _named(lab: str | None, name: str | None) -> str:
    """The name given as an argument or as ``--name``.

    Raises:
        UsageError: they differ.
    """
    if lab is not None and name is not None and lab != name:
        raise UsageError(f"two labs are named: {lab} and --name {name}", fix="name one")
    return lab or name or DEFAULT


def _list_faults(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from gpustate_lab.sim.hardware import FAULTS

    width = max(map(len, FAULTS))
    for fault, meaning in FAULTS.items():
        click.echo(f"{fault:{width}}  {meaning}")
    ctx.exit()


@click.group()
def group() -> None:
    """Manage disposable test nodes with simulated GPUs.

    Real: systemd, sshd, apt, dpkg, containerd. Simulated: GPUs, kernel modules, NVML, CUDA,
    nvidia-smi and NVIDIA's other packages. Needs root and some Debian packages; up names those that are missing.
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
    help="Images; the nodes take them in turn; repeatable: debian12, debian13; debian13-containerd2, -containerd22, -containerd23, -containerd24, "
    "-slurm26; debian12-runtimes, debian13-runtimes; debian12-rpm; ubuntu2204, ubuntu2404, ubuntu2604, each with -runtimes.",
)
@click.option(
    "--gpus",
    multiple=True,
    default=("8xH100",),
    show_default=True,
    metavar="GPUS[,...]",
    help="GPUs; the nodes take them in turn; repeatable: COUNTxMODEL or none, MODEL one of A100, H100, H100PCIE, H100NVL, H200, B200, GB200, L40S, T4.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME[:ARG]@NODE",
    help="Inject a fault from the first boot on; repeatable; names: gpustate lab fault --list.",
)
@click.option(
    "--kubernetes",
    is_flag=False,
    flag_value="1.36",
    default="",
    metavar="[VERSION]",
    help="Join the nodes to a Kubernetes cluster of this version: 1.36, 1.35 or 1.34 [default without VERSION: 1.36].",
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
    help="Start NVIDIA's device plugin, GPU feature discovery and node feature discovery not as units of the nodes: pods that you apply run them, from images that the nodes have.",
)
@click.option("--slurm", is_flag=True, help="Join the nodes to a Slurm cluster.")
@click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False),
    envvar="KUBEBUILDER_ASSETS",
    metavar="DIR",
    help="Use kube-apiserver, kubectl, etcd and others from DIR instead of building them; what DIR lacks is built [env: KUBEBUILDER_ASSETS].",
)
@_NAME
@_LAB
def up(
    lab: str | None,
    nodes: int,
    images: tuple[str, ...],
    gpus: tuple[str, ...],
    faults: tuple[str, ...],
    kubernetes: str,
    virtual: int,
    pods: bool,
    slurm: bool,
    programs: str | None,
    name: str | None,
) -> None:
    """Create and start LAB; leave a running one unchanged. Prints the path of its inventory, for -i."""
    from gpustate_lab import api
    from gpustate_lab.spec import LabSpec

    spec = LabSpec.parse(
        nodes=nodes,
        image=",".join(images),
        gpus=",".join(gpus),
        faults=faults,
        name=_named(lab, name),
        kubernetes=kubernetes,
        virtual=virtual,
        pods=pods,
        slurm=slurm,
    )
    if programs is not None:
        os.environ["KUBEBUILDER_ASSETS"] = programs
    made = api.up(spec, say=lambda line: click.echo(line, err=True))
    click.echo(made.inventory)


@group.command()
@_LAB
@_NAME
def down(lab: str | None, name: str | None) -> None:
    """Remove LAB without asking, and list everything removed."""
    from gpustate_lab import api

    name = _named(lab, name)
    if not api.down(name, say=click.echo):
        others = ", ".join(one.name for one in api.labs()) or "none"
        click.echo(f"nothing to remove: lab {name} does not exist (labs: {others})")


@group.command("list")
@click.option("--name", help="Show only this lab.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def list_(name: str | None, output: str) -> None:
    """List labs with their nodes, addresses, images, GPUs and faults.

    -o json has inventory, kubeconfig and programs (the folder with kubectl) too.
    """
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
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_faults,
    help="List all faults and exit.",
)
@_NAME
def fault(node: str, fault: str, switch: str, name: str | None) -> None:
    """Switch a fault (NAME or NAME:ARG) of a node on or off."""
    from gpustate_lab import api

    target = api.find(name or DEFAULT).node(node)
    target.fault(fault, switch == "on")
    click.echo(f"{node}: faults {', '.join(target.faults) or 'none'}")
