"""The condition and the taints of a Node: what is sent, what a conflict becomes, and which right is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.cluster.node_status import NodeStatusApi, OtherWriter
from gpustate.documents import Json
from gpustate.errors import ClusterError

KEY = "example.com/new"


def refused(status: int, words: str = "no", *causes: str) -> RefusedRequest:
    return RefusedRequest(f"server: {words}", status, causes, words=words)


class Client:
    """Keeps what is patched."""

    def __init__(self) -> None:
        self.patches: list[Json] = []
        self.errors: list[RefusedRequest] = []

    def patch(self, kind: Any, name: str, body: Json, **options: Any) -> None:
        self.patches.append({"kind": kind.__name__, "name": name, "body": body, **options})
        if self.errors:
            raise self.errors.pop(0)


class Server:
    """The requests of :class:`Api`, to one Node."""

    def __init__(self, *taints: str) -> None:
        self.client = Client()
        self.taints = list(taints)
        self.version = 1
        self.conflicts = 0
        self.patched: list[Json] = []

    def call(self, action: str, work: Callable[[Client], Any]) -> Any:
        return work(self.client)

    def node(self, name: str) -> Json:
        taints = [{"key": one, "effect": "NoSchedule"} for one in self.taints]
        meta = {"name": name, "resourceVersion": str(self.version)}
        return {"metadata": meta, "spec": {"taints": taints} if taints else {}}

    def patch_node(self, name: str, patch: Json) -> Json:
        if self.conflicts:
            self.conflicts -= 1
            self.version += 1
            self.taints.append(f"example.com/other-{self.version}")
            raise refused(409, "the object has been modified", "Conflict")
        self.patched.append(patch)
        return {}


def api(server: Server) -> NodeStatusApi:
    return NodeStatusApi(cast(Api, server))


def test_a_condition_is_applied_to_the_status_with_its_own_manager() -> None:
    server = Server()
    api(server).apply_condition("n1", {"status": "True"})
    api(server).apply_condition("n1", None)
    first, second = server.client.patches
    assert (first["kind"], first["name"]) == ("NodeStatus", "n1")
    assert first["field_manager"] == "gpustate-health"
    assert "force" not in first
    assert first["body"]["status"]["conditions"] == [{"type": "GPUHealthy", "status": "True"}]
    assert "status" not in second["body"]


def test_another_writer_is_told_from_other_errors() -> None:
    server = Server()
    words = 'conflict with "node-problem-detector"'
    server.client.errors = [refused(409, words, "FieldManagerConflict"), refused(409, "busy")]
    with pytest.raises(OtherWriter, match="node-problem-detector"):
        api(server).apply_condition("n1", {"status": "True"})
    with pytest.raises(RefusedRequest, match="busy"):
        api(server).apply_condition("n1", {"status": "True"})


def test_a_missing_right_is_named_with_the_rule() -> None:
    server = Server()
    words = 'User "u" cannot patch resource "nodes/status" in API group "" at the cluster scope'
    server.client.errors = [refused(403, words)]
    with pytest.raises(ClusterError) as error:
        api(server).apply_condition("n1", {"status": "True"})
    assert 'resources: ["nodes/status"], verbs: ["patch"]' in str(error.value.fix)


def test_only_the_taint_is_removed_with_the_version_that_was_read() -> None:
    server = Server(KEY, "example.com/theirs")
    assert api(server).lift_taint(server.node("n1"), KEY)
    left = [{"key": "example.com/theirs", "effect": "NoSchedule"}]
    assert server.patched == [{"metadata": {"resourceVersion": "1"}, "spec": {"taints": left}}]
    last = Server(KEY)
    assert api(last).lift_taint(last.node("n1"), KEY)
    assert last.patched[0]["spec"] == {"taints": None}


def test_a_taint_that_somebody_adds_meanwhile_survives() -> None:
    server = Server(KEY)
    server.conflicts = 2
    assert api(server).lift_taint(server.node("n1"), KEY)
    (patch,) = server.patched
    assert patch["metadata"]["resourceVersion"] == "3"
    kept = [one["key"] for one in patch["spec"]["taints"]]
    assert kept == ["example.com/other-2", "example.com/other-3"]


def test_without_the_taint_nothing_is_written_and_endless_changes_end() -> None:
    server = Server("example.com/theirs")
    assert not api(server).lift_taint(server.node("n1"), KEY)
    assert not server.patched
    restless = Server(KEY)
    restless.conflicts = 99
    with pytest.raises(ClusterError, match="changed 5 times"):
        api(restless).lift_taint(restless.node("n1"), KEY)
