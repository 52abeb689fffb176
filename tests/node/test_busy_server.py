"""Objects are planned, applied and removed through a server that is busy, away, or loses its answers.

Real: API server and etcd. A gate before them answers the first try of every request with a fault.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from apigate import Gate, Upstream
from localcluster import LocalCluster, local_cluster
from stubcluster import TOKEN, Answer, Request

from gpustate.cluster.api import connect
from gpustate.cluster.objects import Objects
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterSettings
from gpustate.manifests.build import build
from gpustate.reconcile.applying import Applied, Applier
from gpustate.reconcile.planning import Action, Target, plan

pytestmark = [pytest.mark.long, pytest.mark.node]
SETTINGS = ClusterSettings(namespace="busy", runtime_class="busy")
WANTED = Target(build(SETTINGS, images()), "busy")
ABSENT = Target((), "busy", absent=True)
NAMESPACE = "/api/v1/namespaces/busy"


def _status(code: int) -> dict[str, object]:
    return {"kind": "Status", "status": "Failure", "message": "not now", "code": code}


FAULTS = (
    Answer(429, _status(429), {"Retry-After": "1"}),
    Answer(429, "Too many requests, please try again later."),
    Answer(503, "no server is available to handle this request"),
    Answer(504, _status(504)),
)
LOST = Answer(0, "")


@dataclass
class Flaky:
    """The cluster; every request fails once, in turn by each fault.

    Args:
        upstream: the real one.
        faults: for the first try of a request.
        tries: of each request so far.
    """

    upstream: Upstream
    faults: Iterator[Answer]
    tries: dict[str, int] = field(default_factory=dict[str, int])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> Answer:
        name = json.dumps([request.method, request.url, request.body])
        with self.lock:
            self.tries[name] = self.tries.get(name, 0) + 1
            fault = next(self.faults) if self.tries[name] % 2 else None
        if fault is not None and fault.status:
            return fault
        answer = self.upstream.answer(request)
        if fault is LOST:
            raise ConnectionAbortedError("the answer is lost")  # the request was carried out
        return answer


@pytest.fixture(scope="module")
def cluster(lab_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def objects(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Objects]:
    authority = cluster.authority
    user = authority.issue("busy", "busy", groups=("system:masters",))
    upstream = Upstream(cluster.server, authority.certificate, user.certificate, user.key)
    flaky = Flaky(upstream, itertools.cycle((*FAULTS, LOST)))
    gate = Gate(flaky.answer)
    gate.open()
    api = connect(str(gate.kubeconfig(tmp_path, TOKEN)))
    monkeypatch.setattr(api, "_sleep", lambda seconds: None)
    api._answered = True  # the first request may meet any fault
    yield Objects(api)
    api.close()
    gate.close()


def apply(objects: Objects, wanted: Target) -> Applied:
    """Nothing runs the DaemonSets, and nothing ends the namespace."""
    return Applier(objects, wanted, 0.1).apply(plan(objects, wanted))


def test_objects_survive_throttling_outages_and_lost_answers(
    cluster: LocalCluster, objects: Objects
) -> None:
    done = apply(objects, WANTED)
    assert not done.failures
    assert {one.action for one in done.changes} == {Action.CREATE}
    assert {one.action for one in plan(objects, WANTED)} == {Action.UNCHANGED}
    owners = cluster.client.get(NAMESPACE)["metadata"]["labels"]
    assert owners["gpustate.io/owner"] == "cluster-objects"
    gone = apply(objects, ABSENT)
    assert [one for one in gone.failures if not one.startswith("namespace/")] == []
    assert cluster.client.get(NAMESPACE)["metadata"]["deletionTimestamp"]
    left = [one for one in plan(objects, ABSENT) if one.item["kind"] != "Namespace"]
    assert left == []
