"""Requests to one cluster's API server with the current context of a kubeconfig; results are plain data.

Importing lightkube takes seconds, so this module is imported only when a kubeconfig is given.

Surprising: waiting for a connection of the pool and waiting for a response raise the same error class; every
request is limited to ``TIMEOUT_S``, and is repeated for up to ``PATIENCE_S`` while the server is away. Two threads that decode the first response of one kind at the same time
crash the process, so every kind is decoded once at import.

Sources:
    lightkube 1.0: Client, KubeConfig, ApiError, decoders; httpx2: Timeout, HTTPError.
    msgspec 0.22: types of a Struct's fields are looked up at its first use, without a lock.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httpx2
import yaml
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates
from lightkube import ApiError, Client, KubeConfig, SingleConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT
from lightkube.config.models import User
from lightkube.core import decoders
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_global_resource
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.models.meta_v1 import DeleteOptions, ObjectMeta, Preconditions
from lightkube.operators import BinaryOperator, SequenceOperator
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.authentication_v1 import SelfSubjectReview
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.resources.node_v1 import RuntimeClass
from lightkube.resources.policy_v1 import PodDisruptionBudget
from lightkube.resources.resource_v1 import ResourceClaim, ResourceSlice
from lightkube.types import PatchType

from gpustate import __version__
from gpustate.cluster.logins import LoginFailed, ProgramLogin
from gpustate.cluster.rights import missing_right
from gpustate.documents import Json
from gpustate.errors import ClusterError, UsageError
from gpustate.formats.words import cut, kind_of, quote

if TYPE_CHECKING:
    from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.manifests.ownership import FIELD_MANAGER, LABEL_MANAGER, applied_labels

T = TypeVar("T")
Fields = dict[str, str | BinaryOperator | SequenceOperator]

#: Instead of a kubeconfig's path: the service account of the pod that gpustate runs in.
IN_CLUSTER = "in-cluster"
TIMEOUT_S = 20.0
#: How long a server that has answered before may be away; a Lease is valid for longer.
PATIENCE_S = 45.0
_RETRY_S = 1.0
_AWAY = (502, 503, 504)
_BUSY = 429
_CLOCK = "check this machine's clock, and the validity of the server's certificate"
_AUTHORITY = "the kubeconfig's certificate-authority is not that of this server: get the cluster's own kubeconfig"
#: What OpenSSL says of a server's certificate.
_TLS = {
    "not yet valid": _CLOCK,
    "has expired": _CLOCK,
    "local issuer": _AUTHORITY,
    "self-signed": _AUTHORITY,
    "signature failure": _AUTHORITY,
}
_REACH = "check the address in the kubeconfig, and that this machine reaches it"
_ERRNO = re.compile(r"^\[Errno -?[0-9]+\] ")
_ANONYMOUS = "system:anonymous"
_LOGIN = "its user's token or certificate is expired or of another cluster: get a new kubeconfig"
#: A kubeconfig with embedded certificates is some ten KiB.
_MAX_BYTES = 4 << 20

decoders.decode_status(b"{}")
for _kind in (Node, Pod, Event, RuntimeClass, DaemonSet, PodDisruptionBudget, ResourceClaim, Lease):
    decoders.decode_list(b'{"items": []}', _kind)
#: Objects of NVIDIA's maintenance-operator, by which other tools announce work on a Node.
_NodeMaintenance = create_global_resource(
    "maintenance.nvidia.com", "v1alpha1", "NodeMaintenance", "nodemaintenances"
)


class RefusedRequest(ClusterError):
    """The API server returned an error.

    Args:
        message: the request and the server's message.
        status: the HTTP status.
        causes: types of the causes in the server's Status.
        retry_after_s: seconds after which to try again, if the server says so.
        words: the server's message alone.
        fix: what to do about it; by default, how the user gets the right that is missing.
    """

    def __init__(
        self,
        message: str,
        status: int,
        causes: tuple[str, ...] = (),
        retry_after_s: float | None = None,
        words: str = "",
        fix: str | None = None,
    ) -> None:
        self.words = words or message
        right = missing_right(self.words) if status == 403 else None
        super().__init__(" ".join(message.split()), fix=fix or right)
        self.status = status
        self.causes = causes
        self.retry_after_s = retry_after_s


class _Away(Exception):
    """The server did not carry out a request, and may do so later."""

    def __init__(self, reason: ClusterError, after_s: float) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.after_s = after_s


class Api:
    """One user's access to one cluster.

    Args:
        client: connects at the first request.
        server: URL, for messages.
        login: the program that the client logs in with, if it does.
        kubeconfig: its path, for messages.
    """

    def __init__(
        self,
        client: Client,
        server: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        login: ProgramLogin | None = None,
        kubeconfig: str = "the kubeconfig",
    ) -> None:
        self._client = client
        self._kubeconfig = kubeconfig
        self._login = login
        self.server = server
        self._sleep = sleep
        self._clock = clock
        self._answered = False
        self.skew_s = 0.0
        #: Called before every request that changes something; raises where none may be made.
        self.fence: Callable[[], None] | None = None

    def _request(self, action: str, work: Callable[[], T], patience_s: float | None = None) -> T:
        """Make a request; a server that has answered before may be away for a while, and one that is busy answers.

        A request may arrive twice if its response is lost. So those that change something name a uid or
        a resourceVersion, or what they create has a fixed name.
        """
        deadline = self._clock() + (PATIENCE_S if patience_s is None else patience_s)
        while True:
            try:
                result = self._try(action, work)
            except _Away as error:
                busy = isinstance(error.reason, RefusedRequest) and error.reason.status == _BUSY
                if not (self._answered or busy) or self._clock() + error.after_s > deadline:
                    raise error.reason from None
                self._sleep(error.after_s)
            except RefusedRequest:
                self._answered = True
                raise
            else:
                self._answered = True
                return result

    def _change(self, action: str, work: Callable[[], T]) -> T:
        """Make a request that changes something."""

        def guarded() -> T:
            if self.fence is not None:
                self.fence()
            return work()

        return self._request(action, guarded)

    def _try(self, action: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except (_Away, RefusedRequest):
            raise
        except ApiError as error:
            status = error.response.status_code
            message = str(error) or f"HTTP status {status}"
            details = error.status.details
            causes = (
                tuple(cause.reason or "" for cause in (details.causes or [])) if details else ()
            )
            after = error.response.headers.get("retry-after", "")
            after_s = float(after) if after.isdigit() else None
            refused = RefusedRequest(
                f"{self.server}: {action}: {message}",
                status,
                causes,
                after_s,
                message,
                fix=self._remedy(status, message),
            )
            # A budget's refusal of an eviction is an answer; any other 429 is the server's own load.
            if status in _AWAY or (status == _BUSY and "DisruptionBudget" not in causes):
                raise _Away(refused, after_s or _RETRY_S) from None
            raise refused from None
        except LoginFailed as error:  # its provider may be away for a moment
            raise _Away(error, _RETRY_S) from None
        except (
            httpx2.HTTPStatusError
        ) as error:  # without a Status: no such API, or a proxy's answer
            status = error.response.status_code
            words = cut(" ".join(error.response.text.split()), 200) or f"HTTP status {status}"
            refused = RefusedRequest(
                f"{self.server}: {action}: {words}", status, fix=self._remedy(status, words)
            )
            raise _Away(refused, _RETRY_S) if status in (*_AWAY, _BUSY) else refused from None
        except (httpx2.HTTPError, OSError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            words = f"API server {self.server} is unreachable: {_ERRNO.sub('', reason)}"
            fix = next((fix for part, fix in _TLS.items() if part in reason), _REACH)
            raise _Away(ClusterError(words, fix=fix), _RETRY_S) from None
        except (ConfigError, ValueError) as error:
            raise ClusterError(f"{self.server}: {action}: {error}") from None

    def _remedy(self, status: int, words: str) -> str | None:
        """What to do when the server refuses the credentials, or was given none."""
        if status == 401:
            return self._login.remedy if self._login else _LOGIN
        if status == 403 and _ANONYMOUS in words:
            return (
                f"the user of {self._kubeconfig} has no credentials that the server accepts: "
                "get a kubeconfig with a token or a client certificate"
            )
        return None

    def read_clock(self, response: httpx2.Response) -> None:
        """Take the difference between this machine's clock and the server's from a response."""
        date = response.headers.get("date", "")
        with suppress(ValueError):
            self.skew_s = time.time() - parsedate_to_datetime(date).timestamp()

    def call(self, action: str, work: Callable[[Client], T]) -> T:
        """Call the client, with errors as of every request.

        Args:
            action: what is requested, for messages.
            work: called with the client.

        Raises:
            RefusedRequest: the server's error.
            ClusterError: the server is unreachable.
        """
        return self._request(action, lambda: work(self._client))

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def nodes(self) -> list[Json]:
        """List all Nodes."""
        return self._request(
            "list nodes", lambda: [item.to_dict() for item in self._client.list(Node)]
        )

    def node(self, name: str) -> Json:
        """Get a Node."""
        return self._request(f"get node {name}", lambda: self._client.get(Node, name).to_dict())

    def nodes_with_version(self, patience_s: float | None = None) -> tuple[list[Json], str]:
        """List all Nodes as the server has them, and the version at which a watch goes on."""
        listing = self._request("list nodes", lambda: self._get("api/v1/nodes", {}), patience_s)
        return listing["items"], str(listing["metadata"]["resourceVersion"])

    def watch_nodes(self, version: str, timeout_s: int, silent_s: float) -> Iterator[Json]:
        """Watch all Nodes: events with ``type`` and ``object``, until the server ends the watch. Never retried.

        Args:
            version: events after this one.
            timeout_s: seconds after which the server ends it.
            silent_s: seconds without any event after which the connection counts as dead.

        Raises:
            RefusedRequest: the server's error, also one in the stream; 410: the version is too old.
            ClusterError: the connection broke.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(timeout_s),
        }
        timeout = httpx2.Timeout(TIMEOUT_S, read=silent_s)
        http = cast(Any, self._client)._client._client
        try:
            with http.stream("GET", "api/v1/nodes", params=params, timeout=timeout) as response:
                if response.status_code != 200:
                    response.read()
                    raise self._refused("watch nodes", response)
                for line in response.iter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        words = str(status.get("message") or status.get("reason"))
                        message = f"{self.server}: watch nodes: {words}"
                        raise RefusedRequest(message, int(status.get("code") or 500), words=words)
                    yield event
        except (httpx2.HTTPError, OSError, ValueError, KeyError) as error:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise ClusterError(f"API server {self.server}: watch nodes: {reason}") from None

    def get(self, path: str, accept: str = "application/json") -> Json:
        """What the server has at a path, in a media type."""
        return self._request(f"get {path}", lambda: self._get(path, {}, headers={"Accept": accept}))

    def _get(self, path: str, params: dict[str, str], **options: Any) -> Json:
        """A response as the server sent it."""
        response = cast(Any, self._client)._client._client.get(path, params=params, **options)
        if response.status_code != 200:
            refused = self._refused(f"list {path.rpartition('/')[2]}", response)
            if refused.status in (*_AWAY, _BUSY):
                raise _Away(refused, refused.retry_after_s or _RETRY_S)
            raise refused
        body: Json = response.json()
        return body

    def _refused(self, action: str, response: httpx2.Response) -> RefusedRequest:
        """The server's error in a response that has been read."""
        try:
            words = str(response.json()["message"])
        except (ValueError, KeyError, TypeError):
            words = (
                cut(" ".join(response.text.split()), 200) or f"HTTP status {response.status_code}"
            )
        after = response.headers.get("retry-after", "")
        return RefusedRequest(
            f"{self.server}: {action}: {words}",
            response.status_code,
            retry_after_s=float(after) if after.isdigit() else None,
            words=words,
            fix=self._remedy(response.status_code, words),
        )

    def pods_on(self, node: str) -> list[Json]:
        """List the pods of all namespaces that are bound to a Node."""
        fields: Fields = {"spec.nodeName": node}
        return self._request(
            f"list pods on {node}",
            lambda: [
                item.to_dict() for item in self._client.list(Pod, namespace="*", fields=fields)
            ],
        )

    def pods(self) -> list[Json]:
        """List the pods of all namespaces."""
        return self._all(Pod, "list pods")

    def daemon_sets(self) -> list[Json]:
        """List the DaemonSets of all namespaces."""
        return self._all(DaemonSet, "list daemonsets")

    def budgets(self) -> list[Json]:
        """List the PodDisruptionBudgets of all namespaces."""
        return self._all(PodDisruptionBudget, "list poddisruptionbudgets")

    def claims(self) -> list[Json]:
        """List the ResourceClaims of all namespaces; empty if the server has no DRA."""
        return self._optional(lambda: self._all(ResourceClaim, "list resourceclaims"))

    def slices(self, node: str) -> list[Json]:
        """List the ResourceSlices of NVIDIA's DRA driver for a Node; empty if the server has no DRA."""
        fields: Fields = {"spec.nodeName": node, "spec.driver": "gpu.nvidia.com"}
        return self._optional(
            lambda: self._request(
                f"list resourceslices of {node}",
                lambda: [
                    item.to_dict() for item in self._client.list(ResourceSlice, fields=fields)
                ],
            )
        )

    def empty_slice(self, name: str) -> None:
        """Take the devices out of a ResourceSlice, which its driver puts there again; ignore a missing one."""
        try:
            self._change(
                f"patch resourceslice {name}",
                lambda: self._client.patch(
                    ResourceSlice,
                    name,
                    {"spec": {"devices": []}},
                    patch_type=PatchType.MERGE,
                    field_manager=FIELD_MANAGER,
                ),
            )
        except RefusedRequest as error:
            if error.status != 404:
                raise

    def maintenances(self) -> list[Json]:
        """List the NodeMaintenance objects of NVIDIA's maintenance-operator; empty if it is not installed."""
        return self._optional(
            lambda: self._request(
                "list nodemaintenances",
                lambda: [
                    cast(Json, item.to_dict())  # type: ignore[no-untyped-call]
                    for item in self._client.list(_NodeMaintenance)
                ],
            )
        )

    def _all(
        self, kind: type[Pod | DaemonSet | PodDisruptionBudget | ResourceClaim], action: str
    ) -> list[Json]:
        return self._request(
            action, lambda: [item.to_dict() for item in self._client.list(kind, namespace="*")]
        )

    @staticmethod
    def _optional(work: Callable[[], list[Json]]) -> list[Json]:
        try:
            return work()
        except RefusedRequest as error:
            if error.status == 404:
                return []
            raise

    def patch_node(self, name: str, patch: Json) -> Json:
        """Merge a patch into a Node; ``metadata.resourceVersion`` in it makes the patch conditional."""
        return self._change(
            f"patch node {name}",
            lambda: self._client.patch(
                Node, name, patch, patch_type=PatchType.MERGE, field_manager=FIELD_MANAGER
            ).to_dict(),
        )

    def apply_labels(self, node: Json, labels: Mapping[str, str]) -> Json:
        """Apply labels of a Node as it was read, with those that gpustate has applied there before; as it is then."""
        meta = node["metadata"]
        values = meta.get("labels") or {}
        applied = {name: values[name] for name in applied_labels(node) if name in values}
        body: Json = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": meta["name"],
                "resourceVersion": meta["resourceVersion"],
                "labels": {**applied, **labels},
            },
        }
        return self._change(
            f"patch node {meta['name']}",
            lambda: self._client.patch(
                Node,
                meta["name"],
                body,
                patch_type=PatchType.APPLY,
                field_manager=LABEL_MANAGER,
                force=True,
            ).to_dict(),
        )

    def evict(self, pod: Json, grace_period_s: int | None = None, *, dry_run: bool = False) -> None:
        """Evict a pod, subject to PodDisruptionBudgets.

        Args:
            pod: as listed; a pod of the same name with another uid is not evicted.
            grace_period_s: grace period in seconds; ``None``: that of the pod.
            dry_run: only check whether it would be evicted.
        """
        meta = pod["metadata"]
        options = DeleteOptions(
            gracePeriodSeconds=grace_period_s,
            preconditions=Preconditions(uid=meta["uid"]),
            dryRun=["All"] if dry_run else None,
        )
        eviction = Pod.Eviction(
            metadata=ObjectMeta(name=meta["name"], namespace=meta["namespace"]),
            deleteOptions=options,
        )
        self._change(
            f"evict pod {meta['namespace']}/{meta['name']}",
            lambda: self._client.create(eviction, meta["name"], namespace=meta["namespace"]),
        )

    def delete(self, pod: Json) -> None:
        """Delete a pod of any namespace, with its own grace period; ignore a missing one."""
        meta = pod["metadata"]
        try:
            self._change(
                f"delete pod {meta['namespace']}/{meta['name']}",
                lambda: self._client.delete(Pod, meta["name"], namespace=meta["namespace"]),
            )
        except RefusedRequest as error:
            if error.status != 404:
                raise

    def lease(self, namespace: str, name: str) -> Json | None:
        """Get a Lease; ``None`` if it does not exist."""
        try:
            return self._request(
                f"get lease {namespace}/{name}",
                lambda: self._client.get(Lease, name, namespace=namespace).to_dict(),
            )
        except RefusedRequest as error:
            if error.status == 404:
                return None
            raise

    def write_lease(self, lease: Json, *, create: bool) -> Json:
        """Create a Lease, or replace the one with the same resourceVersion."""
        meta = lease["metadata"]
        work = self._client.create if create else self._client.replace
        return self._change(
            f"write lease {meta['namespace']}/{meta['name']}",
            lambda: work(
                cast(Lease, Lease.from_dict(lease)), field_manager=FIELD_MANAGER
            ).to_dict(),
        )

    def delete_lease(self, lease: Json) -> bool:
        """Delete a Lease as it was read; whether it is gone. Another one has written it otherwise."""
        meta = lease["metadata"]
        place = f"{meta['namespace']}/{meta['name']}"
        path = f"apis/coordination.k8s.io/v1/namespaces/{meta['namespace']}/leases/{meta['name']}"
        same = {"resourceVersion": meta["resourceVersion"]}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": same}

        def work() -> None:
            http = cast(Any, self._client)._client._client
            response = http.request("DELETE", path, json=body)
            if response.status_code != 200:
                raise self._refused(f"delete lease {place}", response)

        try:
            self._change(f"delete lease {place}", work)
        except RefusedRequest as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    def may(
        self, verb: str, group: str, resource: str, subresource: str = "", namespace: str = ""
    ) -> bool:
        """Whether the user has a permission.

        Args:
            verb: such as ``patch``.
            group: API group; empty: core.
            resource: plural, in lower case.
            subresource: optional.
            namespace: in which; empty: all of them.
        """
        review = SelfSubjectAccessReview(
            spec=SelfSubjectAccessReviewSpec(
                resourceAttributes=ResourceAttributes(
                    verb=verb,
                    group=group,
                    resource=resource,
                    subresource=subresource or None,
                    namespace=namespace or None,
                )
            )
        )
        answer = self._request(f"review access to {resource}", lambda: self._client.create(review))
        return bool(answer.status and answer.status.allowed)

    def user(self) -> str:
        """Name of the user as the API server knows it; empty if it does not say."""
        try:
            answer = self._request(
                "review the user", lambda: self._client.create(SelfSubjectReview())
            )
        except ClusterError:
            return ""  # before Kubernetes 1.28
        info = answer.status.userInfo if answer.status else None
        return (info.username or "") if info else ""

    def create_event(self, event: Json) -> None:
        """Record an Event."""
        self._change(
            "create event", lambda: self._client.create(cast(Event, Event.from_dict(event)))
        )

    def labelled_pods(self, labels: dict[str, str]) -> list[Json]:
        """List pods with these labels in the context's namespace."""
        return self._request(
            "list pods",
            lambda: [item.to_dict() for item in self._client.list(Pod, labels=dict(labels))],
        )

    def create_pod(self, pod: Json) -> Json:
        """Create a pod in the context's namespace."""
        return self._request(
            "create pod", lambda: self._client.create(cast(Pod, Pod.from_dict(pod))).to_dict()
        )

    def pod(self, name: str) -> Json | None:
        """Get a pod of the context's namespace; ``None`` if it does not exist."""
        try:
            return self._request(f"get pod {name}", lambda: self._client.get(Pod, name).to_dict())
        except RefusedRequest as error:
            if error.status == 404:
                return None
            raise

    def delete_pod(self, name: str) -> None:
        """Delete a pod of the context's namespace, with a grace period of one second; ignore a missing one."""
        try:
            self._request(
                f"delete pod {name}", lambda: self._client.delete(Pod, name, grace_period=1)
            )
        except RefusedRequest as error:
            if error.status != 404:
                raise

    def log(self, name: str) -> str:
        """Get the log of a pod of the context's namespace."""
        return self._request(f"log of pod {name}", lambda: "".join(self._client.log(name)))

    def events(self, uid: str) -> list[Json]:
        """List the events of an object of the context's namespace."""
        fields: Fields = {"involvedObject.uid": uid}
        namespace = str(self._client.namespace)
        return self._request(
            "list events",
            lambda: [
                item.to_dict()
                for item in self._client.list(Event, namespace=namespace, fields=fields)
            ],
        )

    def node_events(self) -> list[Json]:
        """List the events of all Nodes."""
        fields: Fields = {"involvedObject.kind": "Node"}
        return self._request(
            "list events",
            lambda: [
                item.to_dict() for item in self._client.list(Event, namespace="*", fields=fields)
            ],
        )

    def has_runtime_class(self, name: str) -> bool:
        """Whether a RuntimeClass exists."""
        try:
            self._request(f"get runtimeclass {name}", lambda: self._client.get(RuntimeClass, name))
        except RefusedRequest as error:
            if error.status == 404:
                return False
            raise
        return True


