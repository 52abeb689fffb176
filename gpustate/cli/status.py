"""``gpustate status``: rollouts in progress, and which nodes are out of service, since when, why, and what is next."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.cli.next_steps import command_of
from gpustate.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpustate.core.node import Node
    from gpustate.rollout.access import Accesses
    from gpustate.rollout.running import Running
    from gpustate.rollout.status import Status
    from gpustate.schedulers.base import Hold


#: Phases of a node that go on.
_OBJECTS_AGAIN = "gpustate apply POLICY -i INVENTORY --cluster-objects"
_AT_WORK = ("queued", "held", "drained", "changing", "validating")


@click.command()
@common.inventory_options
@common.kubeconfig_option("Cluster of the nodes")
@click.option(
    "--all", "whole", is_flag=True, help="Include nodes in service, and nodes without a lock."
)
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def status(kubeconfig: str | None, whole: bool, output: str, **options: Any) -> None:
    """Show running rollouts, nodes out of service in Kubernetes and Slurm, and locks: run, since when, and why.

    Reads the schedulers that the inventory names, from any machine, and its rollouts on this machine; nodes are not
    contacted. If the inventory names no scheduler, the locks of its nodes are read.
    """
    from gpustate.cli.notes import print_notes
    from gpustate.cli.pause import clusters_of
    from gpustate.rollout.access import Accesses
    from gpustate.rollout.running import each_once, running_here, running_in
    from gpustate.rollout.status import statuses

    listed = options["inventory"] or options["limit"]
    if listed:
        inventory = common.load_inventory(options)
    elif kubeconfig:
        inventory = clusters_of(None, kubeconfig)
    else:
        raise UsageError(
            "neither an inventory nor a cluster is named",
            fix="give an inventory with -i, or a cluster alone with --kubeconfig FILE",
        )
    access = Accesses(inventory, kubeconfig or "", read=True, read_only=True)
    try:
        members = statuses(inventory.nodes, access)
        local_runs = running_here(str(options["inventory"] or ""))
        rollouts = each_once([*running_in(access), *local_runs])
        foreign = access.foreign_clusters() if listed else ()
        live = {item.run for item in rollouts if not item.silent}
        outdated = [] if live else _outdated(access)
    finally:
        access.close()
    print_notes(
        f"none of the selected nodes is in {cluster.title}, by name or address; check --kubeconfig, or the "
        "variables gpustate_kubeconfig and gpustate_kube_context"
        for cluster in foreign
    )
    members = [
        replace(
            item, running=item.member.hold.run in live, command=command_of(item.member.hold.run)
        )
        if item.member.hold
        else item
        for item in members
    ]
    visible = [item for item in members if whole or not item.in_service]
    names = {node.connection.host: node.name for node in inventory.nodes}
    holds = {
        (item.member.hold.run, names.get(item.member.name, item.member.name)): item.member.hold
        for item in members
        if item.member.hold
    }
    rows = [_rollout(item, holds) for item in rollouts]
    phases = {(row["run"], node["name"]): node["phase"] for row in rows for node in row["nodes"]}
    visible = [
        _in_phase(item, phases, names.get(item.member.name, item.member.name)) for item in visible
    ]
    locks: list[dict[str, Any]] = []
    codes: list[int] = []
    if not access.named:
        locks, codes = common.query_nodes(inventory, options["forks"], _lock)
    if output == "json":
        document = {
            "format": "gpustate.status/1",
            "members": [_row(item) for item in visible],
            "rollouts": rows,
            "daemon_sets": outdated,
        }
        common.write_out(common.as_json(document | ({} if access.named else {"locks": locks})))
        common.finish(*codes)
        return
    _rollouts_page(rows, whole=whole)
    if not rows and not access.named:
        click.echo("no run of this inventory is in progress on this machine")
    _page(visible)
    for row in outdated:
        click.echo(f"{row['name']}  {row['scheduler']}\n    {row['why']}\n    next: {row['next']}")
    if access.named:
        out = sum(not item.in_service for item in members)
        if members and not visible:
            click.echo("every node is in service; --all names them")
        click.echo(f"nodes={len(members)} in_service={len(members) - out} out_of_service={out}")
    else:
        locked = [row for row in locks if "lock" in row]
        for row in locks if whole else [row for row in locks if {"lock", "error"} & row.keys()]:
            click.echo(f"{row['name']}  {row.get('lock') or row.get('error') or 'not locked'}")
        click.echo(f"nodes={len(locks)} locked={len(locked)} unreachable={len(codes)}")
    common.finish(*codes)


def _lock(node: Node) -> dict[str, Any]:
    """The lock of a node, in words; nothing where it has none."""
    from gpustate.engine.ledger import LedgerQuery

    ledger = node.query(LedgerQuery())
    return {"lock": ledger.lock.describe()} if ledger.lock is not None and ledger.locked else {}


def _outdated(access: Accesses) -> list[dict[str, str]]:
    """DaemonSets that a run has left with pods of an older template, as far as they may be listed."""
    from gpustate.rollout.staying import outdated

    rows: list[dict[str, str]] = []
    for cluster in access.clusters():
        with suppress(ClusterError):
            rows += [
                {"name": name, "scheduler": cluster.title, "why": why, "next": _OBJECTS_AGAIN}
                for name, why in outdated(cluster).items()
            ]
    return rows


def _in_phase(row: Status, phases: Mapping[tuple[str, str], str], name: str) -> Status:
    """A member in the phase that its run has published, which may be further than that of its hold."""
    hold = row.member.hold
    phase = phases.get((hold.run, name), "") if hold else ""
    if hold is None or phase not in _AT_WORK:
        return row
    return replace(row, member=replace(row.member, hold=replace(hold, phase=phase)))


def _row(status: Status) -> dict[str, Any]:
    member, hold = status.member, status.member.hold
    row: dict[str, Any] = {
        "name": member.name,
        "scheduler": status.scheduler,
        "in_service": status.in_service,
        "ready": member.ready,
        "schedulable": member.schedulable,
        "foreign": list(member.foreign),
    }
    keys = ("foreign_since", "not_ready_since", "why")
    row |= {name: getattr(member, name) for name in keys if getattr(member, name)}
    if hold is not None:
        row["hold"] = {
            "run": hold.run,
            "person": hold.person,
            "phase": hold.phase,
            "since": hold.since,
            "reason": hold.text,
        }
    if status.next:
        row["next"] = status.next
    return row


def _page(rows: Sequence[Status]) -> None:
    from gpustate.cli.show import show
    from gpustate.plan.render import Page

    page = Page()
    for row in rows:
        member, hold = row.member, row.member.hold
        since = f" since {member.not_ready_since}" if member.not_ready_since else ""
        words = [] if member.ready else [f"not ready{since}"]
        described = member.schedulable or hold or member.foreign or member.why
        words += [] if described else ["unschedulable"]
        state = hold.phase if hold else "in service" if row.in_service else "out of service"
        page.add((member.name, "bold"), f"  {state}", (f"  {row.scheduler}", "dim"))
        if hold is not None:
            person = f" by {hold.person}" if hold.person else ""
            reason = f": {hold.text}" if hold.text else ""
            page.add(f"    since {hold.since}{person}, run {hold.run}{reason}")
        foreign = list(member.foreign)
        if member.foreign_since:
            foreign[0] += f" since {member.foreign_since}"
        for line in (*words, *foreign, *([member.why] if member.why else [])):
            page.add(f"    {line}")
        if row.next:
            page.add(f"    next: {row.next}")
    show(page)


def _rollout(running: Running, holds: Mapping[tuple[str, str], Hold]) -> dict[str, Any]:
    """A rollout in progress; one that has published nothing yet has no nodes.

    Args:
        running: the rollout.
        holds: of its nodes, by run and node: they may be further than the rollout had last published.
    """
    from gpustate.rollout.board import PAUSE
    from gpustate.rollout.running import NEXT
    from gpustate.rollout.status import after_death, after_failure
    from gpustate.rollout.waves import PHASES

    progress: Mapping[str, Any] = running.progress or {}
    row: dict[str, Any] = {"run": running.run, "person": running.person, "where": running.where}
    row["state"] = str(progress.get("state") or "running")
    if running.silent:
        row["state"] = "silent"
        row["why"] = (
            f"its controller has not renewed the Lease since {running.silent}; if it is dead: "
            f"{after_death(running.run, command_of(running.run))}"
        )
    elif running.control is not None:
        row["state"] = "paused" if running.control.action == PAUSE else "stopping"
        row["why"] = str(running.control)
    elif progress.get("why"):
        row["why"] = str(progress["why"])
    if progress:
        row |= {key: progress[key] for key in ("updated", "wave", "waves") if key in progress}
    row["nodes"] = []
    for name, node in progress.get("nodes", {}).items():
        node_row = {"name": name, "phase": str(node.get("phase")), "wave": node.get("wave", 1)}
        node_row |= {key: str(node[key]) for key in ("since", "why") if node.get(key)}
        hold = holds.get((running.run, name))
        later = (
            PHASES[PHASES.index(node_row["phase"]) + 1 :] if node_row["phase"] in _AT_WORK else ()
        )
        if hold is not None and hold.phase in later:
            node_row |= {"phase": hold.phase, "since": hold.since, "why": hold.text}
        if node_row["phase"] == "failed":
            node_row["next"] = after_failure(
                running.run, command_of(running.run), node_row.get("why", "")
            )
        elif node_row["phase"] in NEXT:
            node_row["next"] = NEXT[node_row["phase"]].replace("RUN", running.run)
        row["nodes"].append(node_row)
    return row


def _rollouts_page(rows: Sequence[dict[str, Any]], *, whole: bool) -> None:
    from collections import Counter

    from gpustate.cli.show import show
    from gpustate.plan.render import Page
    from gpustate.rollout.waves import PHASES

    page = Page()
    for row in rows:
        wave = f"  wave {row['wave']} of {row['waves']}" if row.get("waves", 1) > 1 else ""
        page.add(
            (f"run {row['run']}", "bold"), f"  {row['state']}{wave}", (f"  {row['where']}", "dim")
        )
        page.add(f"    of {row['person']}" + (f": {row['why']}" if row.get("why") else ""))
        counts = Counter(node["phase"] for node in row["nodes"])
        shares = (f"{phase}={counts[phase]}" for phase in PHASES if counts[phase])
        page.add("    " + (" ".join(shares) or "it has not published its progress yet"))
        for node in row["nodes"]:
            if node["phase"] in ("queued", "released") and not whole:
                continue
            why = f": {node['why']}" if node.get("why") else ""
            page.add(f"    {node['name']}  {node['phase']} since {node.get('since', '?')}{why}")
            if node.get("next"):
                page.add(f"      next: {node['next']}")
    show(page)
