"""One run at a time changes the nodes of a cluster, and one watcher follows them: a Lease that its controller renews.

A holder is dead when its Lease has not changed for as long as it is valid, by the clock of whoever watches it. So
clocks that differ between controllers do no harm, and a controller that was killed blocks the next for a minute. The
next one on the same machine knows at once that its process has ended.

Sources:
    kubernetes/client-go, tools/leaderelection: observed time instead of renewTime; coordination.k8s.io/v1 Lease.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from gpustate.documents import Json
from gpustate.errors import ClusterError, LockHeld
from gpustate.schedulers.base import Emit, NotDrainedError, Stop, Why

#: Whether the holder of a Lease is known to be dead.
Died = Callable[[str], bool]


def unknown(holder: str) -> bool:
    """Nothing is known of it."""
    return False


#: Annotations of the Lease: a request to the run that holds it, and how far its rollout is.
CONTROL, PROGRESS = "gpustate.io/pause", "gpustate.io/rollout"
NAMESPACE, NAME = "kube-system", "gpustate"
#: Of watchers.
WATCH = "gpustate-watch"
VALID_S = 60.0
RENEW_S = 15.0
_POLL_S = 2.0
#: A Lease that could not be renewed is given up after this part of the time for which it is valid.
_SURE = 5 / 6
_CONFLICTS = 5
_CONFLICT = 409


class LeaseStore(Protocol):
    """Where a Lease is kept. A write that someone else came before has the error status 409."""

    @property
    def server(self) -> str:
        """As messages name it."""
        ...

    def lease(self, namespace: str, name: str) -> Json | None:
        """The Lease; ``None``: there is none."""
        ...

    def write_lease(self, lease: Json, *, create: bool) -> Json:
        """Create it, or replace it as it was read."""
        ...


def _conflicts(error: ClusterError) -> bool:
    """Someone else wrote first."""
    return getattr(error, "status", 0) == _CONFLICT


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class ClusterLease:
    """The Lease of one cluster.

    Args:
        api: where it is kept.
        name: of the Lease.
        died: knows holders that are dead.
        sleep: waits so many seconds.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        api: LeaseStore,
        name: str = NAME,
        *,
        died: Died = unknown,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._name = name
        self._died = died
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._identity = ""
        self._control = ""
        self._renewed = 0.0
        self._thread: threading.Thread | None = None

    def hold(self, why: Why, emit: Emit, stop: Stop) -> None:
        """Take it, or see that it is still held; waits for a holder that may be dead.

        Raises:
            LockHeld: another run holds and renews it.
            ClusterError: it cannot be read or written.
        """
        with self._lock:
            if self._identity and self._clock() - self._renewed < VALID_S:
                return
            self._identity = ""
            self._take(f"{why.person} run {why.run}", emit, stop)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renewing, daemon=True)
                self._thread.start()

    @property
    def held(self) -> bool:
        """Nobody else can have it yet."""
        return bool(self._identity) and self._clock() - self._renewed < VALID_S * _SURE

    def _take(self, identity: str, emit: Emit, stop: Stop) -> None:
        watched = ("", "", self._clock())
        while True:
            lease = self._api.lease(NAMESPACE, self._name)
            holder, renewed = standing(lease).holder, standing(lease).renewed
            valid_s = float(
                ((lease or {}).get("spec") or {}).get("leaseDurationSeconds") or VALID_S
            )
            free = holder in ("", identity)
            if not free and self._died(holder):
                emit(f"the process of {holder} on this machine has ended; taking over its Lease")
                free = True
            elif not free and (holder, renewed) != watched[:2]:
                if watched[0]:
                    raise LockHeld(
                        f"{holder} {'watches' if self._name == WATCH else 'changes'} nodes of {self._api.server}",
                        fix="wait until it is done, or stop it there",
                    )
                watched = (holder, renewed, self._clock())
                emit(
                    f"the Lease of this cluster is held by {holder}; waiting to see whether it is renewed"
                )
            elif not free and self._clock() - watched[2] > valid_s:
                emit(f"{holder} has not renewed its Lease; taking it over")
                free = True
            if free and self._write(lease, identity):
                return
            if stop():
                raise NotDrainedError("interrupted while it waited for the Lease of the cluster")
            self._sleep(_POLL_S)

    def _write(self, lease: Json | None, identity: str) -> bool:
        """Write the holder; whether nobody else wrote first."""
        old = (lease or {}).get("spec") or {}
        fresh: Json = {
            "metadata": dict(
                (lease or {}).get("metadata") or {"namespace": NAMESPACE, "name": self._name}
            ),
            "spec": {
                "holderIdentity": identity or None,
                "leaseDurationSeconds": int(VALID_S),
                "acquireTime": _timestamp(),
                "renewTime": _timestamp(),
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + 1,
            },
        }
        fresh["metadata"].pop("managedFields", None)
        notes = fresh["metadata"].get("annotations") or {}
        if not identity or old.get("holderIdentity") != identity:
            # What concerned the run before does not concern this one.
            notes = {key: value for key, value in notes.items() if key not in (CONTROL, PROGRESS)}
            notes |= {CONTROL: self._control} if identity and self._control else {}
        fresh["metadata"]["annotations"] = notes
        try:
            self._api.write_lease(fresh, create=lease is None)
        except ClusterError as error:
            if _conflicts(error):
                return False
            raise
        self._identity, self._renewed = identity, self._clock()
        return True

    def _renewing(self) -> None:
        while not self._over.wait(RENEW_S):
            with self._lock:
                if self._identity:
                    self._renew()

    def _renew(self) -> None:
        """Renew it; a failure counts once it has lasted as long as the Lease is valid."""
        try:
            lease = self._api.lease(NAMESPACE, self._name)
            if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._identity:
                self._identity = ""  # taken over: the next node takes it again, or is refused
                return
            lease["spec"]["renewTime"] = _timestamp()
            lease["metadata"].pop("managedFields", None)
            self._api.write_lease(lease, create=False)
            self._renewed = self._clock()
        except ClusterError:
            return

    def publish(self, progress: str) -> None:
        """Show how far the rollout is; empty: it is over. A server that does not answer shows the last one."""
        self._note({PROGRESS: progress} if progress else {PROGRESS: "", CONTROL: ""})

    def control(self) -> str | None:
        """The request to the run; ``None``: the server does not answer, or the run does not hold the Lease."""
        try:
            current = standing(self._api.lease(NAMESPACE, self._name))
        except ClusterError:
            return None
        if not self._identity or current.holder != self._identity:
            return None
        self._control = current.control
        return current.control

    def set_control(self, control: str) -> bool:
        """Show a request that the run got elsewhere, empty: none; whether it is shown."""
        if not self._note({CONTROL: control}):
            return False
        self._control = control
        return True

    def _note(self, notes: dict[str, str]) -> bool:
        """Set annotations of the Lease, if the run holds it; whether they are set."""
        with self._lock:
            for _ in range(_CONFLICTS if self._identity else 0):
                try:
                    lease = self._api.lease(NAMESPACE, self._name)
                    if lease is None or standing(lease).holder != self._identity:
                        return False
                    _annotate(self._api, lease, notes)
                except ClusterError as error:
                    if not _conflicts(error):
                        return False
                else:
                    return True
        return False

    def standing(self) -> Standing:
        """Which run changes nodes of this cluster, how far it is, and what it is asked for.

        Raises:
            ClusterError: the cluster does not answer, or the user may not read the Lease.
        """
        return standing(self._api.lease(NAMESPACE, self._name))

    def submit(self, run: str, control: str) -> None:
        """Leave a request to the run that holds the Lease; empty: take it back.

        Raises:
            ClusterError: the run does not hold it, the cluster does not answer, or the user may not write the Lease.
        """
        for _ in range(_CONFLICTS):
            lease = self._api.lease(NAMESPACE, self._name)
            holder = standing(lease)
            if lease is None or holder.run != run:
                actual = f"{holder.holder} does" if holder.holder else "nobody does"
                raise ClusterError(
                    f"run {run} does not hold the Lease of {self._api.server}; {actual}"
                )
            try:
                _annotate(self._api, lease, {CONTROL: control})
                return
            except ClusterError as error:
                if not _conflicts(error):
                    raise
        raise ClusterError(f"the Lease of {self._api.server} is changed all the time; run again")

    def release(self) -> None:
        """Let go of it, where it is held; a server that does not answer lets it expire."""
        self._over.set()
        with self._lock:
            if not self._identity:
                return
            identity, self._identity = self._identity, ""
            try:
                for _ in range(_CONFLICTS):
                    lease = self._api.lease(NAMESPACE, self._name)
                    if standing(lease).holder != identity or self._write(lease, ""):
                        return
            except ClusterError:
                return


