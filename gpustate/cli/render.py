"""``gpustate cluster render``: print the objects of a policy's cluster as YAML."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common, notes


@click.command()
@common.policy_argument
@common.change_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Documents in YAML, or one List in JSON.",
)
@common.out_option("Write to a file, atomically.")
def render(policy: str, output: str, out: str | None, **options: Any) -> None:
    """Print the Kubernetes objects of POLICY, for GitOps; no cluster is contacted.

    The objects are those that `gpustate apply --cluster-objects` applies, in that order. Equal policies
    result in equal bytes. POLICY needs `cluster:` (may be {}), or is a ClusterPolicy.
    """
    from gpustate.api.cluster_settings import object_settings
    from gpustate.formats.yaml_events import dump_objects
    from gpustate.manifests.build import build

    if out is not None:
        common.check_out(out)
    loaded = common.load_policy(policy, options)
    notes.report_warnings(loaded)
    items = build(object_settings(loaded, policy, release=options["release"] or ""), {})
    if output == "json":
        common.write_out(common.as_json({"apiVersion": "v1", "kind": "List", "items": items}), out)
    else:
        common.write_out(dump_objects(items), out)
