"""The settings of a policy's objects of a cluster as they are applied, images included; nothing is contacted."""

from __future__ import annotations

from dataclasses import replace

from gpustate.core.policy import Policy
from gpustate.errors import UsageError
from gpustate.gpu_operator import history
from gpustate.gpu_operator.objects import images, nfd_values
from gpustate.manifests.build import with_images
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.components import PARTS
from gpustate.manifests.settings import ClusterSettings


def object_settings(policy: Policy, source: str = "", *, release: str = "") -> ClusterSettings:
    """The settings of a policy, with what is given beside it.

    Args:
        policy: with settings of objects.
        source: of the policy, for messages.
        release: of the Operator, whose images are the defaults; empty: the policy's, or the newest.

    Raises:
        UsageError: the policy has none, or a component is a state of all nodes and runs as containers there too.
        PolicyError: a value is not what it has to be.
    """
    if policy.cluster is None:
        raise UsageError(
            "the policy has no objects of a cluster",
            place=source,
            fix="add `cluster: {}` to it, cluster=ClusterSettings() in Python, or use a ClusterPolicy",
        )
    settings = settings_of(policy)
    release = policy.release or (history.release(release) if release else "")
    if settings.install_nfd and settings.node_feature_discovery is None:
        settings = replace(settings, node_feature_discovery=nfd_values(release))
    everywhere = {state.name for state in policy.states if not state.absent and state.only is None}
    for part in PARTS:
        if part.replaces and part.host_state in everywhere and part.settings(settings).enabled:
            raise UsageError(
                f"{part.name} runs as containers, and the policy has the state {part.host_state} on the same nodes",
                fix=f"remove one of them, or give the state {part.host_state} a condition with only",
            )
    return with_images(settings, images(release))
