"""Release objects to the GPU Operator, in a form that it takes over.

The Operator's ClusterPolicy is created again while the Operator is stopped. Every object of gpustate loses gpustate's labels
and field manager, and belongs to the ClusterPolicy again if it did before. A DaemonSet loses the Operator's hash, so that the
Operator writes it once; pods restart only where their template differs from the Operator's.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (isDaemonsetSpecChanged, SetControllerReference);
    kubernetes.io, "Server-Side Apply": clearing managedFields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpustate.documents import Json, JsonView
from gpustate.manifests.kinds import BY_NAME, DEPLOYMENT, NODE, title
from gpustate.manifests.ownership import FIELD_MANAGER, LABEL_MANAGER, OWNER
from gpustate.reconcile.adopting import (
    HASH,
    RECORD,
    Objects,
    change_current,
    is_record,
    operand_objects,
    read_record,
    scale,
)

_MANAGERS = (FIELD_MANAGER, LABEL_MANAGER)


@dataclass(frozen=True, slots=True)
class Handover:
    """What releasing a cluster means.

    Args:
        namespace: of the objects.
        objects: to release.
        record: what was written down when they were taken over; ``None`` if they were not.
    """

    namespace: str
    objects: tuple[Json, ...]
    record: Json | None

    @property
    def policies(self) -> tuple[Json, ...]:
        """The Operator's resources to create again."""
        return tuple((self.record or {}).get("policies") or ())

    @property
    def deployment(self) -> str:
        """The Operator's Deployment; empty if it is unknown."""
        return str((self.record or {}).get("deployment") or "")

    @property
    def replicas(self) -> int:
        """How many pods it had."""
        return int((self.record or {}).get("replicas") or 0)


@dataclass(slots=True)
class Released:
    """The result of releasing a cluster.

    Args:
        objects: titles of those that were released.
        started: the Operator was started.
        failures: what went wrong.
    """

    objects: list[str] = field(default_factory=list[str])
    started: bool = False
    failures: list[str] = field(default_factory=list[str])


def plan_release(objects: Objects, namespace: str) -> Handover:
    """What releasing a cluster means. Nothing is changed.

    Raises:
        ClusterError: a request failed.
    """
    namespaces = objects.list(BY_NAME["Namespace"], "")
    items = [item for item in namespaces if item["metadata"]["name"] == namespace]
    items += objects.find(BY_NAME["CustomResourceDefinition"], "")
    items += operand_objects(objects, namespace)
    touched = tuple(item for item in items if _is_touched(item) and not is_record(item))
    return Handover(namespace, touched, read_record(objects, namespace))


def _is_touched(item: Json) -> bool:
    """Whether an object has a label or fields of gpustate."""
    entries = item["metadata"].get("managedFields") or ()
    return bool(_labels(item["metadata"])) or any(
        entry.get("manager") == FIELD_MANAGER for entry in entries
    )


@dataclass(frozen=True)
class Releaser:
    """Releases a cluster's objects.

    Args:
        objects: of the cluster.
        emit: called with what is being done.
        stop: polled; once true, nothing more is written.
    """

    objects: Objects
    emit: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False

    def release(self, handover: Handover, *, start: bool) -> Released:
        """Carry out a plan.

        Args:
            handover: the plan.
            start: scale the Operator's Deployment to what it was.

        Raises:
            ClusterError: a request failed; the next run continues.
        """
        released = Released()
        owners = self._create_policies(handover)
        adopted = set((handover.record or {}).get("objects") or ())
        for item in handover.objects:
            if self.stop():
                released.failures.append("interrupted; run it again to continue")
                return released
            self.emit(f"release {title(item)}")
            self._let_go(item, owners if title(item) in adopted else ())
            released.objects.append(title(item))
        for node in self.objects.list(NODE, ""):
            self._drop_managers(node)
        if start and handover.deployment:
            released.started = self._start(handover)
        if handover.record is not None:
            self._forget(handover.namespace)
        return released

    def _create_policies(self, handover: Handover) -> tuple[Json, ...]:
        """The Operator's resources, created if they are not there."""
        policies: list[Json] = []
        for policy in handover.policies:
            kind = BY_NAME[policy["kind"]]
            name = policy["metadata"]["name"]
            same = [
                item for item in self.objects.list(kind, "") if item["metadata"]["name"] == name
            ]
            if not same:
                self.emit(f"create {title(policy)}")
                same = [self.objects.create(policy)]
            policies += same
        return tuple(policies)

    def _let_go(self, item: Json, owners: tuple[Json, ...]) -> None:
        def let_go(current: Json) -> None:
            if operations := list(_operations(current, owners)):
                current = {**current, **self.objects.patch(current, operations)}
            self._drop_managers(current)

        change_current(self.objects, item, let_go)

    def _drop_managers(self, item: Json) -> None:
        def drop(current: Json) -> None:
            entries = current["metadata"].get("managedFields") or []
            foreign = [entry for entry in entries if entry.get("manager") not in _MANAGERS]
            if len(foreign) < len(entries):
                # An empty list would be taken for a client that does not know the field.
                value: list[Json] = foreign or [{}]
                path = "/metadata/managedFields"
                self.objects.patch(current, [{"op": "replace", "path": path, "value": value}])

        change_current(self.objects, item, drop)

    def _start(self, handover: Handover) -> bool:
        for deployment in self.objects.list(DEPLOYMENT, handover.namespace):
            if deployment["metadata"]["name"] == handover.deployment:
                replicas = handover.replicas or 1
                if deployment["spec"].get("replicas") != replicas:
                    self.emit(f"scale {title(deployment)} to {replicas}")
                    scale(self.objects, deployment, replicas)
                return True
        return False

    def _forget(self, namespace: str) -> None:
        meta = {"name": RECORD, "namespace": namespace}
        self.objects.delete({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})


def _operations(item: Json, owners: tuple[Json, ...]) -> Iterator[Json]:
    """Operations that remove gpustate's labels and the Operator's hash, and set the owner."""
    meta = item["metadata"]
    for place, names in (("labels", _labels(meta)), ("annotations", _hash(meta))):
        for name in names:
            escaped = name.replace("~", "~0").replace("/", "~1")
            yield {"op": "remove", "path": f"/metadata/{place}/{escaped}"}
    policies = [owner for owner in owners if owner["kind"] != "NVIDIADriver"]
    if policies and not meta.get("ownerReferences"):
        owner = policies[0]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        yield {"op": "add", "path": "/metadata/ownerReferences", "value": [reference]}


def _labels(meta: JsonView) -> list[str]:
    labels = meta.get("labels") or {}
    return [name for name, value in OWNER.items() if labels.get(name) == value]


def _hash(meta: JsonView) -> list[str]:
    return [HASH] if HASH in (meta.get("annotations") or {}) else []
