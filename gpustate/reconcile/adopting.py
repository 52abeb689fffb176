"""Take the objects of an installed GPU Operator over, one by one, without restarting a pod.

First the Operator is stopped: its Deployment is scaled to 0, and its pods have to be gone. Then every object that belongs to
its ClusterPolicy becomes gpustate's as it stands: all its fields are applied by gpustate's field manager, and its owner
reference and the Operator's field manager are removed. Specifications are unchanged, so Kubernetes restarts no pod. When
nothing belongs to the ClusterPolicy any more, it is deleted; the garbage collector has nothing to collect.

Every step is decided from what is in the cluster, so an interrupted run is continued by the next one. What ``release``
needs, the ClusterPolicy among it, is in a ConfigMap before the first change.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (updates by PUT; a DaemonSet only if its hash differs);
    kubernetes.io, "Server-Side Apply": transferring ownership; "Owners and Dependents".
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.manifests.differences import GENERATION, Difference, differences
from gpustate.manifests.kinds import BY_NAME, CLUSTER_POLICY, KINDS, Key, Kind, key, order, title
from gpustate.manifests.ownership import OWNER, StaleObject
from gpustate.reconcile.owners import Operator, find_operator, gitops
from gpustate.reconcile.planning import is_ours

#: The ConfigMap with what ``release`` needs.
RECORD = "gpustate-adopted"
RECORD_LABEL = {"gpustate.io/record": "adopted"}
#: Of a DaemonSet: the Operator updates it if this differs from what it wants.
HASH = "nvidia.com/last-applied-hash"
_PODS = Kind("Pod", "v1", "pods", namespaced=True)
_SERVER_FIELDS = (
    *("creationTimestamp", "generation", "managedFields", "ownerReferences"),
    *("resourceVersion", "selfLink", "uid", "deletionTimestamp", "deletionGracePeriodSeconds"),
)
#: Kinds that the Operator's chart creates, not the Operator.
_OF_NOBODY = ("Namespace", "CustomResourceDefinition")
#: States that replace a DaemonSet, by the section of the Operator's files.
_SERVICES = {"dcgm": "dcgm", "dcgmExporter": "dcgm-exporter"}
_TRIES = 5
_POLL_S = 0.5


class Objects(Protocol):
    """The requests that are needed; see :class:`gpustate.cluster.objects.Objects`."""

    @property
    def server(self) -> str: ...
    def find(
        self, kind: Kind, namespace: str, *, labels: Mapping[str, str] | None = None
    ) -> list[Json]: ...
    def list(
        self, kind: Kind, namespace: str, *, labels: Mapping[str, str] | None = None
    ) -> list[Json]: ...
    def apply(self, item: Json, *, force: bool = False, dry_run: bool = False) -> Json: ...
    def create(self, item: Json, *, dry_run: bool = False) -> Json: ...
    def patch(self, item: Json, operations: Sequence[Json]) -> Json: ...
    def delete(self, item: Json, *, orphan: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Adoptee:
    """One object of the Operator.

    Args:
        item: as it is.
        in_policy: in the policy; otherwise the next apply deletes it.
        differences: what the next apply changes.
        reason: why that is unknown, or why it is not in the policy.
    """

    item: Json
    in_policy: bool
    differences: tuple[Difference, ...] = ()
    reason: str = ""

    @property
    def restarts(self) -> bool:
        """Whether the next apply replaces its pods."""
        return self.item["kind"] == "DaemonSet" and any(
            difference.field.startswith("spec.template") for difference in self.differences
        )


@dataclass(frozen=True, slots=True)
class Adoption:
    """What taking over a cluster means.

    Args:
        operator: what is installed.
        namespace: of its objects.
        objects: to take over, in order.
        refusals: why it is refused.
    """

    operator: Operator
    namespace: str
    objects: tuple[Adoptee, ...]
    refusals: tuple[str, ...]


@dataclass(slots=True)
class Adopted:
    """The result of taking over.

    Args:
        objects: titles of those that are gpustate's now.
        pods: how many pods of the Operator's DaemonSets run as before.
        applied: titles of those that were then changed to what the policy says; ``None``: that was not asked for.
        failures: what went wrong.
    """

    objects: list[str] = field(default_factory=list[str])
    pods: int = 0
    applied: list[str] | None = None
    failures: list[str] = field(default_factory=list[str])


def plan_adoption(
    objects: Objects,
    items: Sequence[Json],
    namespace: str,
    *,
    force: bool = False,
    states: Collection[str] = (),
) -> Adoption | None:
    """What taking over means; ``None`` if no Operator is at work. Nothing is changed.

    Args:
        objects: of the cluster.
        items: what the policy wants.
        namespace: of these objects.
        force: stop an Operator that Argo CD or Flux would start again.
        states: names of the policy's states of nodes.

    Raises:
        ClusterError: a request failed.
    """
    operator = find_operator(objects)
    if operator is None:
        return None
    owned = [item for item in operand_objects(objects, namespace) if _is_pending(item, operator)]
    if not (owned or operator.policies or operator.running):
        return None
    by_key = {key(item): item for item in items}
    adoptees = tuple(_judge(objects, item, by_key, states) for item in sorted(owned, key=order))
    refusals = tuple(_refusals(operator, namespace, owned, force=force))
    return Adoption(operator, namespace, adoptees, refusals)


def operand_objects(objects: Objects, namespace: str) -> Iterator[Json]:
    """Objects of the kinds that the Operator creates."""
    for kind in KINDS:
        if kind.name not in _OF_NOBODY:
            yield from objects.find(kind, namespace)


def _is_pending(item: Json, operator: Operator) -> bool:
    """Whether an object still belongs to the Operator, by its owner or by a field manager."""
    uids = {policy["metadata"]["uid"] for policy in (*operator.policies, *operator.drivers)}
    return any(owner["uid"] in uids for owner in _owners(item)) or bool(
        is_ours(item) and _foreign_entries(item)
    )


def _owners(item: Json) -> list[Json]:
    return list(item["metadata"].get("ownerReferences") or ())


def _foreign_entries(item: Json) -> list[int]:
    """Positions in ``managedFields`` of who sets owner references: the Operator."""
    return [
        position
        for position, entry in enumerate(item["metadata"].get("managedFields") or ())
        if entry.get("operation") == "Update"
        and not entry.get("subresource")
        and "f:ownerReferences" in ((entry.get("fieldsV1") or {}).get("f:metadata") or {})
    ]


def _judge(
    objects: Objects, item: Json, by_key: Mapping[Key, Json], states: Collection[str]
) -> Adoptee:
    """Compare an object with the policy's, as the API server would create that one."""
    policy_item = by_key.get(key(item))
    if policy_item is None:
        reasons = [
            f"the policy has it as a service of the nodes; as pods with --set {section}.enabled=null"
            for section, state in _SERVICES.items()
            if state in states and title(item) == f"daemonset/nvidia-{state}"
        ]
        return Adoptee(item, in_policy=False, reason="".join(reasons))
    trial = copy.deepcopy(policy_item)
    trial["metadata"]["name"] = f"gpustate-{policy_item['metadata']['name']}"[:63]
    try:
        fresh = objects.create(trial, dry_run=True)
    except ClusterError as error:
        return Adoptee(item, in_policy=True, reason=str(error))
    before, after = copy.deepcopy(item), fresh
    after["metadata"]["name"] = before["metadata"]["name"]
    for version in (before, after):
        for name in (*OWNER, HASH):
            for place in ("labels", "annotations"):
                (version["metadata"].get(place) or {}).pop(name, None)
    return Adoptee(item, in_policy=True, differences=tuple(differences(before, after)))


