"""The Nodes of a cluster: which machine each is, who took it out of service, and what gpustate recorded on it.

What is shown in a plan comes from one list per kind and run; a Node is read again before it is written.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpustate.cluster import pods as cluster_pods
from gpustate.cluster.api import Api, RefusedRequest
from gpustate.core.facts import NodeFacts
from gpustate.documents import Json
from gpustate.errors import ClusterError, RefusedError
from gpustate.manifests.ownership import FIELD_MANAGER
from gpustate.schedulers import eviction, foreign
from gpustate.schedulers.base import Hold, Member, NotMemberError
from gpustate.schedulers.kubernetes.rights import Rights
from gpustate.schedulers.node_events import NodeEvents
from gpustate.schedulers.nvidia_pods import FOR_DRIVER, NvidiaPods

#: The annotation of a Node that has the record of our hold, as JSON.
HOLD = "gpustate.io/hold"
_FAILED_S = 30.0


@dataclass(slots=True)
class _Lists:
    """What one run has listed."""

    nodes: list[Json]
    index: cluster_pods.NodeIndex
    maintenances: list[Json]


class Nodes:
    """The Nodes of one cluster.

    Args:
        api: access to it.
        rights: of its user.
        sleep: waits so many seconds.
        clock: seconds, monotonic.
    """

    def __init__(
        self, api: Api, rights: Rights, sleep: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self.api, self.title = api, rights.title
        self.sleep, self.clock = sleep, clock
        self.events = NodeEvents(api)
        self.nvidia_pods = NvidiaPods(api, FOR_DRIVER, sleep, clock)
        self._rights = rights
        self._lock = threading.Lock()
        self._lists: _Lists | None = None
        self._failed = (float("-inf"), ClusterError(""))
        self._daemon_sets: list[Json] | None = None
        #: As they were last written or read for it.
        self.written: dict[str, Json] = {}
        #: Of Nodes whose kubelets report that of their machine: as it was when the run began.
        self.boot_ids: dict[str, str] = {}

    def _listed(self) -> _Lists:
        with self._lock:
            if self._lists is None:
                if self.clock() < self._failed[0]:
                    raise self._failed[1]
                try:
                    nodes = self.api.nodes()
                    maintenances = self.api.maintenances()
                except RefusedRequest as error:
                    if error.status == 403:
                        self._rights.check()
                    raise self._rights.denied(error) from None
                except ClusterError as error:
                    # The other nodes of the run do not wait for it one after the other.
                    self._failed = (self.clock() + _FAILED_S, error)
                    raise
                self._lists = _Lists(nodes, cluster_pods.NodeIndex(nodes), maintenances)
            return self._lists

    @cached_property
    def _has_operator(self) -> bool:
        """A GPU Operator may be at work: the cluster has a ClusterPolicy, or does not say."""
        try:
            return bool(self.api.get("apis/nvidia.com/v1/clusterpolicies")["items"])
        except ClusterError as error:
            return not isinstance(error, RefusedRequest) or error.status != 404

    @property
    def listed(self) -> list[Json]:
        """All Nodes, if they were listed already; else empty."""
        with self._lock:
            return [] if self._lists is None else self._lists.nodes

    def list_maintenances(self) -> None:
        """List again who else maintains Nodes."""
        self._listed().maintenances = self.api.maintenances()

    def members(self, *, fresh: bool = False) -> Sequence[Member]:
        """Every Node."""
        nodes = self.api.nodes() if fresh else self._listed().nodes
        return [self.describe(node) for node in nodes]

    def member(self, facts: NodeFacts, name: str) -> Member:
        """The Node that is this machine.

        Raises:
            NotMemberError: there is none.
            RefusedError: more than one may be it.
        """
        machine = cluster_pods.Machine(facts.boot_id, facts.machine_id, facts.system_uuid)
        try:
            node = self._listed().index.match(machine, any_boot=True)
        except cluster_pods.Verdict as verdict:
            unregistered = isinstance(verdict, cluster_pods.Unregistered)
            raise (NotMemberError if unregistered else RefusedError)(
                f"{name}: {self.title}: {verdict.check.evidence}", fix=verdict.check.remedy
            ) from None
        name = node["metadata"]["name"]
        if facts.boot_id == boot_id_of(node):
            self.boot_ids.setdefault(name, facts.boot_id)
        return self.describe(self.written.get(name, node))

    def describe(self, node: Json) -> Member:
        """A Node as a member."""
        hold = read_hold(node)
        name = node["metadata"]["name"]
        cordoned = bool((node.get("spec") or {}).get("unschedulable"))
        holders = foreign.holders(
            node,
            held=hold is not None,
            own_manager=FIELD_MANAGER,
            maintenances=self._listed().maintenances,
            operator=lambda: self._has_operator,
        )
        return Member(
            name,
            ready=eviction.is_ready(node),
            schedulable=not cordoned,
            hold=hold,
            foreign=holders,
            foreign_since=foreign.cordon(node)[0] if holders and cordoned else "",
            not_ready_since=eviction.not_ready_since(node),
            undo=f"kubectl uncordon {name}" if holders and cordoned else "",
            gpus=sum(cluster_pods.allocatable(node).values()),
            counts=cluster_pods.has_gpus(node),
        )

    def report(self, name: str, reason: str, text: str) -> None:
        """Record an Event on a Node."""
        for node in self._listed().nodes:
            if node["metadata"]["name"] == name:
                self.events.record(node, reason, text)

    def held(self) -> frozenset[str]:
        """Names and addresses of the Nodes that runs of gpustate hold."""
        holds = ((node, read_hold(node)) for node in self._listed().nodes)
        return frozenset(
            name
            for node, hold in holds
            if hold is not None and hold.phase != "left"
            for name in cluster_pods.names_of(node)
        )

    def by_name(self) -> dict[str, Json]:
        """All Nodes, by every name and address that they have.

        Raises:
            ClusterError: they cannot be listed.
        """
        nodes: dict[str, Json] = {}
        for node in self._listed().nodes:
            for name in cluster_pods.names_of(node):
                nodes.setdefault(name, node)
        return nodes

    def daemon_sets(self) -> list[Json]:
        """The DaemonSets of the cluster, listed once in a run.

        Raises:
            ClusterError: they cannot be listed.
        """
        with self._lock:
            if self._daemon_sets is None:
                self._daemon_sets = self.api.daemon_sets()
            return self._daemon_sets


def boot_id_of(node: Json) -> str:
    """The boot of its machine that a kubelet has reported last."""
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "").lower()


def read_hold(node: Json) -> Hold | None:
    """The record of our hold on a Node; one that cannot be read is a hold of an unknown run."""
    text = (node["metadata"].get("annotations") or {}).get(HOLD)
    if not text:
        return None
    try:
        data = json.loads(text)
        return Hold(**{key: data[key] for key in Hold.__slots__ if key in data})
    except (ValueError, KeyError, TypeError):
        return Hold("", "", "an unreadable record", "held", "")
