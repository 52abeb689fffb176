"""``gpustate explain``: diagnose a node: the first failed check, its cause and the fix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, next_steps
from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.diagnosis.chain import NOT_VALIDATED
from gpustate.errors import EXIT_VALIDATION, GpustateError, UsageError
from gpustate.plan.ranges import expand, fold
from gpustate.plan.render import Page

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpustate.explain.walk import Diagnosis

#: Checks that may fail because a run holds the Node and has not brought back what offers its GPUs.
_AFTER_HOLD = ("discovery", "device-plugin", "scheduler")
_SIGNS = {"ok": ("=", "green"), "failed": ("x", "red"), "not applicable": ("-", "dim")}


def checks_page(page: Page, checks: list[dict[str, Any]]) -> None:
    """Add a line per check; the first failed one with its remedy."""
    width = max((len(check["name"]) for check in checks), default=0)
    remedy_shown = False
    for check in checks:
        sign, style = _SIGNS[check["outcome"]]
        page.add("  ", (sign, style), f" {check['name']:<{width}}  {check['evidence']}")
        if check["outcome"] == "failed" and not remedy_shown:
            page.add("  ", " " * (width + 4), (f"next: {check['remedy']}", "bold"))
            remedy_shown = True


def _with_commands(diagnosis: Diagnosis, node: str, target: next_steps.Target) -> Diagnosis:
    """The diagnosis with commands that can be pasted."""

    def fill(text: str) -> str:
        return target.complete(text, node)

    checks = (
        replace(c, evidence=fill(c.evidence), remedy=fill(c.remedy)) for c in diagnosis.checks
    )
    return replace(diagnosis, checks=tuple(checks), warnings=tuple(map(fill, diagnosis.warnings)))


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data."""
    from gpustate.core.encode import plain

    cause = diagnosis.cause
    return {
        "broken": None if diagnosis.broken is None else diagnosis.broken.name,
        "cause": diagnosis.name or None,
        "repaired_by": (cause.state or None) if cause else None,
        "seen_before": list(cause.threads) if cause else [],
        "checks": plain(diagnosis.checks),
        "not_judged": list(diagnosis.open),
        "warnings": list(diagnosis.warnings),
        "cuda_proven": diagnosis.validated,
    }


def verdict(result: Diagnosis) -> tuple[str, str]:
    """The headline; without a validation record the result of CUDA is unknown."""
    if result.broken is not None:
        return f"failed: {result.broken.name} ({result.name})", "red"
    container = next((check for check in result.checks if check.name == "container"), None)
    if result.validated and container is not None and container.evidence.startswith(NOT_VALIDATED):
        return f"no check failed; {NOT_VALIDATED}", "yellow"
    if result.validated:
        return "all checks passed", "green"
    return "no check failed; CUDA is not validated", "yellow"


def diagnosis_page(page: Page, result: Diagnosis, row: dict[str, Any]) -> None:
    """Add the checks up to the first failed one, its cause, and warnings."""
    checks_page(page, row["checks"])
    if result.broken is not None:
        _cause_page(page, result, row)
    for warning in result.warnings:
        page.add("  ", ("!", "yellow"), f" {warning}")


def _cause_page(page: Page, result: Diagnosis, row: dict[str, Any]) -> None:
    indent = " " * (max(len(check["name"]) for check in row["checks"]) + 6)
    if row["seen_before"]:
        page.add(indent, (f"seen before: {', '.join(row['seen_before'])}", "dim"))
    if result.open:
        page.add(
            "  ", ("-", "dim"), f" not checked, because they depend on it: {', '.join(result.open)}"
        )


def _pod_name(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    namespace, _, name = value.rpartition("/")
    if not name or "/" in namespace:
        raise UsageError(f"--pod: {value[:80]!r} is no pod", fix="write NAMESPACE/NAME")
    return namespace or "default", name


@click.command()
@click.argument("nodes", metavar="[NODE]...", nargs=-1)
@common.inventory_options
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME",
    callback=_pod_name,
    help="Explain why this pod is not scheduled or not started; also a pod that could not be created, by its name or its controller's.",
)
@common.kubeconfig_option("Cluster of --pod: the current context of this kubeconfig")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def explain(
    nodes: tuple[str, ...],
    output: str,
    pod: tuple[str, str] | None,
    kubeconfig: str | None,
    **options: Any,
) -> None:
    """Diagnose NODEs: the first failing layer from PCI to the scheduler, its cause and the fix.

    NODE is a name or pattern of the inventory; of several nodes, only what failed is shown. Read-only, and no kernel runs on the GPUs: the last CUDA
    result is the one that the validator keeps on the node. With --pod, every cause that keeps a pod from
    its GPUs, by Node; NODE is optional then.
    """
    from gpustate.cli.show import show

    if not nodes and pod is None:
        raise UsageError("nothing to explain", fix="name a NODE, or a pod: --pod NAMESPACE/NAME")
    if kubeconfig and pod is None:
        raise UsageError("--kubeconfig is only for --pod", fix="add --pod NAMESPACE/NAME")
    page, document, codes = Page(), {"format": "gpustate.explain/1", "nodes": []}, list[int]()
    if pod is not None:
        cluster = Kubeconfig(kubeconfig) if kubeconfig else _only_kubeconfig(options)
        codes += _explain_pod(cluster, *pod, page, document)
    if nodes:
        codes += _explain_nodes(":".join(nodes), page, document, options)
    if output == "json":
        common.write_out(common.as_json(document))
    else:
        show(page)
    common.finish(*codes)


