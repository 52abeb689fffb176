"""``gpustate resume``: go on with a run that was interrupted."""

from __future__ import annotations

import os

import click

from gpustate.errors import UsageError


@click.command()
@click.argument("run", required=False)
def resume(run: str | None) -> None:
    """Go on with RUN (default: the newest unfinished one), with the same policy, nodes and options.

    Node programs that are still at work are followed to their end first; then the nodes are looked
    at again, and what is left to do is done.
    """
    from gpustate import policies
    from gpustate.cli.apply import LEVEL, apply_policy, carry_plan_on
    from gpustate.run import records

    record = records.load(run)
    options = dict(record["options"])
    options["max_disruption"] = LEVEL.convert(options.get("max_disruption", "reboot"), None, None)
    options["yes"] = True
    if options.get("ask_become_pass") and not os.isatty(0):
        raise UsageError("the run needs sudo's password", fix="resume it on a terminal")
    os.chdir(record["directory"])
    click.echo(f"going on with {record['verb']} {record['source']} (run {record['run']})", err=True)
    # From here on it is the new run that can be resumed.
    records.end(records.path_of(str(record["run"])), interrupted=False)
    source = str(record["source"])
    if policies.kind(source) == "plan":
        carry_plan_on(source, options)
        return
    ensure = "absent" if record["verb"] == "remove" else None
    apply_policy(source, options, verb=str(record["verb"]), ensure=ensure)
