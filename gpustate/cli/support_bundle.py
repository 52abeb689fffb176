"""``gpustate node support-bundle``: collect what a bug report needs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpustate import clock
from gpustate.cli import common
from gpustate.errors import EXIT_UNREACHABLE, GpustateError, UsageError
from gpustate.files import TextFiles, write_private

if TYPE_CHECKING:
    from gpustate.cluster.kubeconfig import Kubeconfig
    from gpustate.core.facts import NodeFacts
    from gpustate.core.inventory import Inventory, InventoryNode
    from gpustate.core.node import Node
    from gpustate.engine.records import RunRecord
    from gpustate.reporting.node_files import Collected
    from gpustate.reporting.support_bundle import Archive

_ADDED_MIB = 16
_FAILURES = {124: "its command timed out", 127: "its program is not installed"}

#: Last lines of each log that are collected.
_LINES = 500


@click.command("support-bundle")
@click.argument("file", metavar="FILE.tar.gz", type=click.Path(dir_okay=False))
@common.inventory_options
@click.option(
    "--run",
    "run",
    metavar="RUN",
    help="Run whose record, journals and logs are collected [default: the newest run of the nodes].",
)
@click.option(
    "--add",
    "added",
    multiple=True,
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="Also add this text file, such as a result or an event stream; repeatable.",
)
@common.kubeconfig_option("Cluster of the nodes")
def support_bundle(
    file: str, run: str | None, added: tuple[str, ...], kubeconfig: str | None, **options: Any
) -> None:
    """Collect what a bug report needs in FILE.tar.gz: versions, policy, run, logs and diagnosis of nodes.

    Secrets are masked, also by name in logs and configuration of other programs. Read it before you send it
    all the same. Nothing is changed on the nodes.
    """
    from gpustate.reporting.support_bundle import Archive

    if not file.endswith((".tar.gz", ".tgz")):
        raise UsageError(
            "not the name of a .tar.gz file", place=file, fix=f"name it {Path(file).stem}.tar.gz"
        )
    common.check_out(file, "give another FILE.tar.gz")
    archive = Archive(clock.now())
    inventory = common.load_inventory(options)
    record = _record(run, [node.name for node in inventory.nodes])
    archive.add_data("versions.json", _versions())
    for path in added:
        reader = TextFiles("text file", UsageError, _ADDED_MIB)
        archive.add_text(f"added/{Path(path).name}", reader.text(path))
    _add_run(archive, record, inventory)
    run = record["run"] if record else ""
    rows, facts = _add_nodes(archive, inventory, options, run)
    _add_cluster(archive, inventory, facts, kubeconfig or "")
    about = {
        "inventory": str(options["inventory"]),
        "limit": options.get("limit") or "",
        "run": run,
    }
    index = archive.index(about, rows)
    archive.add_data("index.json", index)
    try:
        write_private(Path(file), archive.pack())
    except OSError as error:
        raise UsageError(f"cannot write the file ({error.strerror})", place=file) from error
    for path, why in sorted(archive.missing):
        click.echo(f"missing: {path}: {why}", err=True)
    read = sum("error" not in row for row in rows)
    click.echo(
        f"{file}: {len(archive.files)} files, {read} of {len(rows)} nodes; secrets are masked, read it before you send it"
    )
    common.finish(*(EXIT_UNREACHABLE for row in rows if "error" in row))


def _record(run: str | None, nodes: list[str]) -> RunRecord | None:
    """The record of a run, by default of the newest one of these nodes."""
    from gpustate.engine import records

    return records.load(run) if run is not None else records.newest(nodes)


def _versions() -> dict[str, Any]:
    """Versions of gpustate, Python and the libraries."""
    from gpustate import __version__

    names = sorted({package.name.lower() for package in metadata.distributions() if package.name})
    needed = {
        word.split(";")[0].split("[")[0].strip(" <>=!~.0123456789,").lower()
        for word in metadata.requires("gpustate") or ()
        if "extra" not in word
    }
    return {
        "gpustate": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "libraries": {name: metadata.version(name) for name in names if name in needed},
    }


def _add_run(archive: Archive, record: RunRecord | None, inventory: Inventory) -> None:
    """The run: its record, its lines of the audit log, its plan, its policy as every node has it."""
    from gpustate import policies
    from gpustate.api import saved
    from gpustate.reporting import audit

    if not record:
        archive.miss("run", "no run of these nodes is recorded on this machine")
        return
    archive.add_data("run/record.json", record)
    try:
        entries = [row for row in audit.read().runs if row.start["run"] == record["run"]]
    except OSError as error:
        archive.miss("run/audit.json", str(error))
    else:
        both = [dict(data) for row in entries for data in (row.start, row.end) if data]
        archive.add_data("run/audit.json", both)
    source = record["source"]
    if record["verb"] == "rollback":
        archive.miss(
            "policy.json", "a rollback has no policy of its own; see journals of the nodes"
        )
        return
    try:
        if policies.kind(source) == "plan":
            document = saved.read(source)
            archive.add_data("run/plan.json", document)
            policy = saved.policy_of(document, lambda name: common.load_policy(name), source)
        else:
            policy = common.load_policy(source, record["options"])
        archive.add_data("policy.json", _resolved(policy, inventory, source))
    except (GpustateError, OSError) as error:
        archive.miss("policy.json", str(error))


def _resolved(policy: Any, inventory: Inventory, source: str) -> dict[str, Any]:
    """The policy as resolved for every node."""
    from gpustate.core import provenance

    states = common.known_states()
    nodes = {}
    for node in inventory.nodes:
        resolution = provenance.resolution(policy, node, states)
        nodes[node.name] = provenance.as_data(resolution, list(resolution.values), source)
    return nodes


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was collected from a node, and what could not be."""

    facts: NodeFacts | None
    data: Mapping[str, Any]
    errors: Mapping[str, str]
    collected: Collected | None


