"""``gpustate policy graph``: show the dependency graph of states and the reason for each edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, notes
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.core.policy import Policy, Resolved
    from gpustate.graph.about import About
    from gpustate.graph.build import Graph

FORMATS = click.Choice(["text", "json", "dot", "mermaid"])


@click.command()
@click.argument("policy", cls=common.PolicyArgument, required=False)
@click.option("--all", "whole", is_flag=True, help="Every registered state instead of a policy.")
@click.option("--node", metavar="NODE", help="Show it for this node of the inventory.")
@click.option(
    "-i",
    "--inventory",
    metavar="SOURCE",
    envvar="GPUSTATE_INVENTORY",
    help="Inventory, for --node and the policy's groups and nodes: a file, a directory, an executable, a list a,b,c, kubernetes:KUBECONFIG or slurm:HOST.",
)
@common.policy_options
@click.option("-o", "--output", type=FORMATS, default="text", show_default=True)
def graph(policy: str | None, whole: bool, node: str | None, output: str, **options: Any) -> None:
    """Show the dependency graph of POLICY's states and the reason for each edge.

    No node is contacted. With --node, the inventory's groups and variables apply; conditions that
    depend on a probe (which GPUs a node has) are shown as conditions.
    """
    from gpustate.graph import draw

    if (policy is None) == (not whole):
        raise UsageError(
            "no policy", fix="name one, or show every registered state: gpustate policy graph --all"
        )
    if whole and node is not None:
        raise UsageError("--all and --node contradict each other", fix="give a policy with --node")
    made, about = _of_all() if whole else _of_policy(str(policy), node, options)
    if output == "json":
        common.write_out(common.as_json(draw.as_data(made, about)))
    else:
        text = {"text": draw.as_text, "dot": draw.as_dot, "mermaid": draw.as_mermaid}
        common.write_out(text[output](made, about))


def _of_all() -> tuple[Graph, dict[str, About]]:
    from gpustate import registry
    from gpustate.core.policy import build as build_state
    from gpustate.graph.about import of_states
    from gpustate.graph.build import build

    states = [build_state(cls, {}) for cls in registry.states().values()]
    return build(states, common.known_states()), of_states(states)


def _of_policy(
    source: str, node: str | None, options: dict[str, Any]
) -> tuple[Graph, dict[str, About]]:
    from gpustate.graph.about import of_states
    from gpustate.graph.build import build, reverse

    policy = common.load_policy(source, options, origins=True)
    states, left_out = policy.states, dict[str, str]()
    if node is not None or options["inventory"] is not None:
        inventory = common.load_inventory(options, reach=False)
        notes.report_unknown_targets(inventory, policy, source, options)
        if node is not None:
            resolved = _resolved(policy, node, inventory, options)
            states, left_out = resolved.states, _left_out(resolved)
    places = {state.name: _place(policy, state.name) for state in states}
    built = build(states, common.known_states(), places=places)
    if states and all(state.absent for state in states):
        built = reverse(built)
    return built, of_states(states, places, left_out)


def _place(policy: Policy, state: str) -> str:
    """File and line of a state, if the policy's loader knows them."""
    path = ("states", state)
    # A file of the Operator has only places of parameters; the first one is taken.
    first = next((at for key, at in policy.places.items() if key[:2] == path), "")
    return policy.places.get(path) or first or policy.places.get(path[:1], "")


def _resolved(policy: Policy, node: str, inventory: Inventory, options: dict[str, Any]) -> Resolved:
    from gpustate.core.policy import resolve
    from gpustate.formats.words import quote

    for listed in inventory:
        if listed.name == node:
            return resolve(policy, listed, common.known_states())
    raise UsageError(
        f"no node {quote(node)} in the inventory",
        fix=f"list its nodes: gpustate facts -i {options['inventory']}",
    )


class _Unprobed:
    """Facts of a node that was not probed."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


def _left_out(resolved: Resolved) -> dict[str, str]:
    """States whose condition is false by the node's name, groups and variables alone."""
    from gpustate.core.facts import NodeView

    node = resolved.node
    unprobed: Any = _Unprobed()
    view = NodeView(node.name, node.groups, node.vars, unprobed)
    reasons: dict[str, str] = {}
    for state in resolved.states:
        if state.only is None:
            continue
        try:
            if not state.only.holds(view):
                reasons[state.name] = f"only where {state.only.text}"
        except LookupError:
            continue  # it depends on a probe
    return reasons
