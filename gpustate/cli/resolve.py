"""``gpustate policy resolve``: a node's effective policy and where each value is set."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import PolicyError, UsageError

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.core.layers import Path
    from gpustate.core.policy import Policy
    from gpustate.core.provenance import Resolution, Value
    from gpustate.plan.render import Page


@click.command()
@click.argument("node", cls=common.PolicyArgument, metavar="[NODE]")
@click.argument("policy", metavar="POLICY", required=False)
@common.inventory_options
@common.policy_options
@common.lock_options
@click.option("--why", metavar="PATH", help="Only this value, with every place that sets it.")
@click.option("--all", "whole", is_flag=True, help="Include defaults.")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def resolve(
    node: str, policy: str | None, why: str | None, whole: bool, output: str, **options: Any
) -> None:
    """Show NODE's effective policy: every value with the file and line that sets it.

    Without NODE: POLICY's states and their values for the fleet, those of its preset included.

    Layers, each of which overrides the ones before it: fleet, groups, node, and in each of these first the
    policy, then the inventory (variable `gpustate`); after them the lock file, then the command line. NODE is
    not contacted.
    """
    from gpustate import policies
    from gpustate.cli.notes import print_notes
    from gpustate.cli.show import show
    from gpustate.core import provenance
    from gpustate.core.inventory import Inventory, InventoryNode
    from gpustate.core.policy import unselected
    from gpustate.engine import gate

    if policy is None and options.get("inventory") and common.changes_of(options):
        try:
            policies.kind(node)
        except PolicyError:
            policy = policies.CHART  # NODE alone
    node, policy = (node, policy) if policy is not None else ("", node)
    loaded = common.load_policy(policy, options, origins=True)
    inventory = _only(node, options) if node else Inventory("", (InventoryNode(""),))
    if node:
        loaded = common.locked(loaded, inventory, policy, options)
    resolved = provenance.resolution(loaded, inventory.nodes[0], common.known_states())
    if resolved.allow:
        gate.refuse_unknown_rules(loaded, inventory.nodes[0], resolved.allow)
    sections = _sections(loaded)
    if why is not None:
        sections = [
            row
            for row in sections
            if f"{row[0]}.".startswith(f"{why}.") or why.startswith(f"{row[0]}.")
        ]
        rows = [] if sections else _values_at(resolved, why)
    else:
        rows = [value for value in resolved.values if whole or value.trace]
    objects = unselected(loaded, inventory.nodes[0])
    if node and objects:
        print_notes(
            [f"{resolved.node}: no driver is for this node, and its own is kept ({objects})"]
        )
    cluster = None if loaded.cluster is None else loaded.cluster.as_data()
    if output == "json":
        document = provenance.as_data(resolved, rows, policy)
        common.write_out(
            common.as_json(document | ({} if cluster is None else {"cluster": cluster}))
        )
    else:
        page = _why_page(rows) if why is not None else _page(resolved, rows)
        for name, value, place in sections:
            text = "defaults" if value in (None, {}) else _short(value)
            page.add(f"  {name}  {text}  ", (place or "policy", "dim"))
        show(page)


#: Keys of ``drain`` that :class:`gpustate.core.drain.EvictionRules` has.
_FOR_BOTH = (("force",), ("delete_empty_dir",), ("timeout_s",), ("pod_selector",))


def _sections(policy: Policy) -> list[tuple[str, Any, str]]:
    """Path, value and place of what a policy says beside its states."""
    from gpustate.manifests.cluster_part import SECTION

    data = {
        "rollout": policy.rollout.as_data(),
        "drain": {} if policy.drain is None else policy.drain.as_data(),
        SECTION: {} if policy.cluster is None else policy.cluster.as_data(),
    }
    places = {path: place for path, place in policy.places.items() if path[0] in data}
    # Values of drains for pods with GPUs and for whole nodes at once.
    for path in [path for path in places if path[0] == "drain" and path[1:2] in _FOR_BOTH]:
        place = places.pop(path)
        places |= {("drain", key): place for key in ("gpu_pods", "node")}
    paths: dict[Path, None] = dict.fromkeys(
        [
            *((section, key) for section, values in data.items() for key in values),
            *(path for path in places if len(path) == 2),
        ]
    )
    if policy.cluster is not None and not any(path[0] == SECTION for path in paths):
        paths[SECTION,] = None
    return [
        (".".join(path), data[path[0]].get(path[-1]), places.get(path) or places.get(path[:1], ""))
        for path in paths
    ]


def _only(name: str, options: dict[str, Any]) -> Inventory:
    loaded = common.load_named(name, options, reach=False)
    if len(loaded.nodes) != 1:
        raise UsageError(f"{name!r} matches {len(loaded.nodes)} nodes", fix="name one node")
    return loaded


def _values_at(result: Resolution, why: str) -> list[Value]:
    """The values at or below a path.

    Raises:
        PolicyError: there are none; the message has the nearest path.
    """
    import difflib

    from gpustate.core.layers import dotted
    from gpustate.formats.words import quote
    from gpustate.policies.strvals import keys

    path = keys(why)
    path = path[1:] if path[:1] == ("states",) else path
    rows = [value for value in result.values if value.path[: len(path)] == path]
    if rows:
        return rows
    states = {value.path[0] for value in result.values}
    if path and path[0] in states:
        names = [dotted(value.path) for value in result.values if value.path[0] == path[0]]
        problem = f"{path[0]} has no value {quote(why)}"
    else:
        names = sorted(states)
        problem = f"the policy has no state {quote(path[0] if path else why)}"
    near = difflib.get_close_matches(why, names, 1)
    raise PolicyError(
        problem,
        place="--why",
        fix=f"did you mean {near[0]}" if near else f"known: {', '.join(names)}",
    )


def _page(result: Resolution, rows: list[Value]) -> Page:
    from gpustate.core.layers import dotted
    from gpustate.formats.masking import mask
    from gpustate.plan.render import Page

    page = Page()
    if result.node:
        page.add((result.node, "bold"), f"  groups: {', '.join(result.groups) or 'none'}")
    else:
        page.add(("fleet", "bold"), "  without groups and nodes")
    listed = {value.path[0] for value in rows}
    names = (*map(dotted, (value.path for value in rows)), *set(result.states).difference(listed))
    width = max(map(len, names), default=0)
    shown_values = {value.path: _short(value.value) for value in rows}
    texts = (*shown_values.values(), *(["defaults"] if len(listed) < len(result.states) else []))
    column = min(40, max(map(len, texts), default=0))
    for state in result.states:
        if state not in listed:
            origin = result.origins.get(state, "")
            page.add(
                "  ",
                (f"{state:<{width}}", "bold"),
                (f"  {'defaults':<{column}}  {origin}".rstrip(), "dim"),
            )
        for value in rows:
            if value.path[0] == state:
                text = (
                    f"  {mask(dotted(value.path)):<{width}}  {shown_values[value.path]:<{column}}  "
                )
                page.add(text, (_origin(value), "dim"))
    for rule, reason in result.allow.items():
        page.add("  allow ", (rule, "bold"), f"  {reason}")
    for note in result.unused:
        page.add(("  " + note, "dim"))
    return page


def _origin(value: Value) -> str:
    if not value.trace:
        return "default"
    last = value.trace[-1]
    place = last.place if last.layer != "command line" else ""
    return f"{last.layer}: {place}" if place else (last.place or last.layer)


def _why_page(rows: list[Value]) -> Page:
    from gpustate.core.layers import REMOVED, dotted
    from gpustate.formats.masking import mask
    from gpustate.plan.render import Page

    page = Page()
    for value in rows:
        page.add((f"{mask(dotted(value.path))} = {_short(value.value)}", "bold"))
        for number, origin in enumerate(reversed(value.trace)):
            word = "removed" if origin.value is REMOVED else _short(origin.value)
            style = "" if number == 0 else "dim"
            place = f"  {origin.place}" if origin.place else ""
            page.add("  ", (f"{origin.layer}: {word}{place}", style))
        default = "" if value.default is REMOVED else _short(value.default)
        if default:
            page.add("  ", (f"default: {default}", "dim" if value.trace else ""))
    return page


def _short(value: Any) -> str:
    """A value as YAML, on one line."""
    import json

    from gpustate.formats import openpgp
    from gpustate.formats.masking import mask_data
    from gpustate.formats.words import printable

    if isinstance(value, str) and openpgp.BEGIN in value:
        with suppress(ValueError):
            return f"PGP key {', '.join(openpgp.fingerprints(value))}"
    return printable(json.dumps(mask_data(value), ensure_ascii=False))
