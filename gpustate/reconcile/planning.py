"""Compare a cluster's objects with those of a policy, and decide what to do with each.

The API server itself decides what differs: every object is applied as a dry run, so that defaults and fields of other
managers are judged by the server. An object that is not gpustate's is left alone if it is as wanted, and refused if
it is not. Labels of Nodes are compared here, by who applied which, and only the first that changes is a dry run: a
cluster may have thousands of Nodes.

Surprising: after ``kubectl edit`` of a field that gpustate had applied, that field belongs to kubectl. Applying it again
is a conflict, which is refused unless it is forced.

Sources:
    kubernetes.io/docs/reference/using-api/server-side-apply: conflicts, ownership of fields.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.manifests.differences import Difference, additions, differences
from gpustate.manifests.kinds import (
    BY_NAME,
    COMPUTE_DOMAINS,
    KINDS,
    NODE,
    Key,
    Kind,
    key,
    order,
    title,
)
from gpustate.manifests.ownership import (
    DEVICE_PLUGIN,
    DRA_LEASE,
    DRA_PLUGIN,
    FIELD_MANAGER,
    LABEL_MANAGER,
    NFD_DEFINITION,
    NFD_LEASE,
    OWNER,
    FieldConflict,
    MissingKind,
    applied_labels,
    is_of_nfd,
    is_owned,
    label_names,
    owned_fields,
)
from gpustate.reconcile.features import FEATURES, is_by_worker, is_left_over
from gpustate.reconcile.owners import OF_OPERATOR, gitops, operator_owner

#: Names a field manager in the API server's message about a conflict.
_CONFLICT = re.compile(r'conflicts? with "([^"]+)"')


class Objects(Protocol):
    """The requests that are needed; see :class:`gpustate.cluster.objects.Objects`."""

    @property
    def server(self) -> str: ...
    def list(self, kind: Kind, namespace: str, names: Collection[str] = ()) -> list[Json]: ...
    def content(self, namespace: str) -> tuple[Sequence[Json], Sequence[str]]: ...
    def apply(self, item: Json, *, force: bool = False, dry_run: bool = False) -> Json: ...
    def delete(self, item: Json, *, dry_run: bool = False) -> None: ...
    def merge(self, item: Json, patch: Json, *, status: bool = False) -> None: ...
    def patch(self, item: Json, operations: Sequence[Json]) -> Json: ...


class Action(StrEnum):
    """What happens to an object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RELEASE = "release"  # of another's object: remove the fields that are ours
    UNCHANGED = "unchanged"
    FOREIGN = "not managed"  # of others, and as wanted
    SKIPPED = "skipped"  # not for this cluster
    REFUSED = "refused"


#: Values by which a run keeps programs off a Node while it changes it.
_PAUSED = "paused-for-"
_DEFINITION = "CustomResourceDefinition"
_FOREIGN_NFD = "node feature discovery is in the cluster already, and is used"
_USED = "kept, because others use it"
_PRUNED = "its labels, annotations, extended resources and taints are removed from the Nodes"
#: In every namespace, and what programs of gpustate's objects write.
_BUILT_IN = (
    ("ConfigMap", "kube-root-ca.crt"),
    ("ConfigMap", "openshift-service-ca.crt"),
    ("ServiceAccount", "default"),
    ("Lease", NFD_LEASE),
    ("Lease", DRA_LEASE),
)
#: Actions that write.
PENDING = (Action.CREATE, Action.UPDATE, Action.DELETE, Action.RELEASE)


