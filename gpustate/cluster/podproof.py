"""Run a pod that uses one GPU of a Node, and judge what became of it.

The pod waits for nobody: when no GPU is free, none is created. It is deleted in every case, and what a killed
validation left on the same Node is deleted before.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpustate.cluster import pods
from gpustate.cluster.pods import Json
from gpustate.diagnosis.chain import Check
from gpustate.errors import ClusterError
from gpustate.nodeside.container_inside import MARK

#: Seconds between two looks at a pod.
_POLL_S = 0.5
#: The scheduler may need so long to hear of the Node's newest state.
_UNSCHEDULABLE_S = 5.0
#: A device plugin that has just started registers within this time.
_REGISTER_S = 15.0
#: A kubelet removes a pod's containers within this time.
_DELETE_S = 30.0


class Api(Protocol):
    """What a pod's test asks of the cluster; see :class:`gpustate.cluster.api.Api`."""

    def node(self, name: str) -> Json: ...
    def pods_on(self, node: str) -> list[Json]: ...
    def labelled_pods(self, labels: dict[str, str]) -> list[Json]: ...
    def create_pod(self, pod: Json) -> Json: ...
    def pod(self, name: str) -> Json | None: ...
    def delete_pod(self, name: str) -> None: ...
    def log(self, name: str) -> str: ...
    def events(self, uid: str) -> list[Json]: ...
    def has_runtime_class(self, name: str) -> bool: ...


def remove(api: Api, name: str) -> str:
    """Delete a pod and wait until it is gone; why it is not, empty when it is."""
    try:
        api.delete_pod(name)
        end = time.monotonic() + _DELETE_S
        while api.pod(name) is not None:
            if time.monotonic() > end:
                return f"pod {name} is still being deleted after {_DELETE_S:.0f} s"
            time.sleep(_POLL_S)
    except ClusterError as error:
        return f"pod {name} cannot be deleted: {error}"
    return ""


def remove_leftovers(api: Api, node: str) -> None:
    """Delete the pods that killed validations of a Node left.

    Raises:
        ClusterError: the API fails, or one of them stays.
    """
    left = [pod for pod in api.labelled_pods(pods.LABELS) if pods.is_leftover(pod, node)]
    problems = [problem for pod in left if (problem := remove(api, pod["metadata"]["name"]))]
    if problems:
        raise ClusterError("; ".join(problems))


def free_resource(api: Api, node: str, stop: Callable[[], bool]) -> str:
    """The resource of which a Node has one to spare; waits for a device plugin that has just started.

    Raises:
        pods.Verdict: the Node offers none, or all are in use.
        ClusterError: the API fails.
    """
    end = time.monotonic() + _REGISTER_S
    while True:
        try:
            return pods.free_resource(api.node(node), api.pods_on(node))
        except pods.Verdict as verdict:
            if not verdict.check.failed or time.monotonic() > end or stop():
                raise
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class PodProof:
    """The test of one Node.

    Args:
        api: of its cluster.
        node: its Node.
        image: reference of an image that the node has.
        command: runs :mod:`gpustate.nodeside.container_inside` in it, without arguments.
        timeout_s: seconds a pod may take from its creation to its end.
        cuda: run a CUDA kernel in it.
        stop: checked again and again; once true, the pod is deleted and the link not judged.
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
        """Of the Node."""
        return str(self.node["metadata"]["name"])

    def prove(self, resource: str) -> Check:
        """Run a pod; where it got nothing and there is a RuntimeClass ``nvidia``, another one with it.

        Raises:
            ClusterError: the API fails.
        """
        check = self.run(resource, "")
        if pods.gives_nothing(check) and self.api.has_runtime_class(pods.RUNTIME_CLASS):
            return self.run(resource, pods.RUNTIME_CLASS)
        return check

    def run(self, resource: str, runtime_class: str) -> Check:
        """Run one pod and delete it."""
        name = f"gpustate-validate-{self.name[:200].rstrip('.-')}-{secrets.token_hex(3)}"
        # The report has to arrive before this pod's time is over.
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
        way = f"pod on {self.name}, {resource}" + (
            f", RuntimeClass {runtime_class}" if runtime_class else ""
        )
        began = time.monotonic()
        left = ""
        try:
            uid = str(self.api.create_pod(pod)["metadata"].get("uid", ""))
            check = self.wait(name, uid, began) or self.judge(name, way, began)
        finally:
            left = remove(self.api, name)
        return replace(check, evidence=f"{check.evidence}; {left}") if left else check

    def wait(self, name: str, uid: str, began: float) -> Check | None:
        """Wait for the end of a pod; ``None`` when it succeeded, else why it cannot or did not in time."""
        unschedulable_since: float | None = None
        problem: ClusterError | None = None
        last = "no status"
        while True:
            now = time.monotonic()
            try:
                pod = self.api.pod(name)
                problem = None
            except ClusterError as error:  # an API server that restarts
                pod, problem = {}, error
            if pod is None:
                return pods.failed("deleted", name)
            seen = pods.progress(pod)
            if seen.finished:
                return None
            if seen.failure is not None:
                return seen.failure
            last = seen.last if pod else last
            if not seen.unschedulable:
                unschedulable_since = None
            elif unschedulable_since is None:
                unschedulable_since = now
            elif now - unschedulable_since > _UNSCHEDULABLE_S:
                return self.unschedulable(seen.unschedulable, name)
            if self.stop():
                return pods.not_applicable("interrupted before the pod ended")
            if now - began > self.timeout_s:
                if problem is not None:
                    raise problem
                words = pods.last_warning(self.api.events(uid)) or last
                return pods.failed("timeout", f"{self.timeout_s:.0f} s; {words}")
            time.sleep(_POLL_S)

    def unschedulable(self, words: str, name: str) -> Check:
        """Why the scheduler finds no place: somebody was faster with the last GPU, or anything else."""
        others = [pod for pod in self.api.pods_on(self.name) if pod["metadata"]["name"] != name]
        try:
            pods.free_resource(self.api.node(self.name), others)
        except pods.Verdict as verdict:
            return verdict.check
        return pods.failed("unschedulable", words)

    def judge(self, name: str, way: str, began: float) -> Check:
        """Read and judge the report of a pod that has ended."""
        try:
            text = self.api.log(name)
        except ClusterError as error:
            return pods.failed("no-report", str(error))
        report = last_report(text.splitlines())
        if report is None:
            last = text.strip().splitlines()[-1:] or ["nothing"]
            return pods.failed("crashed", f"it printed {last[0]}")
        try:
            return pods.judge_report(report, way, cuda=self.cuda, began=began)
        except (KeyError, TypeError, AttributeError):
            return pods.failed("crashed", "its report is of another form")


def last_report(lines: Iterable[str]) -> Json | None:
    """The last report that a pod printed; ``None`` when there is none that can be read."""
    found = [line[len(MARK) :] for line in lines if line.startswith(MARK)]
    try:
        report = json.loads(found[-1])
    except (IndexError, ValueError):
        return None
    return report if isinstance(report, dict) else None
