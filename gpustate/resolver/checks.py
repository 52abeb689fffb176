"""What the package side of a policy adds to the engine's own checks of a node."""

from __future__ import annotations

from gpustate.core.policy import Policy
from gpustate.engine.gate import NodeCheck


def node_checks(policy: Policy) -> tuple[NodeCheck, ...]:
    """Checks of nodes that this policy is for: of one with a bundle, that it holds every package they need."""
    if not any(state.brings_bundle for state in policy.states):
        return ()
    # Readers of bundles and repositories are needed by few runs.
    from gpustate.resolver.bundle_nodes import lacking

    return (lacking,)


__all__ = ["node_checks"]