@dataclass(frozen=True, slots=True)
class Change:
    """One object.

    Args:
        item: as it is applied, or as it is to be deleted.
        action: what happens to it.
        differences: its fields that change.
        reason: why it is refused or skipped; of others a note.
    """

    item: Json
    action: Action
    differences: tuple[Difference, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What should be in a cluster.

    Args:
        items: the objects, in the order of their application; none: everything of gpustate is removed.
        namespace: of the objects that are in one.
        labels: by Node, the labels it should have.
        absent: remove everything of gpustate.
        force: take over fields of other managers, and objects that are not gpustate's.
        prune: delete objects of gpustate that are not among the items.
        kept_nodes: Nodes that a removal leaves as they are; all objects stay for them, and other Nodes lose their labels.
        objects_stay: all objects stay, as other Nodes have not had their turn yet.
        drained: pods that hold claims of the DRA driver leave before it does.
    """

    items: Sequence[Json]
    namespace: str
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    absent: bool = False
    force: bool = False
    prune: bool = True
    kept_nodes: frozenset[str] = frozenset()
    objects_stay: bool = False
    drained: bool = False

    @property
    def labels_only(self) -> bool:
        """A removal only takes labels of Nodes."""
        return self.objects_stay or bool(self.kept_nodes)

    @property
    def defined(self) -> set[str]:
        """Kinds that its custom resource definitions add to the cluster."""
        return {item["spec"]["names"]["kind"] for item in self.items if item["kind"] == _DEFINITION}

    def uses(self, definition: Json) -> bool:
        """Whether it has objects of a custom resource definition, or programs that write such objects."""
        names = definition["spec"]["names"]
        roles = (item for item in self.items if item["kind"] == "Role")
        written = {name for role in roles for rule in role["rules"] for name in rule["resources"]}
        kinds = {item["kind"] for item in self.items}
        return names["kind"] in kinds or names["plural"] in written


@dataclass(slots=True)
class _Cluster:
    """The objects of a cluster, by kind and name."""

    by_key: dict[Key, Json]
    missing: dict[str, str]  # kinds that the cluster lacks, and what to do about it
    foreign_nfd: bool = False  # others have installed node feature discovery

    def get(self, item: Json) -> Json | None:
        return self.by_key.get(key(item))

    @property
    def own_items(self) -> list[Json]:
        return [item for item in self.by_key.values() if is_ours(item)]


def is_ours(item: Json) -> bool:
    """Whether gpustate has created an object: it has one of our labels, which we applied.

    Another manager may apply the same labels, as Argo CD does with rendered objects.
    """
    labels = item["metadata"].get("labels") or {}
    applied = label_names(owned_fields(item, FIELD_MANAGER))
    return any(labels.get(name) == value and name in applied for name, value in OWNER.items())


def is_kept(item: Json) -> bool:
    """Whether an object is a definition that a removal kept for others, and that nobody has changed since."""
    entries = item["metadata"].get("managedFields") or ()
    managers = {
        entry.get("manager")
        for entry in entries
        if not entry.get("subresource") and "f:spec" in (entry.get("fieldsV1") or {})
    }
    return item["kind"] == _DEFINITION and not is_ours(item) and managers == {FIELD_MANAGER}


def plan(objects: Objects, target: Target, nodes: Sequence[Json] | None = None) -> list[Change]:
    """Compare the cluster with the target. Nothing is changed.

    Args:
        objects: of the cluster.
        target: what should be there.
        nodes: all Nodes, if they were listed just now.

    Raises:
        ClusterError: a request failed that no object can be judged without.
    """
    if target.labels_only:
        return list(_label(objects, target, objects.list(NODE, "") if nodes is None else nodes))
    cluster = _read(objects, target)
    cluster.foreign_nfd = _has_foreign_nfd(objects, target, cluster)
    keys = {key(item) for item in target.items}
    changes = [_judge(objects, target, cluster, item) for item in target.items]
    stale = [
        item
        for item in cluster.own_items
        if target.prune
        and key(item) not in keys
        and not (item["kind"] == _DEFINITION and target.uses(item))
    ]
    deleted = [
        _deletion(objects, target, keys, item) for item in sorted(stale, key=order, reverse=True)
    ]
    if (last := prunes_after(target, deleted)) is not None:
        reasons = filter(None, (deleted[last].reason, _PRUNED))
        deleted[last] = replace(deleted[last], reason="; ".join(reasons))
    changes += deleted
    released = [
        item
        for item in cluster.by_key.values()
        if item["kind"] == "Namespace" and key(item) not in keys and not is_ours(item)
    ]
    changes += [
        Change(_name_only(item), Action.RELEASE, reason="it is not gpustate's, and is kept")
        for item in released
        if owned_fields(item, FIELD_MANAGER)
    ]
    if target.labels or target.absent:
        changes += _label(objects, target, objects.list(NODE, "") if nodes is None else nodes)
    return changes


def prunes_after(target: Target, changes: Sequence[Change]) -> int | None:
    """The change at which node feature discovery is gone from the cluster; ``None``: it is not removed.

    It is the last one of it, so that a removal that was interrupted goes on there.
    """
    if any(is_of_nfd(item) for item in target.items):
        return None
    deleted = (
        index
        for index, change in enumerate(changes)
        if change.action in (Action.DELETE, Action.RELEASE) and is_of_nfd(change.item)
    )
    return max(deleted, default=None)


def withdrawn(objects: Objects, target: Target, changes: Iterable[Change]) -> dict[str, Json]:
    """DaemonSets of ours that offer GPUs and go from Nodes, by name: with their labels alone while other Nodes keep them."""
    items = [change.item for change in changes if change.action is Action.DELETE]
    if target.labels_only:
        items = [*filter(is_ours, objects.list(BY_NAME["DaemonSet"], target.namespace))]
    daemonsets = {name: item for item in items for kind, name in [key(item)] if kind == "DaemonSet"}
    return {name: daemonsets[name] for name in daemonsets.keys() & {DEVICE_PLUGIN, DRA_PLUGIN}}


#: What a pod of a DaemonSet needs to be created and to start.
_STAGED = frozenset(
    {
        *("ConfigMap", "Secret", "ServiceAccount", "RuntimeClass", "DaemonSet"),
        *("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    }
)


def staged(target: Target) -> Target:
    """The part of a target that pods of components are made of, and what these need to start."""
    items = [item for item in target.items if item["kind"] in _STAGED and not is_of_nfd(item)]
    return replace(target, items=items, labels={}, prune=False)


def for_new_pods(changes: Iterable[Change]) -> Iterator[Change]:
    """Changes of DaemonSets that are there already, which only pods get that are created again, after what these need."""
    pending = [change for change in changes if change.action in (Action.CREATE, Action.UPDATE)]
    sets = [
        change
        for change in pending
        if change.item["kind"] == "DaemonSet"
        and any(row.field.startswith("spec.template") for row in change.differences)
        and change.action is Action.UPDATE
    ]
    for change in pending:
        configures = change.item["kind"] == "ConfigMap" and change.action is Action.UPDATE
        if change.item["kind"] != "DaemonSet" and (sets or configures):
            yield change
    for change in sets:
        spec = {**change.item["spec"], "updateStrategy": {"type": "OnDelete"}}
        yield replace(change, item={**change.item, "spec": spec})


def _read(objects: Objects, target: Target) -> _Cluster:
    """One list per kind."""
    cluster = _Cluster({}, {})
    names = {item["metadata"]["name"] for item in target.items if BY_NAME[item["kind"]].large}
    kinds = {item["kind"] for item in target.items}
    for kind in (kind for kind in KINDS if target.prune or kind.name in kinds):
        kind_names = names if kind.large else ()
        try:
            items = objects.list(kind, target.namespace, kind_names)
            cluster.by_key |= {key(item): item for item in items}
        except MissingKind as error:
            cluster.missing[kind.name] = f"{error.message}: {error.fix}"
    return cluster


def _has_foreign_nfd(objects: Objects, target: Target, cluster: _Cluster) -> bool:
    """Whether others have installed node feature discovery, so that another one would be in their way."""
    definition = cluster.by_key.get((_DEFINITION, NFD_DEFINITION))
    if definition is None or is_ours(definition):
        return False
    if not is_kept(definition):
        return True
    # It may serve another node feature discovery now, or only programs that publish features.
    items = cluster.by_key.values()
    has_daemonset = any(item["kind"] == "DaemonSet" and not is_ours(item) for item in items)
    return any(
        is_by_worker(feature)
        and (has_daemonset or feature["metadata"]["namespace"] != target.namespace)
        for feature in objects.list(FEATURES, "*")
    )


def _judge(objects: Objects, target: Target, cluster: _Cluster, item: Json) -> Change:
    if is_of_nfd(item) and cluster.foreign_nfd:
        return Change(item, Action.SKIPPED, reason=_FOREIGN_NFD)
    if item["kind"] in cluster.missing and item["kind"] not in target.defined:
        return Change(item, Action.SKIPPED, reason=cluster.missing[item["kind"]])
    if undefined := _undefined(objects, item):
        return Change(item, Action.REFUSED, reason=undefined)
    live = cluster.get(item)
    if live is None:
        return _creation(objects, target, cluster, item)
    operator = operator_owner(live)
    if operator:
        return Change(item, Action.REFUSED, reason=f"{OF_OPERATOR} ({operator})")
    owner = _controller(live)
    if owner:
        return Change(
            item,
            Action.REFUSED,
            reason=f"it belongs to {owner}, which would change it back; remove that first",
        )
    if is_ours(live) or is_kept(live):
        return _comparison(objects, live, item, force=target.force)
    if item["kind"] == "Namespace":
        return _in_foreign_namespace(objects, target, live, item)
    return _foreign(objects, target, live, item)


def _undefined(objects: Objects, item: Json) -> str:
    """What the cluster lacks that a program of compute domains needs; empty: nothing."""
    template = (item.get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    if any(container["name"].startswith("compute-domain") for container in containers):
        try:
            for kind in COMPUTE_DOMAINS:
                objects.list(kind, "*")
        except MissingKind as error:
            return f"{error.message}: {error.fix}"
    return ""


def _creation(objects: Objects, target: Target, cluster: _Cluster, item: Json) -> Change:
    """A new object; the server judges it, unless it needs another one, or a label of its namespace, that is not there yet."""
    namespace = item["metadata"].get("namespace")
    role = item.get("roleRef")
    waits = namespace is not None and ("Namespace", namespace) not in cluster.by_key
    waits = waits or (role is not None and (role["kind"], role["name"]) not in cluster.by_key)
    waits = waits or item["kind"] in cluster.missing
    if not waits:
        try:
            objects.apply(item, dry_run=True)
        except ClusterError as error:
            if not any(label in str(error) for label in _added_labels(target, cluster)):
                return Change(item, Action.REFUSED, reason=str(error))
    return Change(item, Action.CREATE)


def _added_labels(target: Target, cluster: _Cluster) -> list[str]:
    """The labels that the run adds to the namespace, without which the server may refuse objects in it."""
    for item in target.items:
        if item["kind"] == "Namespace" and (live := cluster.get(item)) is not None:
            labels = live["metadata"].get("labels") or {}
            labels_of_item = item["metadata"]["labels"].items()
            return [name for name, value in labels_of_item if labels.get(name) != value]
    return []


def _deletion(objects: Objects, target: Target, keys: Collection[Key], item: Json) -> Change:
    """An object of ours that is to go; the server judges whether it may. It stays if others use it."""
    # It knows the components, which commands without a cluster need not read.
    from gpustate.reconcile.switching import DRA, allocations_lost

    try:
        leave = target.drained and key(item) == DRA
        if not leave and (users := allocations_lost(objects, keys, item)):
            return Change(item, Action.REFUSED, reason=users)
        if item["metadata"].get("deletionTimestamp"):
            return Change(item, Action.DELETE)
        if (manager := gitops(item)) and not target.force:
            words = f"{manager} applies it too, and would create it again: remove it there, or --force-conflicts"
            return Change(item, Action.REFUSED, reason=words)
        objects.delete(item, dry_run=True)
        reason = kept_for(objects, target, item)
    except ClusterError as error:
        return Change(item, Action.REFUSED, reason=str(error))
    return Change(item, Action.RELEASE if reason else Action.DELETE, reason=reason)


def kept_for(objects: Objects, target: Target, item: Json) -> str:
    """Why a namespace or a definition is not deleted; empty if it is, and for every other kind.

    Raises:
        ClusterError: a request failed.
    """
    if item["kind"] == "Namespace":
        name = item["metadata"]["name"]
        return kept_namespace(name, *objects.content(name))
    if item["kind"] == _DEFINITION:
        users = _others_of(objects, target.namespace, item)
        return f"{_USED}: {users}" if users else ""
    return ""


def _others_of(objects: Objects, namespace: str, definition: Json) -> str:
    """Objects of a kind that are not gpustate's, nor its pods'; empty if its definition can go."""
    spec = definition["spec"]
    group, names = spec["group"], spec["names"]
    version = next(row["name"] for row in spec["versions"] if row["storage"])
    namespaced = spec["scope"] == "Namespaced"
    kind = Kind(names["kind"], f"{group}/{version}", names["plural"], namespaced=namespaced)
    foreign = [item for item in objects.list(kind, "*") if not is_owned(item)]
    if kind.name != FEATURES.name:
        return _short(
            title(item) for item in foreign if not item["metadata"].get("ownerReferences")
        )
    programs = objects.list(BY_NAME["DaemonSet"], namespace) if foreign else ()
    alone = all(is_owned(daemonset) for daemonset in programs)
    return _short(title(item) for item in foreign if not (alone and is_left_over(item, namespace)))


def kept_namespace(namespace: str, content: Iterable[Json], unread: Iterable[str]) -> str:
    """Why a namespace is not deleted; empty if it is.

    Args:
        namespace: its name.
        content: all that can be listed in it; what has an owner goes with that.
        unread: resources that cannot be listed there.
    """
    foreign = _short(
        title(item)
        for item in content
        if key(item) not in _BUILT_IN
        and not is_ours(item)
        and not item["metadata"].get("ownerReferences")
        and not is_left_over(item, namespace)
    )
    if foreign:
        return f"{_USED}: {foreign}"
    names = _short(unread)
    command = f"kubectl delete namespace {namespace}"
    words = f"kept, because these cannot be listed there: {names}; if nobody needs it, {command}"
    return words if names else ""


def _short(words: Iterable[str]) -> str:
    """The first of many, in one line."""
    titles = list(words)
    return ", ".join([*titles[:5], *(["..."] if titles[5:] else [])])


def _comparison(objects: Objects, live: Json, item: Json, *, force: bool) -> Change:
    """An object of ours, compared with what applying it would result in."""
    conflict = ""
    try:
        try:
            after = objects.apply(item, dry_run=True)
        except FieldConflict as error:
            conflict = str(error)
            after = objects.apply(item, force=True, dry_run=True)
    except ClusterError as error:
        return Change(item, Action.REFUSED, reason=str(error))
    diffs = tuple(differences(live, after))
    if conflict and not force:
        also = f"; {manager} applies this object" if (manager := gitops(live)) else ""
        reason = f"{conflict}{also}; take over with --force-conflicts"
        return Change(item, Action.REFUSED, diffs, reason)
    if not diffs and (added := additions(live)):
        by = ", ".join(dict.fromkeys(addition.manager for addition in added))
        diffs = tuple(addition.difference for addition in added)
        if force:
            return Change(item, Action.UPDATE, diffs, f"added by {by}, and removed")
        reason = f"added by {by}, and kept; --force-conflicts removes it"
        return Change(item, Action.FOREIGN, diffs, reason)
    if not diffs:  # who owns its fields is no difference: as long as nobody changes them, all agree
        return Change(item, Action.UNCHANGED)
    managers = ", ".join(dict.fromkeys(_CONFLICT.findall(conflict))) or "others"
    return Change(item, Action.UPDATE, diffs, f"taken over from {managers}" if conflict else "")


def _in_foreign_namespace(objects: Objects, target: Target, live: Json, item: Json) -> Change:
    """A namespace that existed before: only the labels for Pod Security are ours."""
    unowned = _without_owner(item)
    if not unowned["metadata"]["labels"] and not owned_fields(live, FIELD_MANAGER):
        return Change(unowned, Action.FOREIGN)
    return _comparison(objects, live, unowned, force=target.force)


def _foreign(objects: Objects, target: Target, live: Json, item: Json) -> Change:
    """An object that others have created."""
    try:
        after = objects.apply(_without_owner(item), force=True, dry_run=True)
    except ClusterError as error:
        return Change(item, Action.REFUSED, reason=str(error))
    diffs = tuple(differences(live, after))
    if not diffs:
        by = f"{manager} applies it" if (manager := gitops(live)) else "it is not gpustate's"
        return Change(item, Action.FOREIGN, reason=f"{by}, and as wanted")
    if target.force:
        return Change(item, Action.UPDATE, diffs, "taken over")
    managers = ", ".join(
        dict.fromkeys(
            str(entry.get("manager")) for entry in live["metadata"].get("managedFields") or ()
        )
    )
    by = f" (managed by {managers})" if managers else ""
    reason = f"it exists, is not gpustate's{by}, and differs; take it over with --force-conflicts"
    if manager := gitops(live):
        reason = f"{manager} applies it, and would change it back: commit the output of gpustate cluster render there"
    return Change(item, Action.REFUSED, diffs, reason)


def _label(objects: Objects, target: Target, nodes: Iterable[Json]) -> Iterable[Change]:
    """Labels of Nodes. Values that others have set are kept: they switch a component off on one Node."""
    tried = False
    for node in nodes:
        applied = applied_labels(node)
        desired = {} if target.absent else target.labels.get(node["metadata"]["name"])
        if (
            desired is None
            or not (desired or applied)
            or node["metadata"]["name"] in target.kept_nodes
        ):
            continue
        labels = node["metadata"].get("labels") or {}
        labels_kept = {
            label: labels[label] if labels.get(label, "").startswith(_PAUSED) else value
            for label, value in desired.items()
            if label in applied or not labels.get(label) or labels[label] == value
        }
        change = _labelled(node, labels_kept, applied)
        if change is None or (not tried and change.action is Action.UPDATE):
            item = _with_labels(node, labels_kept)
            change, tried = _comparison(objects, node, item, force=target.force), True
        yield replace(change, action=Action.RELEASE) if target.absent else change


def _labelled(node: Json, new_labels: Mapping[str, str], applied: set[str]) -> Change | None:
    """The change of a Node's labels; ``None``: another manager has applied one of them too, so the server has to judge."""
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    item = _with_labels(node, new_labels)
    foreign = _labels_of_others(node)
    if any(new_labels[label] != labels.get(label) for label in new_labels.keys() & foreign):
        return None
    removed = applied - new_labels.keys() - foreign
    after = {**{name: value for name, value in labels.items() if name not in removed}, **new_labels}
    before = {"metadata": {"labels": node["metadata"].get("labels")}}
    diffs = tuple(differences(before, {"metadata": {"labels": after}}))
    return Change(item, Action.UPDATE if diffs else Action.UNCHANGED, diffs)


def _labels_of_others(node: Json) -> set[str]:
    """Labels of a Node that other managers have applied or written."""
    names: set[str] = set()
    for entry in node["metadata"].get("managedFields") or ():
        if entry.get("manager") != LABEL_MANAGER:
            names |= label_names(entry.get("fieldsV1"))
    return names


def _with_labels(node: Json, labels: Mapping[str, str]) -> Json:
    """What gpustate applies of a Node."""
    meta = {"name": node["metadata"]["name"], **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": NODE.version, "kind": NODE.name, "metadata": meta}


def _controller(item: Json) -> str:
    """The controller that owns an object; empty without one."""
    for owner in item["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return f"{owner['kind']} {owner['name']}"
    return ""


def _without_owner(item: Json) -> Json:
    meta = item["metadata"]
    labels = {name: value for name, value in meta["labels"].items() if name not in OWNER}
    return {**item, "metadata": {**meta, "labels": labels}}


def disowned(item: Json) -> Json:
    """An object as it is, without our labels."""
    unowned = _without_owner(item)
    meta = {name: unowned["metadata"].get(name) for name in ("name", "labels", "annotations")}
    return {
        **{name: unowned[name] for name in ("apiVersion", "kind", "spec")},
        "metadata": {name: value for name, value in meta.items() if value},
    }


def _name_only(item: Json) -> Json:
    """An object with no field but its name."""
    kind = BY_NAME[item["kind"]]
    meta = {"name": item["metadata"]["name"]}
    if kind.namespaced:
        meta["namespace"] = item["metadata"]["namespace"]
    return {"apiVersion": kind.version, "kind": kind.name, "metadata": meta}
