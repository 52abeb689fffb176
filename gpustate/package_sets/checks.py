"""Checks of a node's packages, in addition to the engine's own checks."""

from __future__ import annotations

from gpustate.core.policy import Policy
from gpustate.engine.gate import NodeCheck


def node_checks(policy: Policy) -> tuple[NodeCheck, ...]:
    """Checks for nodes of a policy: with a bundle, that it has all packages they need."""
    if not any(state.brings_bundle for state in policy.states):
        return ()
    # Imported here because few runs need bundles and repositories.
    from gpustate.package_sets.bundle_nodes import lacking

    return (lacking,)


__all__ = ["node_checks"]
