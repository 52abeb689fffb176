"""``gpustate rollout history``: runs of this controller's audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import UsageError
from gpustate.plan.render import Page

if TYPE_CHECKING:
    from gpustate.reporting.audit import Entry

_ENTRY = frozenset(("format", "event", "time", "run"))
_PROCESS = frozenset(("version", "uid", "pid", "born"))


@click.command()
@click.option(
    "-n",
    "--last",
    type=common.Number(1),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of runs.",
)
@click.option("--run", "wanted", metavar="RUN", help="Only this run, with its nodes.")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def history(last: int, wanted: str | None, output: str) -> None:
    """Show the last runs that changed nodes from this controller: person, policy, reason, outcome.

    Reads your audit log; nodes are not contacted.
    """
    from gpustate.cli import watching
    from gpustate.cli.show import show
    from gpustate.engine import records
    from gpustate.engine.fleet import controller_runs
    from gpustate.reporting import audit

    try:
        log = audit.read()
    except OSError as error:
        raise UsageError(
            f"cannot read the audit log ({error.strerror})", place=str(audit.path())
        ) from error
    if log.damaged:
        lines = ", ".join(map(str, log.damaged[:5])) + (" ..." if len(log.damaged) > 5 else "")
        watching.warn(f"{audit.path()}: damaged lines are ignored: {lines}")
    entries = [run for run in log.runs if wanted in (None, run.start["run"])][-last:]
    if wanted and not entries:
        raise UsageError(
            f"no run {wanted!r} in the audit log",
            place=str(audit.path()),
            fix="list runs: gpustate rollout history",
        )
    rows = [_row(run) for run in entries]
    if output == "json":
        common.write_out(common.as_json({"format": "gpustate.history/1", "runs": rows}))
        return
    page = Page()
    resumable = {str(record["run"]) for record in records.unfinished(controller_runs)}
    for row in rows:
        _run(page, row, whole=wanted is not None, resumable=row["run"] in resumable)
    show(page)
    if not rows:
        click.echo(f"no run in {audit.path()}")


def _row(entry: Entry) -> dict[str, Any]:
    start, end = entry.start, entry.end
    about = {key: value for key, value in start.items() if key not in _ENTRY | _PROCESS}
    row: dict[str, Any] = {"run": start["run"], "started": start["time"]}
    if end is not None:
        row["ended"] = end["time"]
    row |= {"state": _state(entry), "about": about}
    if end is not None:
        row["outcome"] = {key: value for key, value in end.items() if key not in _ENTRY}
    return row


def _state(entry: Entry) -> str:
    from gpustate.engine.fleet import controller_runs

    if entry.end is not None:
        return "ended"
    pid, born = entry.start.get("pid"), entry.start.get("born")
    return "running" if isinstance(pid, int) and controller_runs(pid, str(born or "")) else "killed"


def _run(page: Page, row: Mapping[str, Any], *, whole: bool, resumable: bool) -> None:
    about, outcome = row["about"], row.get("outcome")
    limit = f" -l {about['limit']}" if about.get("limit") else ""
    page.add(
        (str(row["run"]), "bold"),
        f"  {about.get('person', '')}  {' '.join(filter(None, (about.get('verb'), about.get('source'))))}",
        f" -i {about.get('inventory', '')}{limit}",
    )
    if about.get("reason"):
        page.add(f"    reason: {about['reason']}")
    if outcome is None:
        resume = f"; continue it with: gpustate rollout resume {row['run']}" if resumable else ""
        page.add("    ", (f"{row['state']}{resume}", "yellow"))
        return
    good = outcome.get("exit_code") == 0
    words = outcome.get("summary") or outcome.get("error") or ""
    page.add("    ", (f"exit {outcome.get('exit_code')}", "green" if good else "red"), f"  {words}")
    if outcome.get("stopped"):
        page.add(f"    stopped: {outcome['stopped']}")
    if not whole:
        return
    for status, names in outcome.get("nodes", {}).items():
        page.add(f"    {status}: {', '.join(names)}")
    for name in ("changed", "skipped"):
        if outcome.get(name):
            page.add(
                f"    {'not started' if name == 'skipped' else name}: {', '.join(outcome[name])}"
            )
    for item in outcome.get("failed", ()):
        page.add(f"    {item['node']}: {item['status']}: {item['reason']}")
    for item in outcome.get("held", ()):
        page.add(f"    {item['why']}")
