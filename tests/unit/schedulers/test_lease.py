"""One run at a time holds a cluster's Lease; a dead one is followed by the next within a minute."""

from __future__ import annotations

import copy
from typing import cast

import pytest

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.documents import Json
from gpustate.errors import ClusterError, LockHeld
from gpustate.schedulers.base import NotDrainedError, Why
from gpustate.schedulers.lease import VALID_S, ClusterLease, standing

ANN, BOB = Why("r1", "ann@a", "x"), Why("r2", "bob@b", "x")


class Server:
    """One Lease with its resourceVersion. ``gone``: it does not answer."""

    server = "https://api.test"

    def __init__(self) -> None:
        self.stored: Json | None = None
        self.version = 0
        self.gone = False

    def lease(self, namespace: str, name: str) -> Json | None:
        if self.gone:
            raise ClusterError("does not answer")
        return copy.deepcopy(self.stored)

    def write_lease(self, lease: Json, *, create: bool) -> Json:
        if self.gone:
            raise ClusterError("does not answer")
        if create != (self.stored is None) or (
            not create and lease["metadata"]["resourceVersion"] != str(self.version)
        ):
            raise RefusedRequest("conflict", 409)
        self.version += 1
        self.stored = copy.deepcopy(lease)
        self.stored["metadata"]["resourceVersion"] = str(self.version)
        return self.stored

    @property
    def holder(self) -> str | None:
        assert self.stored is not None
        holder: str | None = self.stored["spec"]["holderIdentity"]
        return holder


