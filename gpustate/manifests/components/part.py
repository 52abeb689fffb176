"""What a component of a cluster is to those that build all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpustate.documents import Json
from gpustate.manifests import workloads
from gpustate.manifests.settings import ClusterSettings, Component


def _no_values(settings: ClusterSettings) -> Json:
    return {}


@dataclass(frozen=True, slots=True)
class Part:
    """One component.

    Args:
        name: its section in a ClusterPolicy, by which its image is looked up.
        field: of :class:`ClusterSettings`, with its settings, and name of the file in ``data`` with its objects.
        node_label: the label of Nodes on which its pods run.
        host_state: the state that does the same as a service of a node, where the pods do not run then.
        machines: its pods run on Nodes whose GPUs are for virtual machines, and on no others.
        claims: where a DRA driver offers the GPUs, the pods claim them, and :func:`by_claim` names the objects.
        partitions: its pods run only on Nodes with GPUs that can be partitioned, which are labelled elsewhere.
        replaces: it and its host state on one node would damage each other.
        values: what the policy decides for its file, beside the settings themselves.
        build: its objects, of the settings and the image, where one file does not suffice.
    """

    name: str
    field: str
    node_label: str
    host_state: str = ""
    machines: bool = False
    claims: bool = False
    partitions: bool = False
    replaces: bool = False
    values: Callable[[ClusterSettings], Json] = _no_values
    build: Callable[[ClusterSettings, str], Iterator[Json]] | None = None

    def settings(self, cluster: ClusterSettings) -> Component:
        """Its settings; of several the first."""
        component: Component | tuple[Component, ...] = getattr(cluster, self.field)
        if isinstance(component, tuple):
            return component[0] if component else Component(enabled=False)
        return component

    def objects(self, cluster: ClusterSettings, image: str) -> Iterator[Json]:
        """Its objects."""
        if self.build is not None:
            return self.build(cluster, image)
        name, values = self.field.replace("_", "-"), self.values(cluster)
        if self.claims:
            values = {"name": by_claim(cluster, f"nvidia-{name}"), **values}
        return workloads.objects(name, cluster, self.settings(cluster), image, values)


def by_claim(settings: ClusterSettings, name: str) -> str:
    """The name of an object or label of a component that claims GPUs where a DRA driver offers them."""
    return f"{name}-dra" if settings.dra_driver.enabled else name