def connect(path: str, context: str = "") -> Api:
    """Read a kubeconfig. The server is not contacted yet.

    Args:
        path: the file; ``~`` is expanded. ``in-cluster``: the service account of the pod that gpustate runs in; its
            token may rotate.
        context: in the file, used with its namespace; empty: the current one.

    Raises:
        UsageError: the file cannot be read, or is not a kubeconfig; gpustate does not run in a pod.
    """
    fix = "name a kubeconfig with --kubeconfig FILE, the inventory variable gpustate_kubeconfig, or -i kubernetes:FILE"
    timeout = httpx2.Timeout(TIMEOUT_S)
    login: ProgramLogin | None = None
    proxy: str | None = None
    user: Json = {}
    cluster: Json = {}
    try:
        data = {} if path == IN_CLUSTER else _load(path, fix)
        config = _of_the_pod(path) if path == IN_CLUSTER else _current(data, path, context)
        user = _named(data, "user", config.context.user)
        cluster = _named(data, "cluster", config.context.cluster)
        proxy = cluster.get("proxy-url") or None
        client = Client(config=config, timeout=timeout, proxy=proxy)
        if user.get("exec"):
            tls = verify_cluster(config.cluster, cast(User, config.user), config.abs_file)
            login = ProgramLogin(user["exec"], cluster, config, tls)
            client.close()
            # lightkube takes no other way to log in.
            cast(Any, client)._client._client = httpx2.Client(
                base_url=config.cluster.server, verify=tls, auth=login, timeout=timeout, proxy=proxy
            )
    except (ConfigError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        _check_inline(cluster, user, path)
        reason = " ".join(str(error).split())
        if isinstance(error, KeyError):
            reason = f"missing key {error}"
        elif isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            reason = f"line {error.problem_mark.line + 1} is not YAML: {error.problem}"
        raise UsageError(f"not a kubeconfig: {reason}", place=path, fix=fix) from error
    except ImportError as error:
        raise UsageError(f"unsupported proxy-url {proxy}", place=path, fix="use an HTTP proxy") from error  # fmt: skip
    except OSError as error:  # a certificate file
        _check_inline(cluster, user, path)
        if isinstance(error, ssl.SSLError):
            words = f"the certificates of the kubeconfig cannot be used: {error}"
            raise UsageError(words, place=path, fix="get a new kubeconfig") from error
        raise UsageError(
            f"cannot read a file that the kubeconfig refers to: {error}", place=path, fix=fix
        ) from error
    api = Api(client, config.cluster.server, login=login, kubeconfig=path)
    # lightkube has no access to headers and names.
    http = cast(Any, client)._client._client
    http.headers["User-Agent"] = f"gpustate/{__version__}"
    http.event_hooks = {
        "request": [lambda request: _adapt(request, cluster, user)],
        "response": [api.read_clock],
    }
    return api


def _adapt(request: httpx2.Request, cluster: Json, user: Json) -> None:
    """Apply what lightkube ignores of a kubeconfig: the name in the server's certificate, and impersonation."""
    if cluster.get("tls-server-name"):
        request.extensions["sni_hostname"] = str(cluster["tls-server-name"])
    if user.get("as"):
        request.headers["Impersonate-User"] = str(user["as"])
        if user.get("as-uid"):
            request.headers["Impersonate-Uid"] = str(user["as-uid"])
        groups = [("Impersonate-Group", str(group)) for group in user.get("as-groups") or []]
        if "Impersonate-Group" not in request.headers:  # a request is adapted again after a login
            request.headers = httpx2.Headers([*request.headers.multi_items(), *groups])


def _check_inline(cluster: Json, user: Json, path: str) -> None:
    """Raise ``UsageError`` that names the first certificate or key in the kubeconfig itself that is none."""
    fields: tuple[tuple[Json, str, Callable[[bytes], object], str], ...] = (
        (cluster, "certificate-authority-data", load_pem_x509_certificates, "certificate"),
        (user, "client-certificate-data", load_pem_x509_certificates, "certificate"),
        (user, "client-key-data", lambda data: load_pem_private_key(data, None), "private key"),
    )
    for part, name, load, title in fields:
        if not part.get(name):
            continue
        try:
            load(b64decode("".join(str(part[name]).split()), validate=True))
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise UsageError(
                f"{name} is not a {title} (PEM) in base64",
                place=path,
                fix="correct it, or get a new kubeconfig",
            ) from None


def _load(path: str, fix: str) -> Json:
    """The content of a kubeconfig."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot read the kubeconfig ({reason})", place=path, fix=fix) from error
    if len(text) > _MAX_BYTES:
        raise UsageError("not a kubeconfig: larger than 4 MiB", place=path, fix=fix)
    data = yaml.safe_load(text)
    if not isinstance(data, dict):
        problem = "it is empty" if data is None else f"it is {kind_of(data)}"
        raise UsageError(f"not a kubeconfig: {problem}", place=path, fix=fix)
    return data


def _current(data: Json, path: str, context: str) -> SingleConfig:
    """The context that is asked for, else its current one."""
    kubeconfig = KubeConfig.from_dict(data, fname=Path(path).expanduser().absolute())
    contexts = ", ".join(sorted(kubeconfig.contexts)) or "none"
    if context and context not in kubeconfig.contexts:
        raise UsageError(
            f"the kubeconfig has no context {quote(context)}, only {contexts}",
            place=path,
            fix="correct the inventory variable gpustate_kube_context",
        )
    current = kubeconfig.current_context
    if not context and current not in kubeconfig.contexts:
        words = (
            f"its current context {quote(current)} does not exist"
            if current
            else "it has no current context"
        )
        raise UsageError(
            f"{words}; contexts: {contexts}",
            place=path,
            fix="choose one: kubectl config use-context NAME",
        )
    config = kubeconfig.get(context or None)
    if config is None or config.user is None:
        raise ConfigError(
            f"the context {context} has no user" if context else "the current context has no user"
        )
    return config


def _named(data: Json, kind: str, name: str | None) -> Json:
    """A cluster or user of a kubeconfig, as it is in the file."""
    for entry in data.get(f"{kind}s") or []:
        if entry["name"] == name:
            section: Json = entry[kind] or {}
            return section
    return {}


def _of_the_pod(path: str) -> SingleConfig:
    try:
        config = KubeConfig.from_service_account(SERVICE_ACCOUNT).get()
    except (ConfigError, KeyError, OSError):
        config = None
    if config is None:
        raise UsageError(
            f"gpustate does not run in a pod with a service account: there is no {SERVICE_ACCOUNT}/token, "
            "or KUBERNETES_SERVICE_HOST is not set",
            place=path,
            fix="name a kubeconfig file",
        )
    return config


@contextmanager
def connected(kubeconfig: Kubeconfig) -> Iterator[Api]:
    """Access to a cluster, closed at the end; errors as of :func:`connect`."""
    with closing(connect(kubeconfig.path, kubeconfig.context)) as api:
        yield api
