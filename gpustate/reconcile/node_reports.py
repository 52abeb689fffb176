"""What a run says about Nodes, written on them: the condition ``GPUHealthy``, start-up taints, plugins that restart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from gpustate import clock
from gpustate.cluster.api import connected
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.cluster.node_status import NodeStatusApi, condition_of
from gpustate.core.outcome import NodeResult
from gpustate.documents import JsonView
from gpustate.errors import ClusterError
from gpustate.reconcile.admission import Admission, Admitted
from gpustate.reconcile.nodes import members
from gpustate.reconcile.plugin_restart import PluginRestart
from gpustate.reconcile.verdicts import Verdict, not_offered, of_result

T = TypeVar("T")


def admit(
    kubeconfig: Kubeconfig,
    results: Iterable[NodeResult],
    *,
    taint: str = "",
    offers_gpus: bool = False,
    blocked: str = "",
    fresh: bool = False,
    stop: Callable[[], bool] = lambda: False,
    without_plugin: Mapping[str, str] = MappingProxyType({}),
) -> Admitted:
    """Report on the Nodes of one cluster what a run says about their GPUs, and lift start-up taints.

    Args:
        kubeconfig: of the cluster.
        results: machines of the run; those of other clusters are skipped.
        taint: key of the start-up taint; empty: taints are left alone.
        offers_gpus: a Node is admitted only when it offers GPUs.
        blocked: why no Node is admitted.
        fresh: the run has validated every node.
        stop: polled; once true, nothing is waited for.
        without_plugin: Nodes that get no pod that offers GPUs, and why.

    Raises:
        ClusterError: the Nodes cannot be listed.
    """
    judged = [
        (result, verdict) for result in results if (verdict := of_result(result, fresh=fresh))
    ]
    with connected(kubeconfig) as connection:
        api = NodeStatusApi(connection)
        by_name = {result.name: verdict for result, verdict in judged}
        nodes = members(api.nodes(), [result for result, _ in judged])
        admission = Admission(api, clock.now(), taint, offers_gpus, blocked, stop=stop)
        rows = [(member, by_name[member.result.name]) for member in nodes]
        admitted = admission.report(
            [
                (member.node, not_offered(verdict, without_plugin.get(member.name, "")))
                for member, verdict in rows
            ]
        )
        admitted.names = {member.result.name: member.name for member in nodes}
        return admitted


def withdraw(kubeconfig: Kubeconfig, excluded: Collection[str] = ()) -> Admitted:
    """Remove gpustate's condition from all Nodes of a cluster but those that are kept.

    Raises:
        ClusterError: the Nodes cannot be listed.
    """
    with connected(kubeconfig) as connection:
        api = NodeStatusApi(connection)
        nodes = [node for node in api.nodes() if node["metadata"]["name"] not in excluded]
        return Admission(api, clock.now()).withdraw(nodes)


def report(
    kubeconfig: Kubeconfig,
    results: Sequence[tuple[NodeResult, T]],
    judge: Callable[[T, JsonView | None], Verdict | None],
) -> Admitted:
    """Write the condition on the Nodes of one cluster.

    Args:
        kubeconfig: of the cluster.
        results: machines, with what is known of each.
        judge: the condition, by what is known and the one that the Node has; ``None``: it stays.

    Raises:
        ClusterError: the Nodes cannot be listed.
    """
    with connected(kubeconfig) as connection:
        api = NodeStatusApi(connection)
        by_name = {result.name: of_machine for result, of_machine in results}
        nodes = members(api.nodes(), [result for result, _ in results])
        rows = [
            (member.node, verdict)
            for member in nodes
            if (verdict := judge(by_name[member.result.name], condition_of(member.node)))
        ]
        admitted = Admission(api, clock.now()).report(rows)
        admitted.names = {member.result.name: member.name for member in nodes}
        return admitted


def quarantine_changed(result: NodeResult) -> bool:
    """Whether a run has changed which GPUs of a node are in quarantine."""
    return any(
        state.state == "quarantine" and state.outcome.value == "changed" for state in result.states
    )


def restart_plugins(
    kubeconfig: Kubeconfig, results: Sequence[NodeResult], stop: Callable[[], bool] = lambda: False
) -> Iterator[tuple[str, bool, str]]:
    """Restart the device plugin on the Nodes of machines whose list of quarantined GPUs has changed.

    Returns:
        The machine, whether its list is in effect, and what happened.
    """
    try:
        with connected(kubeconfig) as api:
            for member in members(api.nodes(), results):
                try:
                    in_effect, words = PluginRestart(api, stop=stop).restart(member.name)
                except ClusterError as error:
                    in_effect, words = False, f"the device plugin is not restarted: {error}"
                yield member.result.name, in_effect, words
    except ClusterError as error:
        for result in results:
            yield result.name, False, f"the device plugin is not restarted: {error}"
