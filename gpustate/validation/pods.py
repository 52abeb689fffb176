"""The check ``pod`` of ``gpustate validate``: a pod on a node with a kubelet gets its GPUs.

The node makes the image and its container runtime pulls it from there; everything else goes through the API of
the cluster that the inventory, or the command line, names.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpustate.cluster import pods, podtest
from gpustate.cluster.api import Api, connect
from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.core.encode import plain
from gpustate.core.inventory import InventoryNode
from gpustate.core.node import Node
from gpustate.core.outcome import NodeResult
from gpustate.diagnosis.chain import Check
from gpustate.documents import Json
from gpustate.engine import fleet
from gpustate.engine.probing import query_node
from gpustate.errors import ClusterError, GpustateError
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.nodeside import container_hooks
from gpustate.nodeside.container_validation import CONTAINERD_SOCKET, CRIO_SOCKET
from gpustate.nodeside.pod_image import MARK
from gpustate.probes import cri_status
from gpustate.probes.excluded_gpus import ExcludedGpusQuery, drop_excluded
from gpustate.probes.gpu_facts import GpuFacts
from gpustate.remote.session import Session
from gpustate.validation import causes

#: Sockets of the runtimes of kubelets. A kubelet of a distribution uses the distribution's own containerd.
_SOCKETS = (*cri_status.BUNDLED, CONTAINERD_SOCKET, CRIO_SOCKET)
_IMAGE_TIMEOUT_S = 120.0

_MACHINE = f"""
printf 'boot_id=%s\\n' "$(cat /proc/sys/kernel/random/boot_id)"
printf 'machine_id=%s\\n' "$(cat /etc/machine-id)"
printf 'system_uuid=%s\\n' "$(cat /sys/class/dmi/id/product_uuid)"
{cri_status.KUBELET}
for s in {" ".join(_SOCKETS)}; do [ -S $s ] && grep -q "${{s#/var}}\\$" /proc/net/unix && echo "socket $s=1"; done
:
"""
_PROGRAM = """
f=$G/validator/validate.pyz
[ -f "$f" ] || { echo "$f is missing"; exit 1; }
exec python3 -I -S -B "$f" pod_image """


@dataclass(frozen=True, slots=True)
class Request:
    """Parameters of the test.

    Args:
        nodes: whose own validation succeeded.
        apis: by the path of their kubeconfig, from :func:`connect_all`.
        kubeconfig: of the command line; empty: the inventory's variable counts.
        forks: nodes tested at the same time.
        timeout_s: seconds one pod may take.
        cuda: run a CUDA kernel in it.
    """

    nodes: Sequence[InventoryNode]
    apis: Mapping[Kubeconfig, Api]
    kubeconfig: str = ""
    forks: int = 50
    timeout_s: float = 60.0
    cuda: bool = True


def connect_all(nodes: Sequence[InventoryNode], option: str) -> dict[Kubeconfig, Api]:
    """Load every kubeconfig that nodes name; empty if none does.

    Raises:
        UsageError: one of them cannot be used.
    """
    named = dict.fromkeys(kubeconfig_of(node, option) for node in nodes)
    return {
        kubeconfig: connect(kubeconfig.path, kubeconfig.context)
        for kubeconfig in named
        if kubeconfig
    }


def run(request: Request, stop: Callable[[], bool] = lambda: False) -> dict[str, Check]:
    """Run the check in parallel on every node with a kubeconfig; results by node."""
    clusters: dict[Kubeconfig, list[Json] | Check] = {}
    for kubeconfig, api in request.apis.items():
        try:
            clusters[kubeconfig] = api.nodes()
        except ClusterError as error:
            clusters[kubeconfig] = podtest.request_failed(error)

    def check_node(session: Session) -> Check:
        kubeconfig = kubeconfig_of(session.node, request.kubeconfig)
        nodes = clusters[kubeconfig]
        if isinstance(nodes, Check):
            return nodes
        try:
            return _prove(session, request, request.apis[kubeconfig], nodes, stop)
        except pods.Verdict as verdict:
            return verdict.check
        except ClusterError as error:
            return podtest.request_failed(error)

    targets = [node for node in request.nodes if kubeconfig_of(node, request.kubeconfig)]
    checks: dict[str, Check] = {}
    for node, check, problem in fleet.each(targets, request.forks, check_node):
        checks[node.name] = check or pods.failed("unreachable", str(problem))
    return checks


def _prove(
    session: Session, request: Request, api: Api, nodes: Sequence[Json], stop: Callable[[], bool]
) -> Check:
    machine = read_machine(session.shell(_MACHINE).text)
    if not machine.kubelet:
        try:
            node = pods.NodeIndex(nodes).match(machine, any_boot=True)
        except pods.Verdict:
            return pods.not_applicable("no kubelet runs on this node")
        return pods.failed("kubelet-down", f"Node {node['metadata']['name']}")
    name = str(pods.match(machine, nodes)["metadata"]["name"])
    node = api.node(name)
    pods.check_ready(node)
    runtime = str(node["status"]["nodeInfo"].get("containerRuntimeVersion", ""))
    is_crio = runtime.startswith("cri-o://")
    sockets = [socket for socket in machine.sockets if (socket == CRIO_SOCKET) == is_crio]
    if not sockets:
        return pods.not_applicable(f"no socket of the kubelet's runtime, {runtime or 'unknown'}")
    podtest.remove_leftovers(api, name)
    resource = podtest.free_resource(api, name, stop)
    podtest.check_offer(api, name, query_node(session.node, _usable, session.answer), stop)
    if stop():
        return pods.not_applicable("interrupted before the pod was created")
    try:
        image, command = read_image(_program(session, "import", sockets[0]))
        test = podtest.PodTest(api, node, image, command, request.timeout_s, request.cuda, stop)
        return _with_hook(session, test.run(resource))
    finally:
        _program(session, "remove", sockets[0])


def _usable(node: Node) -> NvmlFacts:
    """The GPUs of a machine, without those in quarantine."""
    return drop_excluded(node.query(GpuFacts()), node.query(ExcludedGpusQuery()))


def _with_hook(session: Session, check: Check) -> Check:
    """Add the program of the hook at which the pod's container failed; runc reports only its number."""
    if not check.failed or not container_hooks.failed(check.evidence):
        return check
    try:
        answer = _last_answer(_program(session, "hook", check.evidence))
        return replace(check, evidence=str(answer["message"]))
    except (pods.Verdict, IndexError, ValueError, KeyError, TypeError):
        return check


