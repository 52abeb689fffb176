"""A watch of Nodes goes on through everything that an API server does to it, and lists once where it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from apigate import Gate
from stubcluster import TOKEN, Answer, Refused, StubCluster

from gpustate.cluster import node_watch
from gpustate.cluster.api import connect
from gpustate.cluster.node_watch import EventKind, NodeWatch

NODES = {f"n{number}": (f"boot{number}", f"machine{number}", f"uuid{number}") for number in (1, 2)}


@dataclass
class Bench:
    """A cluster behind a server, and a watch of it in a thread of its own."""

    cluster: StubCluster
    gate: Gate
    kubeconfig: Path
    seen: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    said: list[str] = field(default_factory=list[str])
    slept: list[float] = field(default_factory=list[float])
    over: bool = False
    thread: threading.Thread | None = None

    def start(self) -> None:
        watch = NodeWatch(
            lambda: connect(str(self.kubeconfig)), self.said.append, lambda: self.over, self._sleep
        )
        self.thread = threading.Thread(target=self._follow, args=(watch,), daemon=True)
        self.thread.start()

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        time.sleep(0.01)

    def _follow(self, watch: NodeWatch) -> None:
        for event in watch.events():
            named = {node["metadata"]["name"]: node for node in event.nodes}
            if event.kind is EventKind.LISTED:
                self.seen = named
            elif event.kind is EventKind.CHANGED:
                self.seen.update(named)
            else:
                for name in named:
                    del self.seen[name]

    def until(self, what: Callable[[], object], wanted: str) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, f"not in time: {wanted}; it said {self.said}"
            time.sleep(0.01)

    def label(self, name: str, value: str) -> None:
        """Label a Node, and wait until the watch has it."""
        self.cluster.edit_node(name, {"metadata": {"labels": {"a": value}}})
        self.follows(name, value)

    def follows(self, name: str, value: str) -> None:
        """Wait until the watch has a label."""

        def has_it() -> bool:
            return bool(self.seen[name]["metadata"]["labels"].get("a") == value)

        self.until(has_it, f"{name} a={value}")

    def cut_until(self, word: str) -> None:
        """End watches, those too that were being opened meanwhile, until the watch reports a word."""

        def is_told() -> bool:
            self.cluster.cut_watches()
            return any(word in line for line in self.said)

        self.until(is_told, word)

    @property
    def lists(self) -> int:
        return self.cluster.lists.count("nodes")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(node_watch, "_FIRST_S", 0.02)
    cluster = StubCluster(NODES)
    gate = Gate(lambda request: cluster.answer(request))
    gate.open()
    found = Bench(cluster, gate, gate.kubeconfig(tmp_path, TOKEN))
    try:
        yield found
    finally:
        found.over = True
        cluster.cut_watches()
        if found.thread is not None:
            found.thread.join(5)
        gate.close()


def test_nodes_are_listed_once_and_then_followed(bench: Bench) -> None:
    bench.start()
    bench.until(lambda: len(bench.seen) == 2, "both Nodes")
    bench.cluster.add_node("n3", ("b", "m", "u"), {})
    bench.until(lambda: "n3" in bench.seen, "a Node that joins")
    bench.label("n1", "1")
    bench.cluster.delete_node("n2")
    bench.until(lambda: "n2" not in bench.seen, "a Node that is deleted")
    assert (bench.lists, bench.said) == (1, [])


def test_a_broken_watch_goes_on_from_the_last_version(bench: Bench) -> None:
    bench.start()
    bench.until(lambda: len(bench.seen) == 2, "both Nodes")
    for value in ("1", "2", "3"):
        bench.label("n1", value)
        bench.cluster.cut_watches()
        bench.cluster.edit_node("n2", {"metadata": {"labels": {"a": value}}})
        bench.follows("n2", value)
    assert bench.lists == 1
    assert len(bench.cluster.watches) == 4
    assert bench.cluster.watches == sorted(set(bench.cluster.watches))
    assert any("watch nodes" in line for line in bench.said)
    assert bench.said[-1] == "the API server answers again"


def test_a_quiet_watch_goes_on_from_its_bookmarks(bench: Bench) -> None:
    bench.cluster.bookmark_s = 0.05
    bench.start()
    bench.until(lambda: len(bench.cluster.watches) == 1, "a watch")
    first = bench.cluster.watches[0]
    time.sleep(0.3)
    # Events up to the bookmark are compacted; a watch from the list's version would be too old.
    bench.cluster._oldest = first + 1
    bench.cluster.cut_watches()
    bench.until(lambda: len(bench.cluster.watches) == 2, "the next watch")
    bench.label("n1", "1")
    assert bench.lists == 1


def test_a_version_that_is_too_old_is_followed_by_one_list(bench: Bench) -> None:
    bench.start()
    bench.until(lambda: len(bench.seen) == 2, "both Nodes")
    bench.cluster.cut_watches(compact=True)
    bench.until(lambda: bench.lists == 2, "a second list")
    bench.label("n1", "1")
    assert bench.lists == 2


def test_a_server_whose_versions_are_always_too_old_is_not_flooded(bench: Bench) -> None:
    gone = Refused(410, "Expired", "too old").answer
    bench.cluster.faults = [("watch", gone)] * 6
    bench.start()
    bench.until(lambda: not bench.cluster.faults, "six refused watches")
    bench.label("n1", "1")
    assert len(bench.slept) >= 5


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(bench: Bench, verb: str, status: int) -> None:
    words = {"kind": "Status", "message": "busy", "code": status}
    bench.cluster.faults = [(verb, Answer(status, words, {"Retry-After": "7"}))]
    bench.start()
    bench.until(lambda: len(bench.seen) == 2 and not bench.cluster.faults, "both Nodes")
    bench.label("n1", "1")
    assert max(bench.slept) >= 7
    assert any(line.endswith(": busy") for line in bench.said)


def test_failures_are_tried_later_each_time_and_reported_once(bench: Bench) -> None:
    bench.cluster.faults = [("list", Answer(500, {"kind": "Status", "message": "no", "code": 500}))] * 5  # fmt: skip
    bench.start()
    bench.until(lambda: len(bench.seen) == 2, "both Nodes")
    assert len(bench.slept) == 5
    assert bench.slept[-1] > 4 * bench.slept[0]
    assert len([line for line in bench.said if line.endswith(": no")]) == 1


def test_an_expired_token_is_read_again_from_the_kubeconfig(bench: Bench, tmp_path: Path) -> None:
    bench.start()
    bench.until(lambda: len(bench.seen) == 2, "both Nodes")
    bench.cluster.token = "another"
    bench.cut_until("Unauthorized")
    bench.gate.kubeconfig(tmp_path, "another")
    bench.cluster.edit_node("n1", {"metadata": {"labels": {"a": "1"}}})
    bench.until(lambda: bench.seen["n1"]["metadata"]["labels"].get("a") == "1", "the label")
    assert bench.lists == 1


def test_a_right_that_is_lost_and_given_back_is_survived(bench: Bench) -> None:
    bench.start()
    bench.until(lambda: len(bench.seen) == 2, "both Nodes")
    bench.cluster.denied.add(("watch", "", "nodes"))
    bench.cut_until('cannot watch resource "nodes"')
    bench.cluster.denied.clear()
    bench.label("n1", "1")
    assert bench.lists == 1
