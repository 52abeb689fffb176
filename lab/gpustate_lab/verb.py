"""``gpustate lab``: disposable test nodes with simulated GPUs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from gpustate.cli import common
from gpustate.cli.verbs import Verbs
from gpustate.errors import UsageError
from gpustate_lab.requirements import PROGRAMS
from gpustate_lab.spec import (
    CGROUP_DRIVERS,
    DEFAULT_IMAGE,
    DEFAULT_NAME,
    KUBERNETES_VERSIONS,
    NAME,
    TOOLKITS,
    LabSpec,
)

if TYPE_CHECKING:
    from gpustate_lab.api import Lab

_NAME = click.option("--name", metavar="NAME", help=f"Name of the lab.  [default: {DEFAULT_NAME}]")
#: The name as an argument, or the same with ``--name``.
_NAMED = common.options(click.argument("lab", metavar="[NAME]", required=False), _NAME)


def _given(lab: str | None, name: str | None) -> str | None:
    """Return the name that is given as an argument or with ``--name``; None if there is none."""
    if lab is not None and name is not None and lab != name:
        raise UsageError(
            f"two names of a lab: {lab} and --name {name}", fix="give only one of them"
        )
    return name if lab is None else lab


def _or_default(name: str | None) -> str:
    # An empty name, as of an empty variable in a script, is an error and not the default.
    return DEFAULT_NAME if name is None else name


@click.group(
    cls=Verbs,
    help=f"""Manage disposable test nodes with simulated GPUs.

    Real: systemd, sshd, apt, dpkg, containerd. Simulated: GPUs, kernel modules, NVML, CUDA,
    nvidia-smi and NVIDIA's other packages.

    Requires root, Go (or pip to install it), and these programs: {", ".join(PROGRAMS)}.
    """,
)
def group() -> None:
    """Manage disposable test nodes with simulated GPUs."""


class _Up(click.Command):
    """A verb whose help ends with the values of its options; they are imported for it only."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from gpustate_lab.images import IMAGES
        from gpustate_lab.sim.models import models

        with formatter.section("Images (--image)"):
            formatter.write_dl([(name, recipe.summary) for name, recipe in IMAGES.items()])
        with formatter.section("GPU models (--gpus)"):
            formatter.write_text(", ".join(models()))
        with formatter.section("Programs that DIR may contain (--programs)"):
            formatter.write_dl(_programs())


def _programs() -> list[tuple[str, str]]:
    """Return the programs that labs use, by the option that needs them."""
    from gpustate_lab.images import IMAGES
    from gpustate_lab.kubernetes import cluster
    from gpustate_lab.programs import module
    from gpustate_lab.sim import toolkit_packages

    version = KUBERNETES_VERSIONS[0]
    plain = cluster.modules(LabSpec(kubernetes=version))
    modules = {
        "every lab": [toolkit_packages.module_of(TOOLKITS[0])],
        "--kubernetes": plain,
        "--virtual": set(cluster.modules(LabSpec(kubernetes=version, virtual=1))) - set(plain),
        "--pods": set(cluster.modules(LabSpec(kubernetes=version, pods=True))) - set(plain),
        **{
            f"--image {name}": [recipe.programs]
            for name, recipe in IMAGES.items()
            if recipe.programs is not None
        },
    }
    return [
        (option, ", ".join(sorted(program for name in names for program in module(name).programs)))
        for option, names in modules.items()
    ]