def _refusals(
    operator: Operator, namespace: str, owned: Iterable[Json], *, force: bool
) -> Iterator[str]:
    """Why a cluster is not taken over."""
    if any(policy["kind"] == "GPUCluster" for policy in operator.policies):
        yield "it has a GPUCluster, which orders the removal of the DRA driver itself; only a ClusterPolicy can be adopted"
    if operator.namespace and operator.namespace != namespace:
        yield (
            f"its objects are in the namespace {operator.namespace}, the policy's in {namespace}; "
            f"pass --set cluster.namespace={operator.namespace}"
        )
    if operator.source.startswith("OLM"):
        yield (
            f"{operator.source} would start it again; delete its Subscription, and the "
            "ClusterServiceVersion with --cascade=orphan"
        )
    elif operator.deployment is not None and (manager := gitops(operator.deployment)) and not force:
        yield (
            f"{manager} would start it again; suspend that first, or pass --force-conflicts if it is "
            "suspended"
        )
    for item in owned:
        if item["kind"] != "DaemonSet" or "nvidia.com/gpu.deploy.driver" not in (
            item["spec"]["template"]["spec"].get("nodeSelector") or {}
        ):
            continue
        pods = (item.get("status") or {}).get("desiredNumberScheduled", 0)
        if pods:
            yield (
                f"{title(item)} runs the driver as a container on {pods} nodes, and gpustate manages "
                "drivers of hosts. Each node has to be drained, so that the container can unload the "
                "driver: set driver.enabled to false in the ClusterPolicy, wait until its pods are gone, "
                "then install the driver with gpustate apply"
            )


