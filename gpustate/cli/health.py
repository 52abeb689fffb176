"""``gpustate health`` and ``gpustate node quarantine``: how well GPUs are, and which are out of use."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, next_steps
from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.core.outcome import NodeResult
from gpustate.errors import EXIT_ERROR, EXIT_VALIDATION, ClusterError, UsageError

if TYPE_CHECKING:
    from gpustate.core.node import Node
    from gpustate.diagnosis.chain_data import ChainObservation
    from gpustate.formats.quarantine import Entry

_STYLES = {"well": "green", "warning": "yellow", "failed": "red", "quarantine": "cyan"}


@click.command()
@common.inventory_options
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
@click.option(
    "--node-condition",
    is_flag=True,
    help="Write the result to the condition GPUHealthy of the Nodes.",
)
@common.kubeconfig_option("Cluster for --node-condition: the current context of this kubeconfig")
def health(output: str, *, node_condition: bool, kubeconfig: str | None, **options: Any) -> None:
    """Show GPU health from NVML and the kernel log; exit 3 if a GPU is unhealthy.

    Xids since the module was loaded, remapped rows, retired pages, the PCIe link, clock throttling,
    NVLinks, and the driver's recovery action; each finding with the recommended action. The driver's
    libraries and the NVLink fabric count too, without which no program uses a GPU. A quarantined
    GPU is shown but does not count, as long as another one is left.
    """
    inventory = common.load_inventory(options)
    machines: dict[str, dict[str, Any]] = {}

    def query(node: Node) -> dict[str, Any]:
        if node_condition:
            machines[node.name] = _identity(node)
        return _health(node)

    clusters = {node.name: kubeconfig_of(node, kubeconfig or "") for node in inventory}
    if node_condition and not any(clusters.values()):
        raise UsageError(
            "no node has a kubeconfig",
            fix="pass --kubeconfig FILE, or set the inventory variable gpustate_kubeconfig",
        )
    rows, codes = common.query_nodes(inventory, options["forks"], query)
    target = next_steps.of_record(next_steps.last_change(options), options)
    rows = [target.complete_texts(row, row["name"]) for row in rows]
    for row in rows:
        if any(gpu["state"] == "failed" for gpu in row.get("gpus", [])) or row.get("others"):
            codes.append(EXIT_VALIDATION)
    if node_condition:
        codes += _report(rows, machines, clusters)
    if output == "json":
        common.write_out(common.as_json({"format": "gpustate.health/1", "nodes": rows}))
    else:
        _page(rows)
    common.finish(*codes)


def _report(
    rows: list[dict[str, Any]], machines: dict[str, dict[str, Any]], clusters: dict[str, Kubeconfig]
) -> list[int]:
    """Write the condition of the Nodes of all clusters; exit codes for what could not be written."""
    from gpustate.reconcile import node_reports
    from gpustate.reconcile.verdicts import after_health, of_findings

    judged = [
        (NodeResult(row["name"], facts=dict(machines[row["name"]])), of_findings(_faults(row)))
        for row in rows
        if row["name"] in machines
    ]
    codes: list[int] = []
    for cluster in dict.fromkeys(filter(None, clusters.values())):
        judged_here = [(n, verdict) for n, verdict in judged if clusters[n.name] == cluster]
        try:
            written = node_reports.report(cluster, judged_here, after_health)
        except ClusterError as error:
            click.echo(f"conditions of Nodes could not be written: {error}", err=True)
            codes.append(EXIT_ERROR)
            continue
        for line in written.notes:
            click.echo(str(line), err=True)
    return codes


def _faults(row: dict[str, Any]) -> list[str]:
    """The failed findings of a node's GPUs, without those in quarantine."""
    if "gpus" not in row:
        return [row["error"]] if "error" in row else []
    faults = [
        f"GPU {gpu['index']} ({gpu['pci']}): {fault['evidence']}"
        for gpu in row["gpus"]
        if gpu["state"] == "failed"
        for fault in gpu["findings"]
        if fault["level"] == "failed"
    ]
    return faults + [
        f"{fault['pci']}: {fault['evidence']}".removeprefix(": ") for fault in row["others"]
    ]