@dataclass(frozen=True, slots=True)
class Standing:
    """What a Lease says.

    Args:
        holder: person and run; empty: nobody holds it.
        progress: how far the rollout is, as it was published; empty: nothing was.
        control: the request to it; empty: there is none.
        renewed: when its holder renewed it last.
    """

    holder: str = ""
    progress: str = ""
    control: str = ""
    renewed: str = ""

    @property
    def run(self) -> str:
        """The run that holds it."""
        return self.holder.rpartition(" run ")[2]


def standing(lease: Json | None) -> Standing:
    """What a Lease says; one that is not there says nothing."""
    notes = ((lease or {}).get("metadata") or {}).get("annotations") or {}
    spec = (lease or {}).get("spec") or {}
    published = [notes.get(key) for key in (PROGRESS, CONTROL)]
    values = (spec.get("holderIdentity"), *published, spec.get("renewTime"))
    return Standing(*(str(value or "") for value in values))


def _annotate(api: LeaseStore, lease: Json, notes: dict[str, str]) -> None:
    """Set annotations of the Lease as it was read; an empty one is removed."""
    annotations = {**(lease["metadata"].get("annotations") or {}), **notes}
    lease["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value}
    lease["metadata"].pop("managedFields", None)
    api.write_lease(lease, create=False)


class Leased:
    """A cluster in whose Lease a run shows its rollout, by the methods of the Lease.

    Args:
        lease: of the cluster.
    """

    def __init__(self, lease: ClusterLease) -> None:
        self.lease = lease
        self.drop_lease, self.publish, self.control = lease.release, lease.publish, lease.control
        self.set_control, self.standing, self.submit = (
            lease.set_control,
            lease.standing,
            lease.submit,
        )