@dataclass(frozen=True)
class Adopter:
    """Takes a cluster over.

    Args:
        objects: of the cluster.
        timeout_s: seconds within which the Operator's pods are gone.
        emit: called with what is being done.
        stop: polled; once true, nothing more is written.
        sleep, clock: wait, and the time in seconds.
    """

    objects: Objects
    timeout_s: float
    emit: Callable[[str], None] = lambda text: None
    stop: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def adopt(self, adoption: Adoption) -> Adopted:
        """Carry out a plan; refused ones are not carried out.

        Raises:
            ClusterError: a request failed; the next run continues.
        """
        adopted = Adopted()
        if adoption.refusals:
            adopted.failures += adoption.refusals
            return adopted
        before = self._pods(adoption)
        self._record(adoption)
        self._stop_operator(adoption)
        for adoptee in adoption.objects:
            if self.stop():
                adopted.failures.append("interrupted; run it again to continue")
                return adopted
            self.emit(f"adopt {title(adoptee.item)}")
            self._take_over(adoptee.item, adoption.operator)
            adopted.objects.append(title(adoptee.item))
        self._delete_policies(adoption)
        self._verify(adoption, before, adopted)
        return adopted

    def _pods(self, adoption: Adoption) -> dict[str, str]:
        """Names of the pods of the Operator's DaemonSets, by uid."""
        uids = {
            item["metadata"]["uid"]
            for item in self.objects.list(BY_NAME["DaemonSet"], adoption.namespace)
        }
        return {
            pod["metadata"]["uid"]: pod["metadata"]["name"]
            for pod in self.objects.list(_PODS, adoption.namespace)
            if any(owner["uid"] in uids for owner in _owners(pod))
        }

    def _record(self, adoption: Adoption) -> None:
        """Write down what ``release`` needs; what an earlier run has written is kept."""
        namespace = adoption.namespace
        if read_record(self.objects, namespace) is not None:
            return
        self.objects.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": RECORD, "namespace": namespace, "labels": RECORD_LABEL},
                "data": {"record.json": json.dumps(_record_of(adoption), indent=1) + "\n"},
            }
        )

    def _stop_operator(self, adoption: Adoption) -> None:
        deployment = adoption.operator.deployment
        if deployment is None:
            return
        if deployment["spec"].get("replicas", 1):
            self.emit(f"scale {title(deployment)} to 0")
            scale(self.objects, deployment, 0)
        name, namespace = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
        labels = deployment["spec"]["selector"]["matchLabels"]
        end = self.clock() + self.timeout_s
        while pods := self.objects.find(_PODS, namespace, labels=labels):
            if self.clock() > end or self.stop():
                raise ClusterError(
                    f"deployment/{name}: {len(pods)} pods still run after {self.timeout_s:.0f} s",
                    fix="delete them, then run it again",
                )
            self.sleep(_POLL_S)

    def _take_over(self, item: Json, operator: Operator) -> None:
        """Make one object gpustate's as it stands, and cut what ties it to the Operator."""
        uids = {policy["metadata"]["uid"] for policy in (*operator.policies, *operator.drivers)}

        def take(current: Json) -> None:
            if not is_ours(current):
                current = self.objects.apply(as_applied(current), force=True)
            if operations := _cuts(current, uids):
                self.objects.patch(current, operations)

        change_current(self.objects, item, take)

    def _delete_policies(self, adoption: Adoption) -> None:
        """Delete the Operator's resources, if nothing belongs to them any more."""
        if not adoption.operator.policies and not adoption.operator.drivers:
            return
        owned = [
            title(item)
            for item in operand_objects(self.objects, adoption.namespace)
            if _is_pending(item, adoption.operator)
        ]
        if owned:
            raise ClusterError(
                f"still of the Operator: {', '.join(owned[:5])}; it may be running",
                fix="stop what starts it, then run it again",
            )
        for policy in (*adoption.operator.drivers, *adoption.operator.policies):
            self.emit(f"delete {title(policy)}, and keep what belonged to it")
            self.objects.delete(policy, orphan=True)
        end = self.clock() + self.timeout_s
        while self._policies_left(adoption):  # the garbage collector deletes it last
            if self.clock() > end or self.stop():
                raise ClusterError(
                    f"{title(adoption.operator.policies[0])} is not gone after {self.timeout_s:.0f} s",
                    fix="remove its finalizers, then run it again",
                )
            self.sleep(_POLL_S)

    def _policies_left(self, adoption: Adoption) -> bool:
        uids = {policy["metadata"]["uid"] for policy in adoption.operator.policies}
        policies = self.objects.find(CLUSTER_POLICY, "")
        return any(policy["metadata"]["uid"] in uids for policy in policies)

    def _verify(self, adoption: Adoption, before: Mapping[str, str], adopted: Adopted) -> None:
        """The objects are gpustate's, and the same pods run."""
        by_key = {key(item): item for item in operand_objects(self.objects, adoption.namespace)}
        for adoptee in adoption.objects:
            live = by_key.get(key(adoptee.item))
            if live is None:
                adopted.failures.append(f"{title(adoptee.item)} is gone")
            elif not is_ours(live) or _is_pending(live, adoption.operator):
                adopted.failures.append(f"{title(adoptee.item)} is still of the Operator")
        after = self._pods(adoption)
        adopted.pods = len(set(after) & set(before))
        lost = sorted(name for uid, name in before.items() if uid not in after)
        if lost:
            adopted.failures.append(f"pods ended meanwhile: {', '.join(lost)}")


