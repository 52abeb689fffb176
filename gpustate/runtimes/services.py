"""Which container runtimes' services a node has, and whether a disabled one is to run all the same.

A disabled service is intended where another runtime works: distributions install containerd beside CRI-O, k3s brings
its own. Where no other one is enabled or runs, no container gets a GPU, although the policy registers a handler.

Surprising: docker with its socket enabled starts at its first use, whether or not its service is enabled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpustate.formats.systemd import Unit

#: The services that run containers, and the socket that starts one of them.
SERVICES = (
    *("containerd.service", "docker.service", "docker.socket", "crio.service"),
    *("k3s.service", "k3s-agent.service", "rke2-server.service", "rke2-agent.service"),
    *("k0sworker.service", "k0scontroller.service", "snap.microk8s.daemon-containerd.service"),
)


def is_needed(units: Mapping[str, Unit], own_units: Collection[str], *, configured: bool) -> bool:
    """Whether a runtime that is stopped and disabled is to run all the same.

    Args:
        units: the services of :data:`SERVICES` on the node.
        own_units: those that belong to the runtime itself.
        configured: gpustate has had it read the handler, so it did run.
    """
    other_units = [u for n, u in units.items() if n not in own_units and u.load_state == "loaded"]
    if any(unit.active or unit.enabled for unit in other_units):
        return False
    # Of several that are all disabled, nobody knows which one the node is to have.
    return configured or all(unit.name.endswith(".socket") for unit in other_units)
