"""What stands over the nodes of a lab: a Kubernetes cluster, a Slurm cluster, or both.

Each is a module that follows :class:`Cluster`; this one says which of them a lab has.
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
    """One scheduler with its control processes on the controller and its daemons on the nodes."""

    def start(self, say: Say) -> None:
        """Start what does not run and write what nodes need, before they boot; wait for nothing."""
        ...

    def up(self, say: Say) -> None:
        """Start the rest and wait until every node has joined; may be called again."""
        ...

    @property
    def running(self) -> bool:
        """Whether all of its processes on the controller run."""
        ...

    def down(self) -> list[str]:
        """End it, whatever state it is in; one line for each thing that was removed."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its keys of a lab's entry in ``gpustate lab list -o json``."""
        ...


def prepare(spec: LabSpec, say: Say) -> None:
    """Build the programs that the clusters need, before anything of the lab is made.

    Raises:
        LabError: a program can neither be found nor built.
    """
    if spec.kubernetes:
        kubernetes.prepare(spec, say)


def of(lab: Lab) -> tuple[Cluster, ...]:
    """The clusters that the lab's specification asks for."""
    clusters: list[Cluster] = []
    if lab.spec.kubernetes:
        clusters.append(kubernetes.Kubernetes(lab))
    if lab.head is not None:
        clusters.append(slurm.Slurm(lab, lab.head))
    return tuple(clusters)


def variables(lab: Lab) -> dict[str, str]:
    """Variables of the inventory for every node.

    ``gpustate_kubeconfig`` is the administrator's. ``gpustate_slurm_host`` is the address of the machine
    with slurmctld: none of the inventory's hosts, for no policy is meant for it, but it takes the same
    user and key as they do.
    """
    found: dict[str, str] = {}
    if lab.spec.kubernetes:
        found["gpustate_kubeconfig"] = str(kubernetes.Kubernetes(lab).layout.user_file("admin"))
    if lab.head is not None:
        found["gpustate_slurm_host"] = lab.head.address
    return found