def _observe(node: Node) -> ChainObservation:
    from gpustate.diagnosis import chain_probe, chain_queries
    from gpustate.formats import xids
    from gpustate.probes.gpu_facts import LIBRARY_FOLDERS, GpuFacts

    nvml = node.query(GpuFacts())
    record = node.shell(chain_queries.RECORD).stdout
    script = chain_probe.KEY_SCRIPT + xids.SCRIPT + chain_probe.DRIVER_SCRIPT + ":\n"
    text = node.shell(f"L={shlex.quote(LIBRARY_FOLDERS)}\n{script}").stdout
    return chain_queries.with_record(chain_probe.parse(text, nvml), record)


def _health(node: Node) -> dict[str, Any]:
    from gpustate.core.encode import plain
    from gpustate.diagnosis import chain, remedies
    from gpustate.diagnosis import health as judge

    observed = _observe(node)
    nvml = observed.nvml
    if not nvml.gpus:
        why = nvml.error_text or nvml.error_name or "no GPU answers"
        return {"error": f"NVML: {why}; diagnose it: gpustate explain {node.name} -l NODE"}
    findings = judge.judge(nvml, observed.log, chain.recovered(observed))
    absent = [
        (address, f"{uuid} {remedies.MISSING_GPU}", remedies.GPU_COUNT)
        for uuid, address in chain.missing(observed, observed.expected)
    ]
    on_pci = chain.check_pci(observed, observed.expected)
    if on_pci.failed and not absent:
        absent = [("", on_pci.evidence, on_pci.remedy)]
    uuids = {gpu.address: f"{gpu.uuid}: " for gpu in observed.module_gpus if "?" not in gpu.uuid}
    absent += [
        (address, f"{uuids.get(address, '')}{why}", remedy)
        for address, (remedy, why) in chain.not_in_nvml(observed).items()
    ]
    findings += tuple(
        judge.Finding(None, address, "missing", judge.FAILED, why, remedy)
        for address, why, remedy in absent
    )
    checks = {check.name: check for check in chain.evaluate(observed)}
    mute = absent or any(
        finding.what == "no-answer" for finding in findings
    )  # the check libraries says so
    findings += tuple(
        judge.Finding(None, "", name, judge.FAILED, checks[name].evidence, checks[name].remedy)
        for name in (("fabric",) if mute else ("libraries", "fabric"))
        if checks[name].failed
    )
    if none_left := chain.all_held(observed):
        findings += (
            judge.Finding(None, "", "quarantine", judge.FAILED, none_left, remedies.ALL_HELD),
        )
    gpus: list[dict[str, Any]] = []
    for gpu in nvml.gpus:
        own_findings = [finding for finding in findings if finding.gpu == gpu.index]
        state = "well" if not own_findings else "warning"
        state = "failed" if judge.failed(tuple(own_findings)) else state
        gpus.append(
            {
                **{"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci, "name": gpu.name},
                "state": "quarantine" if observed.held(gpu) else state,
                "findings": [plain(finding) for finding in own_findings],
            }
        )
    unassigned = [
        plain(finding)
        for finding in findings
        if finding.gpu is None
        and finding.level == judge.FAILED
        and not observed.quarantine.holds("", finding.pci)
    ]
    row: dict[str, Any] = {"gpus": gpus, "others": unassigned}
    row["quarantine"] = [finding.text for finding in observed.quarantine.active]
    row["quarantine_ended"] = [finding.text for finding in observed.quarantine.expired]
    return {**row, "error": observed.quarantine.problem} if observed.quarantine.problem else row


def _page(rows: list[dict[str, Any]]) -> None:
    from gpustate.cli.show import show
    from gpustate.plan.render import Page

    page = Page()
    for row in rows:
        states = [gpu["state"] for gpu in row.get("gpus", [])]
        unassigned = row.get("others", [])
        listed = {gpu["pci"] for gpu in row.get("gpus", [])}
        # Each GPU once, whatever number of findings it has; the rest concerns all of them.
        states += ["failed"] * len({f["pci"] for f in unassigned if f["pci"]} - listed)
        counts = [f"{states.count(f)} {f}" for f in _STYLES if f in states]
        if of_node := ", ".join(f["what"] for f in unassigned if not f["pci"]):
            counts.append(f"the node failed ({of_node})")
        page.add((row["name"], "bold"), f"  {', '.join(counts)}")
        for gpu in row.get("gpus", []):
            if gpu["state"] == "well":
                continue
            page.add(
                f"  GPU {gpu['index']}  {gpu['pci']}  {gpu['uuid']}  ",
                (gpu["state"], _STYLES[gpu["state"]]),
            )
            _findings(page, gpu["findings"])
        _findings(page, row.get("others", []))
        for line in row.get("quarantine", []):
            page.add("  in quarantine: ", (line, "cyan"))
        for line in row.get("quarantine_ended", []):
            page.add("  the quarantine has ended: ", (line, "yellow"))
        if "error" in row:
            page.add("  ", (row["error"], "red"))
    show(page)


def _findings(page: Any, findings: list[dict[str, Any]]) -> None:
    for finding in findings:
        style = _STYLES["failed" if finding["level"] == "failed" else "warning"]
        prefix = f"{finding['pci']}: " if finding["gpu"] is None and finding["pci"] else ""
        page.add("    ", (f"{prefix}{finding['evidence']}", style))
        page.add(f"      next: {finding['remedy']}")


@click.command()
@common.inventory_options
@click.option(
    "--gpu",
    metavar="GPU",
    help="Index, UUID or PCI address of the GPU, on every selected node; select nodes with -l.",
)
@click.option("--reason", "-m", help="Reason, shown whenever the node is probed.")
@click.option("--for", "duration", metavar="TIME", help="Duration: 30m, 8h, 7d.")
@click.option(
    "--end",
    is_flag=True,
    help="End the quarantine of --gpu; without --gpu, of every GPU of the nodes.",
)
@common.kubeconfig_option(
    "Cluster of the nodes, by this file's current context: their device plugin is restarted and no longer offers the GPU"
)
def quarantine(
    gpu: str | None,
    reason: str | None,
    duration: str | None,
    end: bool,
    kubeconfig: str | None,
    **options: Any,
) -> None:
    """Quarantine a GPU for a while, or end its quarantine; without --gpu and --end, list quarantined GPUs.

    validate, explain, labels and gres.conf lines leave a quarantined GPU out, and every plan names it. The
    quarantine expires by itself. Processes that use the GPU are not stopped. On Kubernetes, given
    access to the cluster, new pods do not get it; other programs of the node are not prevented from using it.
    """
    if end and (reason is not None or duration is not None):
        raise UsageError(
            "--end contradicts --reason and --for, which start a quarantine",
            fix="give --end alone to end one",
        )
    if gpu is not None and not end and (reason is None or duration is None):
        option = "--reason TEXT" if reason is None else "--for 8h"
        raise UsageError(f"a quarantine needs {option}", fix="add it, or end one with --end")
    if gpu is None and (reason is not None or duration is not None):
        raise UsageError("--reason and --for need a GPU", fix="name it with --gpu")
    if reason is not None and (not reason.strip() or len(reason) > 300 or not reason.isprintable()):
        raise UsageError(
            "--reason is not one line of 1 to 300 characters", fix="shorten it to one line"
        )
    length_s = common.duration_s(duration) if duration is not None else 0
    _work(options, gpu, reason or "", length_s, end, kubeconfig or "")


def _work(
    options: dict[str, Any], gpu: str | None, reason: str, length_s: int, end: bool, kubeconfig: str
) -> None:
    from gpustate.engine import fleet
    from gpustate.engine.fleet import controller
    from gpustate.formats.words import printable

    inventory = common.load_inventory(options)
    codes: list[int] = []
    writes = gpu is not None or end
    clusters = {node.name: kubeconfig_of(node, kubeconfig) for node in inventory}
    machines: dict[str, dict[str, Any]] = {}
    held: dict[str, list[str]] = {}

    def work(session: Any) -> list[str]:
        from gpustate.engine.probing import query_node

        observed, clock, ids = query_node(session.node, _query, session.answer)
        if not writes:
            return _describe(observed)
        entries = _new_entries(observed, clock, gpu, reason, length_s, end, controller().name)
        answer = session.shell(_script(entries))
        if answer.status:
            raise UsageError(
                "the quarantine file cannot be written",
                place=session.node.name,
                fix="free disk space on the node, or mount it read-write",
            )
        machines[session.node.name] = ids
        held[session.node.name] = [entry.text for entry in entries]
        return [f"in quarantine: {entry.text}" for entry in entries] or ["no GPU is in quarantine"]

    for node, lines, error in fleet.each(inventory.nodes, options["forks"], work):
        if error is not None or lines is None:
            codes.append(error.exit_code if error else EXIT_ERROR)
            click.echo(printable(f"{node.name}: {error}"), err=True)
            continue
        for line in lines:
            click.echo(printable(f"{node.name}: {line}"))
    codes += _restart_plugins(clusters, machines, held)
    common.finish(*codes)


def _restart_plugins(
    clusters: dict[str, Kubeconfig], machines: dict[str, dict[str, Any]], held: dict[str, list[str]]
) -> list[int]:
    """Let the device plugins of nodes see their GPUs again, and name the quarantined ones on the Nodes; exit codes for what did not work."""
    from gpustate.formats.words import printable
    from gpustate.reconcile import node_reports
    from gpustate.reconcile.verdicts import after_quarantine

    codes: list[int] = []
    for cluster in dict.fromkeys(clusters[name] for name in machines if clusters[name]):
        names = [name for name in machines if clusters[name] == cluster]
        nodes = [NodeResult(name, facts=dict(machines[name])) for name in names]
        for name, restarted, words in node_reports.restart_plugins(cluster, nodes):
            click.echo(printable(f"{name}: {words}"), err=not restarted)
            codes += [] if restarted else [EXIT_ERROR]
        try:
            lines = node_reports.report(
                cluster, [(node, held[node.name]) for node in nodes], after_quarantine
            )
        except ClusterError:
            continue  # the restart has failed for the same reason
        for line in lines.notes:
            click.echo(printable(str(line)))
    return codes


def _query(node: Node) -> tuple[ChainObservation, int, dict[str, Any]]:
    observed = _observe(node)
    clock = node.shell("date +%s", assume=str(int(time.time()))).stdout.strip()
    text = clock if clock.isdecimal() else "0"
    return observed, int(text), _identity(node)


def _identity(node: Node) -> dict[str, Any]:
    """The ids by which the machine's Node is found."""
    facts = node.facts()
    return {name: getattr(facts, name) for name in ("boot_id", "machine_id", "system_uuid")}


def _describe(observed: ChainObservation) -> list[str]:
    held = observed.quarantine
    lines = [held.problem] if held.problem else []
    lines += [f"in quarantine: {entry.text}" for entry in held.active]
    lines += [f"the quarantine has ended: {entry.text}" for entry in held.expired]
    return lines or ["no GPU is in quarantine"]


def _new_entries(
    observed: ChainObservation,
    clock: int,
    gpu: str | None,
    reason: str,
    length_s: int,
    end: bool,
    by: str,
) -> tuple[Entry, ...]:
    """The new entries; expired ones are dropped."""
    from gpustate.formats.quarantine import Entry

    old = observed.quarantine.active
    if gpu is None:
        return ()
    uuid, pci = _identify(observed, gpu)
    remaining = tuple(e for e in old if not ((uuid and e.uuid == uuid) or (pci and e.pci == pci)))
    if end:
        if len(remaining) == len(old):
            raise UsageError(
                f"GPU {gpu} is not in quarantine",
                fix="list quarantined GPUs: gpustate node quarantine -l NODE",
            )
        return remaining
    return (*remaining, Entry(uuid, pci, reason, clock + length_s, clock, by))


def _identify(observed: ChainObservation, gpu: str) -> tuple[str, str]:
    """UUID and PCI address of a GPU named by index, UUID or address; a lost one has only one of them."""
    for entry in observed.quarantine.active:
        if gpu in (entry.uuid, entry.pci):
            return entry.uuid, entry.pci
    for candidate in observed.nvml.gpus:
        if gpu in (str(candidate.index), candidate.uuid, candidate.pci):
            if not candidate.pci and not candidate.uuid:
                break
            return candidate.uuid, candidate.pci
    if gpu in {entry.address for entry in observed.module_gpus}:
        return "", gpu
    indices = ", ".join(str(entry.index) for entry in observed.nvml.gpus) or "none answers"
    raise UsageError(
        f"no GPU {gpu[:60]!r} on this node (GPUs: {indices})",
        fix="name it by index, UUID or PCI address; a lost one by its PCI address",
    )


def _script(entries: tuple[Entry, ...]) -> str:
    import base64

    from gpustate.formats.quarantine import FILE, as_text

    if not entries:
        return f'rm -f "$G/{FILE}"'
    data = base64.b64encode(as_text(entries).encode()).decode("ascii")
    return (
        f'umask 077; t="$G/.{FILE}.$$"; mkdir -p "$G" && printf %s {data} | base64 -d >"$t" && sync "$t" '
        f'&& mv -f "$t" "$G/{FILE}" && sync "$G" || {{ rm -f "$t"; exit 1; }}'
    )
