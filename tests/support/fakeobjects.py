"""An API server's server-side apply in memory, for tests of the reconciler without a cluster.

Fields are paths down mappings; a list is one field. What the real server does beyond that is tested on a real one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.manifests.kinds import BY_NAME, Key, Kind, key
from gpustate.manifests.ownership import LABEL_MANAGER, FieldConflict, MissingKind, is_owned

Path = tuple[str, ...]
_IDENTITY = (("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace"))


def leaves(item: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field with its value."""
    if isinstance(item, dict) and item:
        for name, value in item.items():
            yield from leaves(value, (*path, name))
    elif path:
        yield path, item


class FakeObjects:
    """Objects by kind and name, with who applied which field."""

    server = "https://fake"

    def __init__(self) -> None:
        self.items: dict[Key, Json] = {}
        self.owners: dict[Key, dict[Path, str]] = {}
        self.requests: list[str] = []
        self.denied: set[str] = set()
        self.kinds: set[str] = set()  # with a definition, which is none of the items
        self.statuses: list[Json] = []
        self.status_of: dict[str, Json] = {}  # of Deployments; without it they are rolled out
        self.unlisted: list[str] = []  # resources that may not be listed
        self.shared: dict[Key, Json] = {}  # one more entry of ``managedFields``
        self._versions = itertools.count(1)

    @property
    def writes(self) -> list[str]:
        return [one for one in self.requests if not one.startswith(("list", "dry"))]

    def add(self, item: Json, manager: str = "kubectl-create") -> None:
        """Somebody creates an object."""
        self._store(copy.deepcopy(item), manager, dry_run=False, force=True)

    def edit(self, which: Key, path: Path, value: Any, manager: str = "kubectl-edit") -> None:
        """Somebody changes one field."""
        node = self.items[which]
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = value
        self.owners[which][path] = manager

    def list(self, kind: Kind, namespace: str, names: Collection[str] = ()) -> list[Json]:
        self._check(f"list {kind.plural}")
        self._check_served(kind)
        found = [item for (name, _), item in self.items.items() if name == kind.name]
        if kind.large:
            found = [one for one in found if is_owned(one) or one["metadata"]["name"] in names]
        if kind.name == "DaemonSet" and self.statuses:
            status = self.statuses.pop(0) if self.statuses[1:] else self.statuses[0]
            found = [{**one, "status": status} for one in found]
        if kind.name == "Deployment":
            replicas = self.status_of.get(kind.name)
            rolled = {"updatedReplicas": 1000, "availableReplicas": 1000}
            found = [{**one, "status": replicas or rolled} for one in found]
        return [
            self._shown(one)
            for one in found
            if not kind.namespaced or namespace in ("*", one["metadata"].get("namespace"))
        ]

    def serves(self, kind: Kind) -> bool:
        try:
            self._check_served(kind)
        except MissingKind:
            return False
        return True

    def content(self, namespace: str) -> tuple[list[Json], list[str]]:
        self._check(f"list all of {namespace}")
        found = [
            one for one in self.items.values() if one["metadata"].get("namespace") == namespace
        ]
        return [self._shown(one) for one in found], self.unlisted

    def apply(self, item: Json, *, force: bool = False, dry_run: bool = False) -> Json:
        verb = "dry run of" if dry_run else "apply"
        self._check(f"{verb} {item['kind']} {item['metadata']['name']}")
        self._check_served(BY_NAME[item["kind"]])
        manager = LABEL_MANAGER if item["kind"] == "Node" else "gpustate"
        return self._store(item, manager, dry_run=dry_run, force=force)

    def delete(self, item: Json, *, dry_run: bool = False) -> None:
        request = f"delete {item['kind']} {item['metadata']['name']}"
        if dry_run:
            self.requests.append(f"dry run of {request}")
            if request in self.denied:
                raise ClusterError(f"{request} is forbidden", fix="add a rule")
            return
        self._check(request)
        self.items.pop(key(item), None)
        self.owners.pop(key(item), None)

    def merge(self, item: Json, patch: Json, *, status: bool = False) -> None:
        self._check(
            f"patch {'status of ' if status else ''}{item['kind']} {item['metadata']['name']}"
        )
        _merge(self.items[key(item)], patch)

    def patch(self, item: Json, operations: Sequence[Json]) -> Json:
        self._check(f"patch {item['kind']} {item['metadata']['name']}")
        live = self.items[key(item)]
        for one in operations:
            *path, name = one["path"].removeprefix("/").split("/")
            node = live
            for step in path:
                node = node[step]
            if one["op"] == "remove":
                del node[name], self.owners[key(item)][(*path, name)]
            else:
                node[name] = copy.deepcopy(one["value"])
        return self._shown(live)

    def _check(self, request: str) -> None:
        self.requests.append(request)
        if request in self.denied:
            raise ClusterError(f"{request} is forbidden", fix="add a rule")

    def _check_served(self, kind: Kind) -> None:
        """Some kinds are served only if their definition is there."""
        defined = {
            one["spec"]["names"]["kind"]
            for (name, _), one in self.items.items()
            if name == "CustomResourceDefinition"
        }
        if kind.without and kind.name not in {*self.kinds, *defined}:
            raise MissingKind(f"the cluster has no {kind.name}", fix=kind.without)

    def _store(self, item: Json, manager: str, *, dry_run: bool, force: bool) -> Json:
        which = key(item)
        namespace = item["metadata"].get("namespace")
        if namespace and ("Namespace", namespace) not in self.items:
            raise ClusterError(f'namespaces "{namespace}" not found')
        live = copy.deepcopy(self.items.get(which)) or {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            "metadata": {
                name: item["metadata"][name]
                for name in ("name", "namespace")
                if name in item["metadata"]
            },
        }
        owners = dict(self.owners.get(which, {}))
        wanted = {path: value for path, value in leaves(item) if path not in _IDENTITY}
        before = dict(leaves(live))
        for path, value in wanted.items():
            other = owners.get(path)
            if other not in (None, manager) and before.get(path) != value and not force:
                raise FieldConflict(f'conflict with "{other}": {".".join(path)}')
        for path in [path for path, owner in owners.items() if owner == manager]:
            if path not in wanted:
                _remove(live, path)
                del owners[path]
        for path, value in wanted.items():
            node = live
            for name in path[:-1]:
                if not isinstance(node.get(name), dict):
                    node[name] = {}
                node = node[name]
            node[path[-1]] = copy.deepcopy(value)
            if before.get(path) != value or path not in owners:
                owners[path] = manager
        if not dry_run:
            self.items[which], self.owners[which] = live, owners
        return self._shown(live, owners)

    def _shown(self, item: Json, owners: dict[Path, str] | None = None) -> Json:
        found = copy.deepcopy(item)
        mine = self.owners.get(key(item), {}) if owners is None else owners
        fields: dict[str, Json] = {}
        for path, owner in mine.items():
            node = fields.setdefault(owner, {})
            for name in path:
                node = node.setdefault(f"f:{name}", {})
        found["metadata"]["managedFields"] = [
            {"manager": owner, "operation": "Apply", "fieldsV1": below}
            for owner, below in sorted(fields.items())
        ] + ([self.shared[key(item)]] if key(item) in self.shared else [])
        found["metadata"]["resourceVersion"] = str(next(self._versions))
        return found


def _merge(item: Json, patch: Json) -> None:
    for name, value in patch.items():
        if value is None:
            item.pop(name, None)
        elif isinstance(value, dict):
            _merge(item.setdefault(name, {}), value)
        else:
            item[name] = value


def _remove(item: Json, path: Path) -> None:
    for name in path[:-1]:
        item = item.get(name, {})
    item.pop(path[-1], None)