@group.command(cls=_Up)
@_NAMED
@click.option("--nodes", type=int, default=2, show_default=True, help="Number of nodes.")
@click.option(
    "--image",
    "images",
    multiple=True,
    default=(DEFAULT_IMAGE,),
    show_default=True,
    metavar="IMAGE[,...]",
    help="Image of the nodes, from the list below; repeatable. Several are assigned to nodes in turn: with "
    "debian12,debian13, gpu1 and gpu3 get debian12, gpu2 gets debian13.",
)
@click.option(
    "--gpus",
    multiple=True,
    default=("8xH100",),
    show_default=True,
    metavar="GPUS[,...]",
    help="GPUs of each node: COUNTxMODEL, with a model from the list below, or none; repeatable. Several are "
    "assigned to nodes in turn.",
)
@click.option(
    "--cgroups",
    multiple=True,
    default=CGROUP_DRIVERS[:1],
    show_default=True,
    metavar="DRIVER[,...]",
    help=f"Cgroup driver of containerd and kubelet, {' or '.join(CGROUP_DRIVERS)}; repeatable. Several are "
    "assigned to nodes in turn.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME[:ARG]@NODE",
    help="Inject a fault from the first boot on, as nouveau@gpu1; repeatable. List all faults with: "
    "gpustate lab fault --list",
)
@click.option(
    "--kubernetes",
    is_flag=False,
    flag_value=KUBERNETES_VERSIONS[0],
    default="",
    metavar="[VERSION]",
    help=f"Join the nodes to a new Kubernetes cluster. VERSION is one of "
    f"{', '.join(KUBERNETES_VERSIONS)}; if omitted, {KUBERNETES_VERSIONS[0]}.",
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
    help="Do not run NVIDIA's device plugin, GPU feature discovery and node feature discovery as services of "
    "the nodes; nodes only have their images, for pods that you deploy. Requires --kubernetes.",
)
@click.option("--slurm", is_flag=True, help="Join the nodes to a new Slurm cluster.")
@click.option(
    "--toolkit",
    "toolkits",
    multiple=True,
    type=click.Choice(TOOLKITS),
    help=f"Build also this version of NVIDIA's container toolkit for the packages of all labs; repeatable. "
    f"Every lab has {TOOLKITS[0]}.",
)
@click.option(
    "--programs",
    type=click.Path(exists=True, file_okay=False),
    envvar="KUBEBUILDER_ASSETS",
    metavar="DIR",
    help="Use the programs in DIR, from the list below, instead of building them; missing ones are built.  "
    "[env: KUBEBUILDER_ASSETS]",
)
def up(
    lab: str | None,
    nodes: int,
    images: tuple[str, ...],
    gpus: tuple[str, ...],
    cgroups: tuple[str, ...],
    faults: tuple[str, ...],
    kubernetes: str,
    virtual: int,
    pods: bool,
    slurm: bool,
    toolkits: tuple[str, ...],
    programs: str | None,
    name: str | None,
) -> None:
    """Create and start the lab NAME; leave a running one unchanged."""
    from gpustate_lab import api

    if kubernetes not in KUBERNETES_VERSIONS and NAME.fullmatch(kubernetes):
        raise UsageError(
            f"--kubernetes {kubernetes}: not a version",
            fix=f"write a lab's name before the options: gpustate lab up {kubernetes} --kubernetes",
        )
    spec = LabSpec.parse(
        nodes=nodes,
        image=",".join(images),
        gpus=",".join(gpus),
        cgroups=",".join(cgroups),
        faults=faults,
        name=_or_default(_given(lab, name)),
        kubernetes=kubernetes,
        virtual=virtual,
        pods=pods,
        slurm=slurm,
    )
    if programs is not None:
        os.environ["KUBEBUILDER_ASSETS"] = programs
    built = api.up(spec, say=lambda line: click.echo(line, err=True), toolkits=toolkits)
    click.echo(built.inventory)


@group.command(
    help=f"""Remove the lab NAME, without asking for confirmation, and list everything removed.

    Without NAME, the lab called {DEFAULT_NAME} is removed. A lab that does not exist is not an error.
    """
)
@_NAMED
def down(lab: str | None, name: str | None) -> None:
    """Remove a lab and list everything removed."""
    from gpustate_lab import api

    given = _or_default(_given(lab, name))
    if not api.down(given, say=click.echo):
        message, suggestion = api.describe_absent(given)
        click.echo(f"nothing to remove: {message}{f'; {suggestion}' if suggestion else ''}")


@group.command("list")
@click.argument("lab", metavar="[NAME]", required=False)
@click.option("--name", metavar="NAME", help="Show only this lab.")
@click.option(
    "-o", "--output", type=common.FORMATS, default="text", show_default=True, help="Output format."
)
def list_(lab: str | None, name: str | None, output: str) -> None:
    """List labs, or the lab NAME: inventory, and each node's address, image, GPUs, state and faults.

    \b
    Fields of -o json:
      inventory, kubeconfig, programs  of the lab called lab, or of the only one
      labs[]                           name, inventory, running, repository, simulated, nodes
      labs[].nodes[]                   name, address, image, gpus, faults, running

    With Kubernetes, labs[] also has kubernetes, kubeconfig, kubeconfigs, programs, audit_log and virtual; with
    Slurm, it has slurm.
    """
    from gpustate_lab import api

    given = _given(lab, name)
    listed = api.labs() if given is None else [api.find(given)]
    if output == "json":
        click.echo(json.dumps(api.document(listed), indent=2))
        return
    for found in listed:
        _show(found)
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


def _list_faults(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value:
        return
    from gpustate_lab.sim.hardware import FAULTS

    formatter = context.make_formatter()
    formatter.write_dl(list(FAULTS.items()))
    click.echo(formatter.getvalue(), nl=False)
    context.exit()


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
    help="List the names and effects of all faults, and exit.",
)
@_NAME
def fault(node: str, fault: str, switch: str, name: str | None) -> None:
    """Switch a fault of a node on or off.

    FAULT is NAME or NAME:ARG, as xid-79:3; ARG is the index of a GPU, from 0, or a kernel release.
    """
    from gpustate_lab import api

    target = api.find(_or_default(name)).node(node)
    target.fault(fault, switch == "on")
    click.echo(f"{node}: faults {', '.join(target.faults) or 'none'}")
