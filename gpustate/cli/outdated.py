"""``gpustate driver outdated``: show driver versions newer than the locked ones, and what blocks them."""

from __future__ import annotations

from typing import Any

import click

from gpustate import clock
from gpustate.cli import common, notes, rules
from gpustate.errors import EXIT_PENDING, EXIT_UNREACHABLE, UsageError


@click.command()
@common.policy_argument
@common.inventory_options
@common.lock_path_option
@click.option(
    "--detailed-exitcode", is_flag=True, help="Exit 2 if a newer version may be installed."
)
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def outdated(
    policy: str, path: str | None, detailed_exitcode: bool, output: str, **options: Any
) -> None:
    """Show versions in the nodes' repositories that are newer than the lock file's, and what blocks them.

    A version excluded by the policy, unsupported by the GPUs, or blocked by the matrix is listed with
    the rule. Lock allowed ones with `gpustate driver solve --update`, then apply POLICY.
    """
    import os

    from gpustate.engine.fleet import Request
    from gpustate.formats.words import printable_lines
    from gpustate.package_sets import driver_sets, lock_layers
    from gpustate.solve import document

    rules.read()
    loaded = common.load_policy(policy)
    inventory = common.load_inventory(options)
    notes.report_unknown_targets(inventory, loaded, policy, options)
    path = path or lock_layers.lock_path(policy)
    if not os.path.lexists(path):
        raise UsageError(
            "the lock file does not exist",
            place=path,
            fix=f"create it: gpustate driver solve {policy} -i INVENTORY",
        )
    old = lock_layers.load(path)
    request = Request(loaded, inventory, known=common.known_states(), forks=options["forks"])
    survey = driver_sets.survey(request)
    drivers, troubles = driver_sets.outdated_all(survey, old, clock.now()[:7])
    if output == "json":
        common.write_out(common.as_json(document.outdated_data(drivers, troubles)))
    else:
        common.write_out(printable_lines(document.outdated_text(drivers, troubles)))
    newer = any(driver.allowed for driver in drivers)
    common.finish(
        EXIT_UNREACHABLE if survey.unreachable else 0,
        EXIT_PENDING if detailed_exitcode and newer else 0,
    )