def _program(session: Session, verb: str, word: str) -> str:
    script = f"{_PROGRAM}{verb} {shlex.quote(word)}"
    try:
        answer = session.shell(script, timeout_s=_IMAGE_TIMEOUT_S)
    except GpustateError as error:
        raise pods.Verdict(pods.failed("image", f"{verb}: {error}")) from None
    if answer.status != 0:
        raise pods.Verdict(pods.failed("image", f"{verb}: {answer.text.strip()}"))
    return answer.text


def read_machine(text: str) -> pods.Machine:
    """Parse the node's identity."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return pods.Machine(
        boot_id=values.get("boot_id", "").strip(),
        machine_id=values.get("machine_id", "").strip(),
        system_uuid=values.get("system_uuid", "").strip(),
        kubelet="kubelet_endpoint" in values,
        sockets=tuple(socket for socket in _SOCKETS if f"socket {socket}" in values),
    )


def read_image(text: str) -> tuple[str, list[str]]:
    """The image that a node has, and its command line.

    Raises:
        pods.Verdict: it could not get one.
    """
    try:
        answer = _last_answer(text)
        if "error" in answer:
            raise pods.Verdict(pods.failed("image", str(answer["error"])))
        return str(answer["image"]), [str(word) for word in answer["command"]]
    except (IndexError, ValueError, KeyError, TypeError):
        last = text.strip().splitlines()[-1:] or ["nothing"]
        raise pods.Verdict(pods.failed("image", f"the node printed {last[0]}")) from None


def _last_answer(text: str) -> Any:
    return json.loads(
        [line for line in text.splitlines() if line.startswith(MARK)][-1][len(MARK) :]
    )


def add(result: NodeResult, check: Check) -> None:
    """Add the check to a node's result. If it failed, the node's validator state has failed."""
    result.checks.append(plain(check))
    if check.failed:
        causes.fail(result, check)
