"""``gpustate cluster render``: print the objects of a policy's cluster as YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common, notes
from gpustate.manifests.settings import STARTUP_TAINT

if TYPE_CHECKING:
    from collections.abc import Mapping


namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    help="Namespace of the cluster's objects [default: the policy's, gpu-operator for an Operator file].",
)

startup_taint_option = click.option(
    "--startup-taint",
    metavar="KEY",
    help=f"Key of a taint that your kubelets or node groups give new Nodes: components tolerate it, and it is removed once a Node passes validation [default: the policy's, {STARTUP_TAINT}].",
)


@click.command()
@common.policy_argument
@common.policy_options
@namespace_option
@click.option(
    "--install-nfd",
    is_flag=True,
    help="Include node feature discovery [default: as Helm values say].",
)
@startup_taint_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Documents in YAML, or one List in JSON.",
)
@click.option(
    "--out", metavar="FILE", type=click.Path(dir_okay=False), help="Write to a file, atomically."
)
def render(policy: str, output: str, out: str | None, **options: Any) -> None:
    """Print the Kubernetes objects of POLICY, for GitOps; no cluster is contacted.

    The objects are those that `gpustate apply --cluster-objects` applies, in that order. Equal policies
    result in equal bytes.
    """
    from gpustate.api.cluster_settings import object_settings
    from gpustate.formats.yaml_events import dump_objects
    from gpustate.manifests.build import build

    if out is not None:
        common.check_out(out)
    loaded = common.load_policy(policy, options)
    notes.report_warnings(loaded)
    found = build(object_settings(loaded, policy, **settings_options(options)), {})
    if output == "json":
        common.write_out(common.as_json({"apiVersion": "v1", "kind": "List", "items": found}), out)
    else:
        common.write_out(dump_objects(found), out)


def settings_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the options of a verb say about the settings."""
    names = ("namespace", "install_nfd", "startup_taint", "release")
    return {name: options[name] for name in names if options.get(name)}