class Clock:
    """Time that passes by waiting; ``meanwhile`` happens each time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    def __call__(self) -> float:
        return self.now


def lease(server: Server, clock: Clock) -> ClusterLease:
    return ClusterLease(cast(Api, server), sleep=clock.sleep, clock=clock)


def never() -> bool:
    return False


def test_it_is_taken_once_and_let_go() -> None:
    server, clock = Server(), Clock()
    first = lease(server, clock)
    first.hold(ANN, print, never)
    version = server.version
    first.hold(ANN, print, never)
    assert server.version == version, "it is held already"
    assert server.holder == "ann@a run r1"
    first.release()
    assert server.holder is None
    lease(server, clock).hold(BOB, print, never)
    assert server.holder == "bob@b run r2"


def test_a_living_holder_is_named() -> None:
    server, clock = Server(), Clock()
    lease(server, Clock()).hold(ANN, print, never)

    def renew() -> None:
        assert server.stored is not None
        if clock.now > 10:
            server.stored["spec"]["renewTime"] = f"later {clock.now}"

    clock.meanwhile = renew
    with pytest.raises(LockHeld, match="ann@a run r1 changes nodes of"):
        lease(server, clock).hold(BOB, print, never)
    assert clock.now < 20


def test_a_dead_holder_is_followed_within_the_lease_s_time() -> None:
    server, clock = Server(), Clock()
    lease(server, Clock()).hold(ANN, print, never)
    told: list[str] = []
    lease(server, clock).hold(BOB, told.append, never)
    assert server.holder == "bob@b run r2"
    assert VALID_S < clock.now < VALID_S + 10
    assert "has not renewed" in told[-1]


def test_a_holder_whose_process_on_this_machine_has_ended_is_followed_at_once() -> None:
    server, clock = Server(), Clock()
    lease(server, Clock()).hold(ANN, print, never)
    said: list[str] = []
    ended = ClusterLease(
        cast(Api, server), died={"ann@a run r1"}.__contains__, sleep=clock.sleep, clock=clock
    )
    ended.hold(BOB, said.append, never)
    assert (server.holder, clock.now) == ("bob@b run r2", 0.0)
    assert said == ["the process of ann@a run r1 on this machine has ended; taking over its Lease"]


def test_who_was_taken_over_takes_it_again_or_is_refused() -> None:
    server, clock = Server(), Clock()
    first = lease(server, clock)
    first.hold(ANN, print, never)
    assert server.stored is not None
    server.stored["spec"]["holderIdentity"] = "bob@b run r2"
    first._renew()
    with pytest.raises(NotDrainedError):
        first.hold(ANN, print, lambda: True)
    first.release()
    assert server.holder == "bob@b run r2", "what is not ours is not let go"


def test_someone_who_writes_it_at_the_same_time_does_not_keep_it_from_being_let_go() -> None:
    server, clock = Server(), Clock()
    first = lease(server, clock)
    first.hold(ANN, print, never)
    read = server.lease

    def overtaken(namespace: str, name: str) -> Json | None:
        found = read(namespace, name)
        if server.version == 1:
            server.version += 1
            assert server.stored is not None
            server.stored["metadata"]["resourceVersion"] = str(server.version)
        return found

    server.lease = overtaken  # type: ignore[method-assign]
    first.release()
    assert server.holder is None


def test_a_server_that_is_away_for_a_while_does_no_harm() -> None:
    server, clock = Server(), Clock()
    first = lease(server, clock)
    first.hold(ANN, print, never)
    server.gone = True
    first._renew()
    first.hold(ANN, print, never)
    clock.now += VALID_S + 1
    with pytest.raises(ClusterError, match="does not answer"):
        first.hold(ANN, print, never)
    first.release()


def test_a_colleague_pauses_the_holder_and_sees_how_far_it_is() -> None:
    server, clock = Server(), Clock()
    mine = lease(server, clock)
    mine.publish("early")
    assert server.stored is None, "without the Lease nothing is written"
    mine.hold(ANN, print, never)
    mine.publish('{"nodes": {}}')
    found = standing(server.stored)
    assert (found.holder, found.run) == ("ann@a run r1", "r1")
    assert found.progress == '{"nodes": {}}'
    ClusterLease(cast(Api, server)).submit("r1", "wait")
    assert mine.control() == "wait"
    mine.publish("next")
    assert mine.control() == "wait", "progress does not take a request back"
    server.gone = True
    assert mine.control() is None
    mine.publish("unseen")
    server.gone = False
    ClusterLease(cast(Api, server)).submit("r1", "")
    assert mine.control() == ""
    mine.publish("")
    assert server.stored is not None
    assert server.stored["metadata"]["annotations"] == {}


def test_a_request_to_a_run_that_does_not_hold_it_is_refused() -> None:
    server, clock = Server(), Clock()
    with pytest.raises(ClusterError, match="does not hold the Lease of https:"):
        ClusterLease(cast(Api, server)).submit("r1", "wait")
    lease(server, clock).hold(ANN, print, never)
    with pytest.raises(ClusterError, match="ann@a run r1 does"):
        ClusterLease(cast(Api, server)).submit("r2", "wait")


def test_a_request_stays_while_the_run_holds_it_and_goes_with_it() -> None:
    server, clock = Server(), Clock()
    mine = lease(server, clock)
    assert mine.control() is None, "it is not held yet"
    assert not mine.set_control("wait")
    mine.hold(ANN, print, never)
    assert mine.set_control("wait")
    assert standing(server.stored).control == "wait"
    clock.now += VALID_S + 1
    mine.hold(ANN, print, never)  # it takes its own Lease again
    assert mine.control() == "wait"
    server.stored = None
    clock.now += VALID_S + 1
    mine.hold(ANN, print, never)
    assert mine.control() == "wait", "somebody had deleted the Lease"
    assert server.stored is not None
    server.stored["spec"]["holderIdentity"] = "bob@b run r2"
    assert mine.control() is None, "it is of another run"
    assert not mine.set_control("")
    server.stored["spec"]["holderIdentity"] = "ann@a run r1"
    mine.release()
    assert standing(server.stored).control == ""


def test_a_request_is_written_again_after_a_conflict() -> None:
    server, clock = Server(), Clock()
    mine = lease(server, clock)
    mine.hold(ANN, print, never)
    read = server.lease

    def meanwhile(namespace: str, name: str) -> Json | None:
        server.lease = read  # type: ignore[method-assign]
        found = read(namespace, name)
        mine.publish("{}")
        return found

    server.lease = meanwhile  # type: ignore[method-assign]
    ClusterLease(cast(Api, server)).submit("r1", "wait")
    found = standing(server.stored)
    assert (found.control, found.progress) == ("wait", "{}")
