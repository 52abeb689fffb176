"""The clusters of a lab: Kubernetes, Slurm, or both.

Each is a module with an implementation of :class:`Cluster`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gpustate_lab import slurm
from gpustate_lab.kubernetes import cluster as kubernetes
from gpustate_lab.record import Lab
from gpustate_lab.spec import LabSpec

Say = Callable[[str], None]


class Cluster(Protocol):
    """A scheduler with control processes on the controller and daemons on the nodes."""

    def start(self, say: Say) -> None:
        """Start missing processes and write the files that nodes need at boot; do not wait."""
        ...

    def up(self, say: Say) -> None:
        """Start the rest and wait until every node has joined; idempotent."""
        ...

    @property
    def running(self) -> bool:
        """Whether all processes on the controller are running."""
        ...

    def down(self) -> list[str]:
        """Stop the cluster in any state; return one line for each removed object."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return its keys of the lab's entry in ``gpustate lab list -o json``."""
        ...


def prepare(spec: LabSpec, say: Say) -> None:
    """Build the programs of the clusters before the lab is created.

    Raises:
        LabError: a program is neither available nor can be built.
    """
    if spec.kubernetes:
        kubernetes.prepare(spec, say)


def of(lab: Lab) -> tuple[Cluster, ...]:
    """Return the clusters of a lab."""
    clusters: list[Cluster] = []
    if lab.spec.kubernetes:
        clusters.append(kubernetes.Kubernetes(lab))
    if lab.head is not None:
        clusters.append(slurm.Slurm(lab, lab.head))
    return tuple(clusters)


def variables(lab: Lab) -> dict[str, str]:
    """Return inventory variables for every node.

    ``gpustate_kubeconfig`` is the administrator's. ``gpustate_slurm_host`` is the address of the machine with
    slurmctld, which accepts the same user and key as the nodes. It is no host of the inventory, since policies
    must not apply to it.
    """
    values: dict[str, str] = {}
    if lab.spec.kubernetes:
        values["gpustate_kubeconfig"] = str(kubernetes.Kubernetes(lab).layout.user_file("admin"))
    if lab.head is not None:
        values["gpustate_slurm_host"] = lab.head.address
    return values
