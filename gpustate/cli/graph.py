"""``gpustate graph``: the order of states, and why."""

from __future__ import annotations

import click

from gpustate.cli import common
from gpustate.errors import UsageError


@click.command()
@click.argument("policy", required=False)
@click.option("--all", "whole", is_flag=True, help="Every registered state instead of a policy.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "dot", "mermaid"]),
    default="text",
    show_default=True,
)
def graph(policy: str | None, whole: bool, output: str) -> None:
    """Show the order of POLICY's states, and why each is where it is."""
    from gpustate import registry
    from gpustate.graph import draw
    from gpustate.graph.build import build
    from gpustate.model.policy import build as build_state

    if (policy is None) == (not whole):
        raise UsageError("give a policy, or --all for every registered state")
    if whole:
        states = [build_state(cls, {}) for cls in registry.states().values()]
    else:
        states = list(common.load_policy(str(policy)).states)
    made = build(states, common.known_states())
    if output == "json":
        common.write_out(common.as_json(draw.as_data(made)))
        return
    about = {
        s.name: (type(s).__doc__ or "").strip().splitlines()[0] for s in states if type(s).__doc__
    }
    text = {
        "text": lambda: draw.as_text(made, about),
        "dot": lambda: draw.as_dot(made),
        "mermaid": lambda: draw.as_mermaid(made),
    }
    common.write_out(text[output]())
