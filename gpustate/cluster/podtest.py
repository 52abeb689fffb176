"""Run a pod that uses one GPU of a Node, and evaluate its report.

No pod is created unless a GPU is free. The pod is always deleted; pods that a killed validation left on the
same Node are deleted first.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpustate.cluster import offers, pods
from gpustate.cluster.api import RefusedRequest
from gpustate.diagnosis.chain import Check
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.nodeside.container_inside import MARK

#: Seconds between two polls of a pod.
_POLL_S = 0.5
#: Seconds that a pod may be unschedulable: the scheduler sees changes of a Node with a delay.
_UNSCHEDULABLE_S = 5.0
#: Seconds within which a device plugin that has just started registers.
_REGISTER_S = 15.0
#: Seconds within which a kubelet removes a pod's containers.
_DELETE_S = 30.0


class Api(Protocol):
    """The requests that the test needs; see :class:`gpustate.cluster.api.Api`."""

    def node(self, name: str) -> Json: ...
    def pods_on(self, node: str) -> list[Json]: ...
    def labelled_pods(self, labels: dict[str, str]) -> list[Json]: ...
    def create_pod(self, pod: Json) -> Json: ...
    def pod(self, name: str) -> Json | None: ...
    def delete_pod(self, name: str) -> None: ...
    def log(self, name: str) -> str: ...
    def events(self, uid: str) -> list[Json]: ...
    def has_runtime_class(self, name: str) -> bool: ...


def request_failed(error: ClusterError, kind: str = "api") -> Check:
    """Return the failed check for a request that failed; a missing right is named with the rule to add.

    Args:
        error: of the request.
        kind: what it means if no right is missing.
    """
    check = pods.failed("api" if error.fix else kind, error.message)
    return replace(check, remedy=error.fix or check.remedy)


def remove(api: Api, name: str) -> str:
    """Delete a pod and wait until it is gone; return the problem, empty on success."""
    try:
        api.delete_pod(name)
        end = time.monotonic() + _DELETE_S
        while api.pod(name) is not None:
            if time.monotonic() > end:
                return f"pod {name} is still terminating after {_DELETE_S:.0f} s"
            time.sleep(_POLL_S)
    except ClusterError as error:
        return f"cannot delete pod {name}: {error}"
    return ""


def remove_leftovers(api: Api, node: str) -> None:
    """Delete the pods that killed validations left on a Node.

    Raises:
        ClusterError: a request failed, or a pod was not deleted.
    """
    leftover = [pod for pod in api.labelled_pods(pods.LABELS) if pods.is_leftover(pod, node)]
    problems = [problem for pod in leftover if (problem := remove(api, pod["metadata"]["name"]))]
    if problems:
        raise ClusterError("; ".join(problems))


def free_resource(api: Api, node: str, stop: Callable[[], bool]) -> str:
    """Return a GPU resource that is free on a Node; wait for a device plugin that has just started.

    Raises:
        pods.Verdict: the Node has no GPU resource, or all are in use.
        ClusterError: a request failed.
    """
    end = time.monotonic() + _REGISTER_S
    while True:
        try:
            return pods.free_resource(api.node(node), api.pods_on(node))
        except pods.Verdict as verdict:
            if not verdict.check.failed or time.monotonic() > end or stop():
                raise
        time.sleep(_POLL_S)


def check_offer(api: Api, node: str, nvml: NvmlFacts, stop: Callable[[], bool]) -> None:
    """Check that a Node offers what its machine has; a kubelet reports a change with a delay.

    Raises:
        pods.Verdict: it does not.
        ClusterError: a request failed.
    """
    end = time.monotonic() + _REGISTER_S
    while (wrong := offers.mismatch(current_node := api.node(node), nvml)) and not stop():
        if time.monotonic() > end:
            mig_problem = offers.whole_divided(current_node, nvml)
            kind = "mig-strategy" if mig_problem else "offer"
            raise pods.Verdict(pods.failed(kind, f"{node}: {mig_problem or wrong}"))
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class PodTest:
    """The GPU pod test of one Node.

    Args:
        api: of the cluster.
        node: the Node.
        image: an image that is present on the node.
        command: runs :mod:`gpustate.nodeside.container_inside` in the image, without arguments.
        timeout_s: seconds from the creation of a pod to its end.
        cuda: run a CUDA kernel in the pod.
        stop: polled; once true, the pod is deleted and the check is not applicable.
    """

    api: Api
    node: Json
    image: str
    command: Sequence[str]
    timeout_s: float = 60.0
    cuda: bool = True
    stop: Callable[[], bool] = lambda: False

    @property
    def name(self) -> str:
        """The name of the Node."""
        return str(self.node["metadata"]["name"])

    def run(self, resource: str) -> Check:
        """Run a pod; if it gets nothing of the driver and a RuntimeClass ``nvidia`` exists, run one with that.

        Raises:
            ClusterError: a request failed.
        """
        check = self.run_pod(resource, "")
        if pods.lacks_driver(check) and self.api.has_runtime_class(pods.RUNTIME_CLASS):
            return self.run_pod(resource, pods.RUNTIME_CLASS)
        return check

    def run_pod(self, resource: str, runtime_class: str) -> Check:
        """Run one pod and delete it."""
        name = f"gpustate-validate-{self.name[:200].rstrip('.-')}-{secrets.token_hex(3)}"
        # The report has to be written before the pod's timeout.
        inside_s = max(5.0, self.timeout_s / 2)
        command = [*self.command, f"{inside_s:g}", *(["all"] if self.cuda else [])]
        pod = pods.manifest(
            self.node,
            name,
            image=self.image,
            command=command,
            resource=resource,
            runtime_class=runtime_class,
            timeout_s=self.timeout_s,
        )
        context = f"pod on {self.name}, {resource}" + (
            f", RuntimeClass {runtime_class}" if runtime_class else ""
        )
        began = time.monotonic()
        problem = ""
        try:
            try:
                uid = str(self.api.create_pod(pod)["metadata"].get("uid", ""))
            except RefusedRequest as error:
                return request_failed(error, "refused")
            check = self.wait(name, uid, began) or self.evaluate(name, context, began)
        finally:
            problem = remove(self.api, name)
        return replace(check, evidence=f"{check.evidence}; {problem}") if problem else check

    def wait(self, name: str, uid: str, began: float) -> Check | None:
        """Wait for the end of a pod; return ``None`` if it succeeded, else the failed check."""
        unschedulable_since: float | None = None
        problem: ClusterError | None = None
        started, last = False, "no status"
        while True:
            now_s = time.monotonic()
            try:
                pod = self.api.pod(name)
                problem = None
            except ClusterError as error:  # the API server may be restarting
                pod, problem = {}, error
            if pod is None:
                return pods.failed("deleted", name)
            progress = pods.progress(pod)
            if progress.finished:
                return None
            if progress.failure is not None:
                return progress.failure
            started = progress.started or started
            last = progress.last if pod else last
            if not progress.unschedulable:
                unschedulable_since = None
            elif unschedulable_since is None:
                unschedulable_since = now_s
            elif now_s - unschedulable_since > _UNSCHEDULABLE_S:
                return self.unschedulable(progress.unschedulable, name)
            if self.stop():
                return pods.not_applicable("interrupted before the pod ended")
            if now_s - began > self.timeout_s:
                if problem is not None:
                    raise problem
                kind = "timeout" if started else "not-started"
                return pods.failed(kind, f"{self.timeout_s:.0f} s; {self.warning(uid) or last}")
            time.sleep(_POLL_S)

    def warning(self, uid: str) -> str:
        """The newest warning about a pod; empty without one, and where events cannot be listed."""
        try:
            return pods.last_warning(self.api.events(uid))
        except ClusterError:
            return ""

    def unschedulable(self, message: str, name: str) -> Check:
        """Return why a pod is not scheduled: another pod took the last GPU, or the scheduler's message."""
        other_pods = [pod for pod in self.api.pods_on(self.name) if pod["metadata"]["name"] != name]
        try:
            pods.free_resource(self.api.node(self.name), other_pods)
        except pods.Verdict as verdict:
            return verdict.check
        return pods.failed("unschedulable", message)

    def evaluate(self, name: str, context: str, began: float) -> Check:
        """Evaluate the report of a pod that has ended."""
        try:
            text = self.api.log(name)
        except ClusterError as error:
            return request_failed(error, "no-report")
        report = last_report(text.splitlines())
        if report is None:
            last = text.strip().splitlines()[-1:] or ["none"]
            return pods.failed("crashed", f"its output: {last[0]}")
        try:
            return pods.evaluate_report(report, context, cuda=self.cuda, began=began)
        except (KeyError, TypeError, AttributeError):
            return pods.failed("crashed", "unknown report format")


def last_report(lines: Iterable[str]) -> Json | None:
    """Return the last report that a pod printed; ``None`` without a valid one."""
    reports = [line[len(MARK) :] for line in lines if line.startswith(MARK)]
    try:
        report = json.loads(reports[-1])
    except (IndexError, ValueError):
        return None
    return report if isinstance(report, dict) else None
