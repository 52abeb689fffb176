"""Objects of any kind through the API server: list, server-side apply, delete. Objects are plain data.

Surprising: items of a list have neither kind nor apiVersion; they are filled in.

Sources:
    kubernetes.io/docs/reference/using-api/api-concepts (discovery, PartialObjectMetadataList);
    kubernetes.io/docs/reference/using-api/server-side-apply (409 for a conflict, dry run);
    lightkube 1.0: generic_resource, Client.patch, Client.delete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from lightkube.generic_resource import (
    GenericGlobalResource,
    GenericNamespacedResource,
    create_global_resource,
    create_namespaced_resource,
)
from lightkube.types import CascadeType, PatchType

from gpustate.cluster.api import Api, RefusedRequest, connected
from gpustate.documents import Json
from gpustate.manifests.kinds import BY_NAME, NODE, Kind, title
from gpustate.manifests.ownership import (
    FIELD_MANAGER,
    LABEL_MANAGER,
    OWNER,
    FieldConflict,
    MissingKind,
    StaleObject,
)

if TYPE_CHECKING:
    from gpustate.cluster.kubeconfig import Kubeconfig


#: A list without the objects' data, such as that of Secrets.
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
#: Resources and API groups that the cluster itself fills.
_DERIVED = ("events", "endpoints", "endpointslices")
_DERIVED_GROUPS = ("metrics.k8s.io", "packages.operators.coreos.com")
#: Statuses of a JSON patch whose test fails, by version of the server.
_STALE = (409, 422)


class Objects:
    """A cluster's objects.

    Args:
        api: access to the cluster.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.server = api.server

    def find(
        self, kind: Kind, namespace: str, *, labels: Mapping[str, str] | None = None
    ) -> list[Json]:
        """List the objects of a kind that the cluster may not know; then there are none.

        Raises:
            ClusterError: the request failed.
        """
        try:
            return self.list(kind, namespace, labels=labels)
        except MissingKind:
            return []
        except RefusedRequest as error:
            if error.status != 404:
                raise
            return []

    def serves(self, kind: Kind) -> bool:
        """Whether the server has a kind.

        Raises:
            ClusterError: the request failed.
        """
        try:
            resources = self._api.get(f"apis/{kind.version}")["resources"]
        except RefusedRequest as error:
            if error.status != 404:
                raise
            return False
        return any(resource["name"] == kind.plural for resource in resources)

    def content(self, namespace: str) -> tuple[list[Json], list[str]]:
        """List what is in a namespace, of every kind that the server has.

        Returns:
            The objects without their data, and the resources that cannot be listed.

        Raises:
            ClusterError: a request failed.
        """
        kinds, unread = self._namespaced_kinds()
        objects: list[Json] = []
        for kind in kinds:
            root = f"apis/{kind.version}" if kind.group else f"api/{kind.version}"
            try:
                items = self._api.get(f"{root}/namespaces/{namespace}/{kind.plural}", _METADATA)
            except RefusedRequest as error:
                if error.status != 404:
                    unread.append(f"{kind.plural}.{kind.group}".rstrip("."))
                continue
            head = {"apiVersion": kind.version, "kind": kind.name}
            objects += [{**item, **head} for item in items.get("items") or ()]
        return objects, unread

    def _namespaced_kinds(self) -> tuple[list[Kind], list[str]]:
        """The kinds in namespaces that can be listed, and the API groups that do not answer."""
        versions = {"v1": "api/v1"}
        for group in self._api.get("apis")["groups"]:
            if not f".{group['name']}".endswith(tuple(f".{suffix}" for suffix in _DERIVED_GROUPS)):
                names = (group["preferredVersion"], *group["versions"])
                versions |= {
                    version["groupVersion"]: f"apis/{version['groupVersion']}" for version in names
                }
        by_name: dict[tuple[str, str], Kind] = {}
        unread: list[str] = []
        for version, path in versions.items():
            try:
                resources = self._api.get(path)["resources"]
            except RefusedRequest:  # of another server behind this one
                unread.append(version)
                continue
            for resource in resources:
                name = resource["name"]
                if resource["namespaced"] and "list" in resource["verbs"] and name not in _DERIVED:
                    kind = Kind(resource["kind"], version, name, namespaced=True)
                    by_name.setdefault((kind.group, name), kind)
        return list(by_name.values()), unread

    def list(
        self,
        kind: Kind,
        namespace: str,
        names: Collection[str] = (),
        *,
        labels: Mapping[str, str] | None = None,
    ) -> list[Json]:
        """List the objects of a kind, of one namespace if they are in namespaces.

        Args:
            kind: of the objects; of large ones only those of gpustate are listed.
            namespace: ``*`` for all.
            names: of a large kind, others to include.
            labels: that they have.

        Raises:
            MissingKind: the cluster has no such kind.
            ClusterError: the request failed; without the right, with the rule to add.
        """
        resource = _resource(kind)
        options: Json = {"namespace": namespace} if kind.namespaced else {}
        options |= {"labels": dict(labels)} if labels else {}
        if kind.large:
            options["labels"] = dict(OWNER)
        try:
            answer = self._call(
                f"list {kind.plural}",
                lambda client: [item.to_dict() for item in client.list(resource, **options)],
            )
        except RefusedRequest as error:
            if error.status == 404 and kind.without:
                raise MissingKind(f"the cluster has no {kind.name}", fix=kind.without) from None
            raise
        items = cast("list[Json]", answer)
        listed = {item["metadata"]["name"] for item in items}
        items += [
            item
            for name in sorted(set(names) - listed if kind.large else ())
            if (item := self._get(kind, name)) is not None
        ]
        head = {"apiVersion": kind.version, "kind": kind.name}
        return [{**head, **item} for item in items]

    def _get(self, kind: Kind, name: str) -> Json | None:
        """One object that is not in a namespace; ``None`` if there is none."""
        resource = _resource(kind)
        try:
            answer = self._call(
                f"get {kind.plural}", lambda client: client.get(resource, name).to_dict()
            )
        except RefusedRequest as error:
            if error.status == 404:
                return None
            raise
        return cast(Json, answer)

    def apply(self, item: Json, *, force: bool = False, dry_run: bool = False) -> Json:
        """Apply an object, and return it as the server has it then.

        Args:
            item: the fields that gpustate decides.
            force: take over fields of other managers.
            dry_run: change nothing.

        Raises:
            FieldConflict: another manager decides one of the fields otherwise.
            MissingKind: the cluster has no such kind.
            ClusterError: the request failed.
        """
        kind = BY_NAME[item["kind"]]
        meta = item["metadata"]
        manager = LABEL_MANAGER if kind is NODE else FIELD_MANAGER
        options: Json = {"namespace": meta["namespace"]} if kind.namespaced else {}
        resource = _resource(kind)
        try:
            answer = self._call(
                f"apply {title(item)}",
                lambda client: client.patch(
                    resource,
                    meta["name"],
                    item,
                    patch_type=PatchType.APPLY,
                    field_manager=manager,
                    force=force,
                    dry_run=dry_run,
                    **options,
                ).to_dict(),
            )
        except RefusedRequest as error:
            if error.status == 409 and "FieldManagerConflict" in error.causes:
                raise FieldConflict(" ".join(error.words.split())) from None
            if error.status == 404 and kind.without:
                raise MissingKind(f"the cluster has no {kind.name}", fix=kind.without) from None
            raise
        return cast(Json, answer)

    def create(self, item: Json, *, dry_run: bool = False) -> Json:
        """Create an object, and return it as the server has it then.

        Raises:
            ClusterError: the request failed; it exists already, for one.
        """
        kind = BY_NAME[item["kind"]]
        resource = _resource(kind)
        namespace = item["metadata"].get("namespace")
        options: Json = {"namespace": namespace} if kind.namespaced else {}
        answer = self._call(
            f"create {title(item)}",
            lambda client: client.create(
                resource.from_dict(item), field_manager=FIELD_MANAGER, dry_run=dry_run, **options
            ).to_dict(),
        )
        return cast(Json, answer)

    def patch(self, item: Json, operations: Sequence[Json]) -> Json:
        """Change an object by a JSON patch, if nobody has changed it since it was read.

        Raises:
            StaleObject: somebody has.
            ClusterError: the request failed.
        """
        kind = BY_NAME[item["kind"]]
        meta = item["metadata"]
        options: Json = {"namespace": meta["namespace"]} if kind.namespaced else {}
        unchanged = {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": meta["resourceVersion"],
        }
        resource = _resource(kind)
        try:
            answer = self._call(
                f"patch {title(item)}",
                lambda client: client.patch(
                    resource,
                    meta["name"],
                    [unchanged, *operations],
                    patch_type=PatchType.JSON,
                    field_manager=FIELD_MANAGER,
                    **options,
                ).to_dict(),
            )
        except RefusedRequest as error:
            if error.status in _STALE:
                raise StaleObject(str(error)) from None
            raise
        return cast(Json, answer)

    def merge(self, item: Json, patch: Json, *, status: bool = False) -> None:
        """Merge a patch into an object that is not in a namespace, whatever has changed since; ignore a missing one.

        Args:
            item: the object.
            patch: ``None`` removes a field.
            status: the patch is of its status.

        Raises:
            ClusterError: the request failed.
        """
        base = cast("type[GenericGlobalResource]", _resource(BY_NAME[item["kind"]]))
        resource = base.Status if status else base
        try:
            self._call(
                f"patch {'status of ' if status else ''}{title(item)}",
                lambda client: client.patch(
                    resource,
                    item["metadata"]["name"],
                    patch,
                    patch_type=PatchType.MERGE,
                    field_manager=FIELD_MANAGER,
                ),
            )
        except RefusedRequest as error:
            if error.status != 404:
                raise

    def delete(self, item: Json, *, orphan: bool = False, dry_run: bool = False) -> None:
        """Delete an object, and what it owns unless ``orphan``; ignore a missing one.

        Args:
            item: the object.
            orphan: keep what it owns.
            dry_run: change nothing.

        Raises:
            ClusterError: the request failed.
        """
        kind = BY_NAME[item["kind"]]
        meta = item["metadata"]
        options: Json = {"namespace": meta["namespace"]} if kind.namespaced else {}
        resource = _resource(kind)
        try:
            self._call(
                f"delete {title(item)}",
                lambda client: client.delete(
                    resource,
                    meta["name"],
                    cascade=CascadeType.ORPHAN if orphan else CascadeType.BACKGROUND,
                    dry_run=dry_run,
                    **options,
                ),
            )
        except RefusedRequest as error:
            if error.status != 404:
                raise

    def _call(self, action: str, work: Any) -> Any:
        """Call the client, whose objects have no types."""
        return self._api.call(action, work)


@cache
def _resource(kind: Kind) -> type[GenericGlobalResource] | type[GenericNamespacedResource]:
    group, _, version = kind.version.rpartition("/")
    create = create_namespaced_resource if kind.namespaced else create_global_resource
    return create(group, version, kind.name, kind.plural)


@contextmanager
def opened(kubeconfig: Kubeconfig) -> Iterator[Objects]:
    """The objects of a cluster; the connection is closed at the end."""
    with connected(kubeconfig) as api:
        yield Objects(api)