def _only_kubeconfig(options: dict[str, Any]) -> Kubeconfig:
    """The kubeconfig of the inventory's nodes, if they have one and the same."""
    fix = "pass --kubeconfig FILE"
    if not options.get("inventory"):
        raise UsageError("no cluster is named", fix=f"{fix}, or an inventory that has it")
    inventory = common.load_inventory(options)
    clusters = {path for node in inventory if (path := kubeconfig_of(node, ""))}
    if len(clusters) != 1:
        if not clusters:
            raise UsageError(
                "no node has a kubeconfig",
                fix=f"{fix}, or set the inventory variable gpustate_kubeconfig",
            )
        listed = ", ".join(sorted(map(str, clusters)))
        raise UsageError(
            f"the nodes belong to {len(clusters)} clusters ({listed})", fix=f"{fix}, or --limit"
        )
    return clusters.pop()


def _explain_pod(
    cluster: Kubeconfig, namespace: str, name: str, page: Page, document: dict[str, Any]
) -> list[int]:
    """Add a pod to page and document; return exit codes."""
    from gpustate.cluster import snapshots
    from gpustate.cluster.api import connected
    from gpustate.core.encode import plain
    from gpustate.explain import pending

    with connected(cluster) as api:
        snapshot = snapshots.read(api, namespace, name)
    result = pending.explain(snapshot)
    document["pod"] = {
        **{"namespace": namespace, "name": name, "status": result.status},
        "causes": plain(result.causes),
        **({"scheduler": result.scheduler} if result.scheduler else {}),
        **({"unread": list(snapshot.unread)} if snapshot.unread else {}),
    }
    page.add(
        (f"{namespace}/{name}", "bold"), "  ", (result.status, "red" if result.waits else "green")
    )
    for cause in result.causes:
        sign, style = _SIGNS["failed"] if result.waits else ("!", "yellow")
        where = f"{', '.join(ranges(cause.nodes))}: " if cause.nodes else ""
        page.add("  ", (sign, style), f" {cause.cause}  {where}{cause.evidence}")
        page.add("    ", (f"next: {cause.remedy}", "bold"))
    if result.scheduler:
        page.add("  ", (f"the scheduler: {result.scheduler}", "dim"))
    for words in snapshot.unread:
        page.add("  ", ("!", "yellow"), f" not read: {words}")
    return [EXIT_VALIDATION] * result.waits


def ranges(names: Iterable[str]) -> list[str]:
    """Names folded into ranges, the smallest first: a few real Nodes do not drown in many virtual ones."""
    return sorted(fold(names), key=lambda text: len(expand(text)))


def _explain_nodes(
    pattern: str, page: Page, document: dict[str, Any], options: dict[str, Any]
) -> list[int]:
    """Add the diagnosis of nodes to page and document; return exit codes."""
    from gpustate.core.node import Node
    from gpustate.engine import fleet
    from gpustate.engine.ledger import LedgerQuery
    from gpustate.explain import walk
    from gpustate.explain.causes import View
    from gpustate.schedulers.kubernetes.members import read_hold

    def question(on: Node) -> tuple[View, str, str, str]:
        newest = ""
        try:
            ledger = on.query(LedgerQuery())
            unfinished, newest = ledger.unfinished(), ledger.newest
        except GpustateError as damaged:
            unfinished = str(damaged)
        return walk.query(on), on.facts().first_boot, unfinished, newest

    inventory = common.load_named(pattern, options)
    several = len(inventory.nodes) > 1
    rows: list[dict[str, Any]] = []
    codes: list[int] = []
    for node, answer, error in fleet.question(inventory.nodes, options["forks"], question):
        if error is not None or answer is None:
            codes.append(error.exit_code if error else 1)
            rows.append({"name": node.name, "error": str(error)})
            page.add((node.name, "bold"), "  ", (str(error), "red"))
            continue
        view, first_boot, unfinished, newest = answer
        record = next_steps.last_change(options, newest)
        target = next_steps.of_record(record, options)
        view = replace(view, states=target.states)
        diagnosis = _with_commands(walk.diagnose(view), node.name, target)
        hold = read_hold(view.clues.node) if view.clues.node else None
        held = next_steps.held(hold) if hold else ""
        if hold is not None and held:
            checks = (
                replace(check, remedy=held) if check.name in _AFTER_HOLD else check
                for check in diagnosis.checks
            )
            diagnosis = replace(diagnosis, checks=tuple(checks))
            held = f"run {hold.run} holds the node out of service since {hold.since}: {hold.text}; {held}"
        unfinished = (
            next_steps.interrupted(record, node.name)
            or held
            or target.complete(unfinished, node.name)
        )
        if step := next_steps.continuation(unfinished):
            diagnosis = replace(
                diagnosis, checks=tuple(replace(check, remedy=step) for check in diagnosis.checks)
            )
        if diagnosis.broken is not None:
            codes.append(EXIT_VALIDATION)
        row = {
            "name": node.name,
            **diagnosis_data(diagnosis),
            **({"cut_short": True} if view.cut_short else {}),
        }
        row = {**row, **({"first_boot": first_boot} if first_boot else {})}
        rows.append({**row, **({"unfinished": unfinished} if unfinished else {})})
        page.add((node.name, "bold"), "  ", verdict(diagnosis))
        if unfinished:
            page.add("  ", (unfinished, "yellow"))
        visible = [check for check in row["checks"] if not several or check["outcome"] == "failed"]
        diagnosis_page(page, diagnosis, {**row, "checks": visible})
        if view.cut_short:
            page.add(
                "  ",
                (
                    "the search for causes timed out: a program hangs, or the node is overloaded",
                    "yellow",
                ),
            )
        if first_boot not in ("", "done"):
            page.add("  ", (f"first boot of its image: {first_boot}", "yellow"))
    document["nodes"] = rows
    return codes
