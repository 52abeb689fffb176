"""``gpustate render``: print the objects of a policy's cluster as YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import admission, common, notes
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpustate.core.policy import Policy
    from gpustate.manifests import ClusterSettings

namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    help="Namespace of the cluster's objects [default: the policy's, gpu-operator for an Operator file].",
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
@admission.startup_taint_option
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
    from gpustate.formats.yaml_events import dump_objects
    from gpustate.manifests.build import build

    if out is not None:
        common.check_out(out)
    loaded = common.load_policy(policy, options)
    notes.report_warnings(loaded)
    settings = given_settings(loaded, policy, options)
    found = build(pinned(loaded, admission.with_taint(settings, options), options), {})
    if output == "json":
        common.write_out(common.as_json({"apiVersion": "v1", "kind": "List", "items": found}), out)
    else:
        common.write_out(dump_objects(found), out)


def given_settings(policy: Policy, source: str, options: Mapping[str, Any]) -> ClusterSettings:
    """The settings of the cluster's objects in a policy, and in the options of a verb.

    Raises:
        UsageError: it has none.
    """
    from dataclasses import replace

    from gpustate.manifests.cluster_part import settings_of

    if policy.cluster is None:
        raise UsageError(
            "the policy has no objects of a cluster",
            place=source,
            fix="add `cluster: {}` to it, cluster=ClusterSettings() in Python, or use a ClusterPolicy",
        )
    settings = settings_of(policy)
    if options.get("namespace"):
        settings = replace(settings, namespace=options["namespace"])
    if options.get("install_nfd") and settings.node_feature_discovery is None:
        from gpustate.gpu_operator.objects import nfd_values

        values = nfd_values(_release(policy, options))
        settings = replace(settings, node_feature_discovery=values)
    return settings


def refuse_both(policy: Policy, settings: ClusterSettings) -> None:
    """Refuse a component that is a state of all nodes and runs as containers there too.

    Raises:
        UsageError: with both names.
    """
    from gpustate.manifests.components import PARTS

    everywhere = {one.name for one in policy.states if not one.absent and one.only is None}
    for part in PARTS:
        if part.replaces and part.host_state in everywhere and part.settings(settings).enabled:
            raise UsageError(
                f"{part.name} runs as containers, and the policy has the state {part.host_state} on the same nodes",
                fix=f"remove one of them, or give the state {part.host_state} a condition with only",
            )


def pinned(
    policy: Policy, settings: ClusterSettings, options: Mapping[str, Any]
) -> ClusterSettings:
    """The settings with all images, by default those of the policy's release of the Operator."""
    from gpustate.gpu_operator.objects import images
    from gpustate.manifests.build import with_images

    refuse_both(policy, settings)
    return with_images(settings, images(_release(policy, options)))


def _release(policy: Policy, options: Mapping[str, Any]) -> str:
    """The release of the Operator that a policy is for; empty: the newest."""
    from gpustate.gpu_operator import history

    release = policy.release
    if not release and options.get("release"):
        release = history.release(options["release"])
    return release
