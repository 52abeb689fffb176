"""``gpustate driver solve``: resolve a driver package set for each node and write the lock file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, notes, rules
from gpustate.errors import EXIT_PENDING, EXIT_REFUSED, EXIT_UNREACHABLE

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory


@click.command()
@common.policy_argument
@common.inventory_options
@common.lock_path_option
@click.option(
    "--update", is_flag=True, help="Update to the newest versions; otherwise locked versions stay."
)
@click.option("--prune", is_flag=True, help="Remove nodes that are no longer in the inventory.")
@click.option("--check", is_flag=True, help="Write nothing; exit 2 if the lock file would change.")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def solve(
    policy: str,
    path: str | None,
    update: bool,
    prune: bool,
    check: bool,
    output: str,
    **options: Any,
) -> None:
    """Resolve a driver package set for each node and write it to the lock file.

    A set has to be offered by the node's repositories and accepted by the compatibility matrix. Nodes
    are not changed. Locked sets stay until --update; new nodes, and nodes whose policy changed, are
    resolved. If there is no solution (exit 5), what excludes the requested drivers is shown and
    nothing is written.
    """
    from gpustate.engine.fleet import Request
    from gpustate.formats.words import printable_lines
    from gpustate.package_sets import driver_sets, lock_layers
    from gpustate.solve import document

    rules.read()
    loaded = common.load_policy(policy)
    inventory = common.load_inventory(options)
    notes.report_unknown_targets(inventory, loaded, policy, options)
    path = path or lock_layers.lock_path(policy)
    common.check_out(path)
    old = lock_layers.load_if_there(path)
    request = Request(loaded, inventory, known=common.known_states(), forks=options["forks"])
    survey = driver_sets.survey(request)
    removed = _gone(old.by_node(), inventory, options)
    solved = driver_sets.resolve_all(
        survey, old, update=survey.cases if update else (), absent_nodes=removed if prune else ()
    )
    changed = solved.lock.sets != old.sets
    written = changed and not solved.refused
    if written and not check:
        lock_layers.save(solved.lock, path)
    troubles = {
        "refused": solved.refused,
        "unreachable": survey.unreachable,
        "skipped": survey.skipped,
    }
    show = document.solve_data if output == "json" else document.solve_text
    page: Any = show(
        solved.resolutions,
        troubles,
        path=path,
        changed=written,
        absent_nodes=removed,
        pruned=prune and not solved.refused,
    )
    common.write_out(common.as_json(page) if output == "json" else printable_lines(page))
    common.finish(
        EXIT_REFUSED if solved.refused else 0,
        EXIT_UNREACHABLE if survey.unreachable else 0,
        EXIT_PENDING if check and changed else 0,
    )


def _gone(locked: Iterable[str], inventory: Inventory, options: dict[str, Any]) -> list[str]:
    """Nodes of the lock file that are no longer in the whole inventory, regardless of ``--limit``."""
    from gpustate.inventory import load

    listed = inventory
    if options.get("limit"):
        listed = load(options["inventory"])
    return sorted({*locked} - {node.name for node in listed.nodes})
