"""``gpustate image bake``: apply a policy to the mounted root of an image."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from gpustate import clock
from gpustate.cli import common, rules
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate.bake.image import Image
    from gpustate.core.inventory import InventoryNode
    from gpustate.core.policy import Policy
    from gpustate.engine.fleet import FleetResult

#: Conditions that depend on GPUs or on NVSwitches.
_NEEDS_GPUS = re.compile(r"\b(gpu|mig_capable|architecture)\b(?!')")
_NEEDS_NVSWITCH = re.compile(r"\bnvswitch\b(?!')")


@click.command()
@common.policy_argument
@common.policy_options
@click.option(
    "--root", required=True, metavar="DIR", help="Root of the image: a directory or a mounted disk."
)
@click.option("--gpu", "gpus", metavar="8xH100", help="GPUs of the machines that will boot it.")
@click.option(
    "-i",
    "--inventory",
    metavar="SOURCE",
    envvar="GPUSTATE_INVENTORY",
    help="Inventory of the machines that will boot it.",
)
@click.option("--node", "name", metavar="NODE", help="Node of the inventory whose variables apply.")
@common.lock_options
@click.option("--dry-run", is_flag=True, help="Only show pending changes.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
@click.option(
    "--diff", is_flag=True, help="Show file contents and long lists in full; secrets stay masked."
)
def bake(policy: str, root: str, name: str | None, gpus: str | None, **options: Any) -> None:
    """Apply POLICY to the image in DIR; steps that need a running system are left to its first boot.

    Commands run inside DIR in their own namespaces: nothing on this machine is written or stays
    mounted. Steps that need a kernel, systemd or a GPU are listed, and run by the unit
    gpustate-firstboot.service when a machine boots the image for the first time.
    """
    from gpustate.bake.image import Image
    from gpustate.remote import chroot

    rules.read()
    loaded = common.load_policy(policy, options)
    if not root:
        raise UsageError("--root is empty", fix="name the directory of the image's root")
    root = os.path.abspath(root)
    node = _node(root, name, options)
    loaded = _locked(loaded, node, policy, options, named=bool(name))
    _check_conditions(loaded, _checked_gpus(gpus))
    image = Image(root, node, gpus or "")
    if not (options["dry_run"] or options["yes"] or sys.stdin.isatty()):
        raise UsageError("stdin is not a terminal", fix="review with --dry-run, then pass --yes")
    with chroot.lock_root(root):
        if options["dry_run"] or not options["yes"]:
            planned = _run(image, loaded, apply=False, quiet=options["output"] == "json")
            _print_result(
                image,
                loaded,
                planned,
                options if options["dry_run"] else {**options, "output": "text"},
            )
            if options["dry_run"] or planned.exit_code or not planned.pending:
                common.finish(planned.exit_code)
                return
            common.confirm("Bake this?", "nothing was baked")
        baked = _run(image, loaded, apply=True, quiet=options["output"] == "json")
    _print_result(image, loaded, baked, options)
    common.finish(baked.exit_code)


def _node(root: str, name: str | None, options: dict[str, Any]) -> InventoryNode:
    """The node of the inventory that the image is for, or an anonymous one."""
    from dataclasses import replace

    from gpustate.core.inventory import Connection, InventoryNode

    if not name:
        if options["inventory"] and "-i" in sys.argv:
            raise UsageError(
                "-i is given without a node of the inventory",
                fix="name the node whose variables apply: --node NODE",
            )
        return InventoryNode(root, connection=Connection(kind="local"))
    nodes = [
        node for node in common.load_inventory(options, reach=False).nodes if node.name == name
    ]
    if not nodes:
        raise UsageError(f"no node {name!r} in the inventory", place=str(options["inventory"]))
    return replace(nodes[0], connection=Connection(kind="local"))


def _locked(
    policy: Policy, node: InventoryNode, source: str, options: dict[str, Any], *, named: bool
) -> Policy:
    """With the driver set of the lock file: its own, or the only one in it."""
    file = common.lock_file(source, options)
    if file is None:
        return policy
    from gpustate.package_sets import lock_layers

    lock, states = lock_layers.load(file), common.known_states()
    if named:
        return lock_layers.onto(policy, (node,), lock, file, states)
    return lock_layers.onto_image(policy, node, lock, file, states)


def _checked_gpus(gpus: str | None) -> bool:
    from gpustate.formats.pci_gpus import meant_for

    try:
        return bool(meant_for(gpus or ""))
    except ValueError as error:
        raise UsageError(f"--gpu: {error}") from None


def _check_conditions(policy: Policy, facts_known: bool) -> None:
    """Refuse conditions that cannot be evaluated for an image."""
    for state in policy.states:
        text = state.only.text if state.only is not None else ""
        if _NEEDS_NVSWITCH.search(text):
            raise UsageError(
                f"{state.name}: the condition {text} cannot be evaluated for an image",
                fix="remove the condition from the policy for images",
            )
        if _NEEDS_GPUS.search(text) and not facts_known:
            raise UsageError(
                f"{state.name}: the condition {text} depends on GPUs, which an image does not have",
                fix="name the GPUs of the machines: --gpu 8xH100",
            )


def _run(image: Image, policy: Policy, *, apply: bool, quiet: bool) -> FleetResult:
    from gpustate.bake import image as engine
    from gpustate.cli.progress import Progress

    progress = Progress([image.node.name], quiet=quiet)
    stop = common.Interrupt(
        lambda: progress.say(
            "interrupted: the running step is finished, no new ones are started; bake again"
        ),
        "processes in the image are killed; bake again",
    )
    stop.arm()
    with progress:
        return engine.bake(
            image, policy, common.known_states(), apply=apply, listen=progress.event, stop=stop
        )


def _print_result(
    image: Image, policy: Policy, result: FleetResult, options: dict[str, Any]
) -> None:
    from gpustate.bake.image import first_boot_work, left_to_apply
    from gpustate.cli.show import show
    from gpustate.plan import document, render

    work = first_boot_work(result.nodes[0])
    later = left_to_apply(policy, result.nodes[0])
    report = document.bake_document(
        result.nodes[0],
        root=image.root,
        gpus=image.gpus,
        run=result.run,
        created=clock.now(),
        applied=result.applied,
        first_boot=work,
        left_to_apply=later,
        notes=policy.notes,
        summary=result.summary(),
        exit_code=result.exit_code,
    )
    if options["output"] == "json":
        common.write_out(common.as_json(report))
        return
    show(render.nodes_page(report, diff=options["diff"]))
    show(render.troubles_page(report, diff=options["diff"]))
    if work and result.exit_code == 0:
        click.echo("Left to the first boot:")
        for line in work:
            click.echo(f"  - {line}")
    if later and result.exit_code == 0:
        click.echo(f"Left to an apply after the first boot (drift until then): {', '.join(later)}")
    click.echo(result.summary())