def _ask(node: Node, run: str) -> _Answer:
    """Query everything in one exec; a part that fails does not lose the others."""
    from gpustate.cli.explain import diagnosis_data
    from gpustate.core.encode import plain
    from gpustate.engine.ledger import LedgerQuery
    from gpustate.explain import walk
    from gpustate.probes.gpu_facts import GpuFacts
    from gpustate.reporting.node_files import CollectQuery

    data: dict[str, Any] = {}
    errors: dict[str, str] = {}
    facts, collected = None, None
    try:
        facts = node.facts()
        data["facts"] = {**plain(facts), "nvml": plain(node.query(GpuFacts()))}
    except GpustateError as error:
        errors["facts"] = str(error)
    try:
        data["explain"] = diagnosis_data(walk.diagnose(walk.query(node)))
    except GpustateError as error:
        errors["explain"] = str(error)
    try:
        data["ledger"] = plain(node.query(LedgerQuery()))
    except GpustateError as error:
        errors["ledger"] = str(error)
    try:
        collected = node.query(CollectQuery(run, _LINES))
    except GpustateError as error:
        errors["files"] = str(error)
    return _Answer(facts, data, errors, collected)


def _add_nodes(
    archive: Archive, inventory: Inventory, options: Mapping[str, Any], run: str
) -> tuple[list[dict[str, Any]], dict[str, NodeFacts]]:
    """Everything of the nodes; a row of the index for each, and their facts."""
    from gpustate.engine import fleet
    from gpustate.reporting.support_bundle import folders

    rows: list[dict[str, Any]] = []
    facts: dict[str, NodeFacts] = {}
    places = folders([node.name for node in inventory.nodes])
    for node, answer, error in fleet.question(
        inventory.nodes, options["forks"], lambda on: _ask(on, run)
    ):
        place = f"nodes/{places[node.name]}"
        row: dict[str, Any] = {"name": node.name, "folder": place}
        rows.append(row)
        if answer is None:
            row["error"] = str(error)
            archive.miss(place, str(error))
            continue
        if answer.facts is not None:
            facts[node.name] = answer.facts
        for name, data in answer.data.items():
            archive.add_data(f"{place}/{name}.json", data)
        for name, why in answer.errors.items():
            archive.miss(f"{place}/{name}", why)
        _add_files(archive, place, answer.collected)
    return rows, facts


def _add_files(archive: Archive, place: str, collected: Collected | None) -> None:
    if collected is None:
        return
    for item in collected.items:
        path = f"{place}/{item.name}" + ("" if item.name.startswith("files/") else ".txt")
        if item.text.strip():
            archive.add_text(path, item.text)
        if item.cut:
            archive.cut.append(path)
        if item.status in _FAILURES:
            archive.miss(path, _FAILURES[item.status])
        elif item.status and not item.text.strip():
            archive.miss(path, f"its command ended with status {item.status}")
    for name in collected.absent:
        archive.miss(f"{place}/{name}", "the node does not have it")
    if not collected.complete:
        archive.miss(place, "collecting took too long; the rest is missing")


def _add_cluster(
    archive: Archive, inventory: Inventory, facts: Mapping[str, NodeFacts], option: str
) -> None:
    """The Node object of each machine, gpustate's and NVIDIA's pods on it, and the Lease."""
    from gpustate.cluster.kubeconfig import kubeconfig_of

    members: dict[Kubeconfig, list[InventoryNode]] = {}
    for node in inventory.nodes:
        if kubeconfig := kubeconfig_of(node, option):
            members.setdefault(kubeconfig, []).append(node)
    for number, (kubeconfig, nodes) in enumerate(members.items(), 1):
        from gpustate.reporting.cluster_files import collect

        place = "kubernetes" if len(members) == 1 else f"kubernetes-{number}"
        try:
            files, missing = collect(kubeconfig, nodes, facts)
        except GpustateError as error:
            archive.miss(place, str(error))
            continue
        for name, data in files.items():
            archive.add_data(f"{place}/{name}.json", data)
        for name, why in missing.items():
            archive.miss(f"{place}/{name}", why)