def as_applied(item: Json) -> Json:
    """An object as gpustate applies it to own all fields of it, with its labels."""
    applied: Json = _without_nulls(copy.deepcopy(item))
    applied.pop("status", None)
    meta = applied["metadata"]
    for name in _SERVER_FIELDS:
        meta.pop(name, None)
    (meta.get("annotations") or {}).pop(GENERATION, None)
    meta["labels"] = {**(meta.get("labels") or {}), **OWNER}
    return applied


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [_without_nulls(child) for child in value]
    return value


def _cuts(item: Json, uids: set[str]) -> list[Json]:
    """Operations that remove owner references and the Operator's field manager."""
    owners = [owner for owner in _owners(item) if owner["uid"] not in uids]
    operations: list[Json] = []
    if len(owners) < len(_owners(item)):
        path = "/metadata/ownerReferences"
        operations.append(
            {"op": "replace", "path": path, "value": owners}
            if owners
            else {"op": "remove", "path": path}
        )
    operations += [
        {"op": "remove", "path": f"/metadata/managedFields/{position}"}
        for position in reversed(_foreign_entries(item))
    ]
    return operations


def change_current(objects: Objects, item: Json, change: Callable[[Json], None]) -> None:
    """Change an object; whenever somebody has changed it meanwhile, read it and change it again.

    Raises:
        ClusterError: it is gone, or somebody changes it all the time.
    """
    for _ in range(_TRIES):
        try:
            return change(item)
        except StaleObject:
            listed = objects.list(BY_NAME[item["kind"]], item["metadata"].get("namespace", ""))
            same = [current for current in listed if key(current) == key(item)]
            if not same:
                raise ClusterError(f"{title(item)} is gone", fix="run it again") from None
            item = same[0]
    raise ClusterError(f"{title(item)}: somebody changes it all the time", fix="run it again later")


def scale(objects: Objects, deployment: Json, replicas: int) -> None:
    """Set the number of pods of a Deployment."""
    objects.patch(deployment, [{"op": "add", "path": "/spec/replicas", "value": replicas}])


def _record_of(adoption: Adoption) -> Json:
    """What ``release`` needs."""
    operator = adoption.operator
    deployment = operator.deployment
    return {
        "operator": operator.describe(),
        "policies": [_as_created(policy) for policy in (*operator.policies, *operator.drivers)],
        "deployment": deployment["metadata"]["name"] if deployment is not None else "",
        "replicas": deployment["spec"].get("replicas", 1) if deployment is not None else 0,
        "objects": [title(adoptee.item) for adoptee in adoption.objects],
    }


def _as_created(item: Json) -> Json:
    """An object as somebody would create it again."""
    created = copy.deepcopy(item)
    created.pop("status", None)
    for name in _SERVER_FIELDS:
        created["metadata"].pop(name, None)
    return created


def is_record(item: Json) -> bool:
    """Whether an object is what ``release`` needs."""
    return key(item) == ("ConfigMap", RECORD)


def read_record(objects: Objects, namespace: str) -> Json | None:
    """What was written down when the cluster was taken over; ``None`` if it was not."""
    for item in objects.list(BY_NAME["ConfigMap"], namespace):
        if is_record(item):
            record: Json = json.loads(item["data"]["record.json"])
            return record
    return None
