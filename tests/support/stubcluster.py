"""A cluster in memory that answers as an API server does, for runs of the real ``gpustate``.

It is no more lenient than the real one: resourceVersions conflict, a watch of Nodes goes on only from a version that is
not compacted yet, an eviction asks PodDisruptionBudgets and the pod's uid, a field is managed by who changed its value, rights are checked before anything is looked up. Its
controllers create evicted and deleted pods again, and its kubelets offer GPUs while the device plugin's pod is Ready.

Sources:
    kubernetes: registry/core/pod/storage/eviction.go, apiserver/pkg/endpoints/handlers/{patch,responsewriters/errors}.go,
    apimachinery/pkg/api/errors.
"""

from __future__ import annotations

import copy
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpustate.documents import Json

GPU = "nvidia.com/gpu"
SOCKETS = [{"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]
PLUGIN_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.4"
USER, TOKEN = "ops", "token-of-ops"
#: Seconds until an evicted pod is gone, and until its controller has created another one.
GONE_S, BACK_S = 0.1, 0.2
_INFO = ("architecture", "kernelVersion", "kubeProxyVersion", "kubeletVersion", "operatingSystem", "osImage")  # fmt: skip
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[\w.]+))/(?P<version>v\w+)(?:/namespaces/(?P<namespace>[\w.-]+))?"
    r"/(?P<resource>\w+)(?:/(?P<name>[\w.-]+)(?:/(?P<sub>\w+))?)?"
)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_KINDS = {
    "nodes": ("", "Node"),
    "pods": ("", "Pod"),
    "events": ("", "Event"),
    "daemonsets": ("apps", "DaemonSet"),
    "poddisruptionbudgets": ("policy", "PodDisruptionBudget"),
    "resourceclaims": ("resource.k8s.io", "ResourceClaim"),
    "leases": ("coordination.k8s.io", "Lease"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends.

    Args:
        method: of HTTP.
        path: without the query.
        query: first value of each of its keys.
        body: as JSON.
        token: of the Authorization header.
        url: path and query as they were sent.
        content_type: of the body.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None
    token: str = TOKEN
    url: str = ""
    content_type: str = "application/json"

    @property
    def place(self) -> Mapping[str, str | None]:
        """Group, namespace, resource, name and subresource."""
        match = _PATH.fullmatch(self.path)
        return match.groupdict() if match else {}

    @property
    def writes(self) -> bool:
        """It changes something."""
        return (
            self.method != "GET"
            and not self.path.endswith(("accessreviews", "subjectreviews"))
            and not self.query.get("dryRun")
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server returns."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Of a watch: its events, as they come.
    stream: Iterator[Json] | None = None


class Refused(Exception):
    """The request ends with a Status."""

    def __init__(self, status: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.answer = Answer(
            status,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": reason,
                "code": status,
                **({"details": details} if details else {}),
            },
        )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Moment:
    """One change of the cluster: when, and what the Nodes and pods were then.

    Args:
        at: time of the wall clock, in seconds.
        held: Nodes that are unschedulable.
        gpu_pods: Nodes with pods that use a GPU, finished ones aside.
    """

    at: float
    held: frozenset[str]
    gpu_pods: frozenset[str]


class StubCluster:
    """Nodes with GPUs, on each a pod with GPUs, one without, and the device plugin's.

    Args:
        nodes: name and ids of each machine: boot id, machine id, system UUID.
        driver: the driver that a Node's machine has now; a device plugin's pod keeps the one it started with.
        claims: the server has dynamic resource allocation.
    """

    def __init__(
        self,
        nodes: Mapping[str, tuple[str, str, str]],
        driver: Callable[[str], str] = lambda name: "",
        *,
        claims: bool = True,
    ) -> None:
        self.lock = threading.RLock()
        self.denied: set[tuple[str, str, str]] = set()
        self.token = TOKEN
        self.lists: list[str] = []
        #: Versions that watches went on from.
        self.watches: list[int] = []
        #: Verbs whose next requests for Nodes are answered like this: ``list`` or ``watch``.
        self.faults: list[tuple[str, Answer]] = []
        self.bookmark_s = 60.0
        self._events: list[tuple[int, str, Json]] = []
        self._oldest = self._cuts = 0
        self.history: list[Moment] = []
        self._driver = driver
        self._numbers = itertools.count(100)
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.objects: dict[str, dict[str, Json]] = {kind: {} for kind in _KINDS}
        if not claims:
            del self.objects["resourceclaims"]
        for name, ids in nodes.items():
            self._store("nodes", self._node(name, *ids))
        self._store("daemonsets", self._daemon_set())
        for name in nodes:
            self._start_plugin(name)
            self._store("pods", self._pod(f"train-{name}", name, app="train", gpus=4))
            self._store("pods", self._pod(f"web-{name}", name, app="web"))
        self._store("poddisruptionbudgets", self._budget(max(0, len(nodes) - 1)))
        self._settle()

    # --- objects -----------------------------------------------------------------------

    def _store(self, kind: str, item: Json) -> Json:
        meta = item["metadata"]
        meta.setdefault("uid", f"uid-{next(self._numbers)}")
        meta.setdefault("creationTimestamp", _now())
        meta["resourceVersion"] = str(next(self._numbers))
        group, title = _KINDS[kind]
        item.setdefault("apiVersion", f"{group}/v1" if group else "v1")
        item.setdefault("kind", title)
        known = _key(meta) in self.objects[kind]
        self.objects[kind][_key(meta)] = item
        if kind == "nodes":
            self._happened("MODIFIED" if known else "ADDED", item)
        self._remember()
        return item

    # --- watches of Nodes --------------------------------------------------------------

    def _happened(self, what: str, item: Json) -> None:
        version = int(item["metadata"]["resourceVersion"])
        self._events.append((version, what, copy.deepcopy(item)))

    def add_node(self, name: str, ids: tuple[str, str, str], labels: Mapping[str, str]) -> None:
        """A machine joins; it is Ready, and offers no GPUs."""
        with self.lock:
            item = self._node(name, *ids)
            item["metadata"]["labels"] = dict(labels)
            item["status"]["allocatable"][GPU] = "0"
            self._store("nodes", item)
            self._start_plugin(name)

    def delete_node(self, name: str) -> None:
        """A Node is deleted."""
        with self.lock:
            item = self.objects["nodes"].pop(name)
            item["metadata"]["resourceVersion"] = str(next(self._numbers))
            self._happened("DELETED", item)

    def edit_node(self, name: str, patch: Json) -> None:
        """Anybody changes a Node, its status included."""
        with self.lock:
            item = copy.deepcopy(self.objects["nodes"][name])
            _merge(item, patch)
            self._store("nodes", item)

    def cut_watches(self, *, compact: bool = False) -> None:
        """End every watch at once; then no version of before is left."""
        with self.lock:
            self._cuts += 1
            if compact:
                self._oldest = next(self._numbers)

    def _watch(self, request: Request) -> Iterator[Json]:
        query = request.query
        version, cuts = int(query["resourceVersion"]), self._cuts
        self.watches.append(version)
        end = time.monotonic() + int(query["timeoutSeconds"])
        marked = time.monotonic()
        while time.monotonic() < end:
            with self.lock:
                self._settle()
                if self._cuts != cuts:
                    raise ConnectionAbortedError
                if version < self._oldest:
                    words = f"too old resource version: {version} ({self._oldest})"
                    gone = Refused(410, "Expired", words).answer.body
                    yield {"type": "ERROR", "object": gone}
                    return
                news = [one for one in self._events if one[0] > version]
                newest = next(self._numbers)
            for number, what, item in news:
                yield {"type": what, "object": item}
                version = number
            if query.get("allowWatchBookmarks") == "true" and (
                time.monotonic() - marked > self.bookmark_s
            ):
                marked, version = time.monotonic(), newest
                meta = {"resourceVersion": str(newest), "creationTimestamp": None}
                yield {"type": "BOOKMARK", "object": {"kind": "Node", "apiVersion": "v1", "metadata": meta}}  # fmt: skip
            time.sleep(0.02)

    def _remember(self) -> None:
        pods = self.objects["pods"].values()
        self.history.append(
            Moment(
                time.time(),
                frozenset(
                    one["metadata"]["name"]
                    for one in self.objects["nodes"].values()
                    if one["spec"].get("unschedulable")
                ),
                frozenset(
                    str(one["spec"]["nodeName"])
                    for one in pods
                    if one["spec"].get("nodeName") and _gpus(one)
                ),
            )
        )

    def node(self, name: str) -> Json:
        """A Node as it is now."""
        with self.lock:
            self._settle()
            return copy.deepcopy(self.objects["nodes"][name])

    def all(self, kind: str) -> list[Json]:
        """All objects of a kind as they are now."""
        with self.lock:
            self._settle()
            return copy.deepcopy(list(self.objects[kind].values()))

    def _node(self, name: str, boot_id: str, machine_id: str, uuid: str) -> Json:
        info = dict.fromkeys(_INFO, "x") | {"containerRuntimeVersion": "containerd://2.1.9"}
        ids = {"bootID": boot_id, "machineID": machine_id, "systemUUID": uuid}
        return {
            "metadata": {"name": name, "labels": {}, "annotations": {}, "managedFields": []},
            "spec": {},
            "status": {
                "nodeInfo": info | ids,
                "capacity": {GPU: "8"},
                "allocatable": {GPU: "8"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def _pod(self, name: str, node: str, *, app: str, gpus: int = 0, **more: Any) -> Json:
        limits = {"limits": {GPU: str(gpus)}} if gpus else {}
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": f"rs-{app}", "controller": True}  # fmt: skip
        return {
            "metadata": {
                "name": name,
                "namespace": "jobs",
                "labels": {"app": app},
                "ownerReferences": [owner],
                **more,
            },
            "spec": {
                **({"nodeName": node} if node else {}),
                "containers": [{"name": "main", "image": "example.net/job:1", "resources": limits}],
            },
            "status": {
                "phase": "Running" if node else "Pending",
                "conditions": [{"type": "Ready", "status": "True" if node else "False"}],
            },
        }

    def _daemon_set(self) -> Json:
        labels = {"app": "nvidia-device-plugin"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "p", "image": PLUGIN_IMAGE}], "volumes": SOCKETS}}  # fmt: skip
        return {
            "metadata": {"name": "nvidia-device-plugin", "namespace": "nvidia"},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }

    def _start_plugin(self, node: str) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nvidia-device-plugin", "uid": "ds", "controller": True}  # fmt: skip
        pod = self._pod(
            f"nvidia-device-plugin-{next(self._numbers)}",
            node,
            app="nvidia-device-plugin",
            annotations={"driver": self._driver(node)},
        )
        pod["metadata"] |= {"namespace": "nvidia", "ownerReferences": [owner]}
        pod["spec"]["containers"][0]["image"] = PLUGIN_IMAGE
        pod["spec"]["volumes"] = SOCKETS
        self._store("pods", pod)

    def _budget(self, least: int) -> Json:
        return {
            "metadata": {"name": "train", "namespace": "jobs", "generation": 1},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "train"}}},
            "status": {
                "observedGeneration": 1,
                "desiredHealthy": least,
                **dict.fromkeys(("expectedPods", "currentHealthy", "disruptionsAllowed"), 0),
            },
        }

    # --- controllers and kubelets ------------------------------------------------------

    def _settle(self) -> None:
        """Do what controllers would have done by now."""
        now = time.monotonic()
        due = [one for one in self._due if one[0] <= now]
        self._due = [one for one in self._due if one[0] > now]
        for _, work in sorted(due, key=lambda one: one[0]):
            work()
        self._run_plugins()
        pods = list(self.objects["pods"].values())
        for pod in pods:
            if not pod["spec"].get("nodeName") and (place := self._free()):
                pod["spec"]["nodeName"] = place
                pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}  # fmt: skip
                self._store("pods", pod)
        train = [p for p in pods if p["metadata"]["labels"].get("app") == "train"]
        healthy = [p for p in train if _ready(p) and not p["metadata"].get("deletionTimestamp")]
        for budget in self.objects["poddisruptionbudgets"].values():
            status = budget["status"]
            status["expectedPods"], status["currentHealthy"] = len(train), len(healthy)
            status["disruptionsAllowed"] = max(0, len(healthy) - status["desiredHealthy"])
        for name, node in self.objects["nodes"].items():
            plugin = any(
                p["spec"].get("nodeName") == name and _ready(p)
                for p in pods
                if p["metadata"]["labels"].get("app") == "nvidia-device-plugin"
                and not p["metadata"].get("deletionTimestamp")
            )
            wanted = "8" if plugin else "0"
            if node["status"]["allocatable"][GPU] != wanted:
                node["status"]["allocatable"][GPU] = wanted
                self._store("nodes", node)

    def _run_plugins(self) -> None:
        """With a nodeSelector, the device plugin's DaemonSet has a pod on each Node with these labels, and no other."""
        for daemon_set in self.objects["daemonsets"].values():
            selector = daemon_set["spec"]["template"]["spec"].get("nodeSelector")
            if not selector:
                continue
            pods = [p for p in self.objects["pods"].values() if p["metadata"]["labels"].get("app") == "nvidia-device-plugin"]  # fmt: skip
            for name, node in self.objects["nodes"].items():
                here = [p for p in pods if p["spec"].get("nodeName") == name]
                wanted = selector.items() <= node["metadata"]["labels"].items()
                if wanted and not here:
                    self._start_plugin(name)
                for pod in here:
                    pod["spec"]["nodeSelector"] = dict(selector)
                    if not wanted:
                        self.objects["pods"].pop(_key(pod["metadata"]))

    def _free(self) -> str:
        """A Node for a pod with GPUs: schedulable, with the fewest of them."""
        counts = {
            name: 0
            for name, node in self.objects["nodes"].items()
            if not node["spec"].get("unschedulable")
        }
        for pod in self.objects["pods"].values():
            if pod["spec"].get("nodeName") in counts and _gpus(pod):
                counts[pod["spec"]["nodeName"]] += _gpus(pod)
        free = [name for name, count in counts.items() if count <= 4]
        return min(free, key=lambda name: counts[name], default="")

    def _end_pod(self, pod: Json) -> None:
        """A pod terminates, and its controller creates another one."""
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            return
        meta["deletionTimestamp"] = _now()
        self._store("pods", pod)

        def gone() -> None:
            if self.objects["pods"].pop(_key(meta), None) is not None:
                self._remember()

        def back() -> None:
            if meta["ownerReferences"][0]["kind"] == "DaemonSet":
                self._start_plugin(pod["spec"]["nodeName"])
                return
            app = meta["labels"]["app"]
            self._store("pods", self._pod(f"{app}-{next(self._numbers)}", "", app=app, gpus=_gpus(pod)))  # fmt: skip

        now = time.monotonic()
        self._due += [(now + GONE_S, gone), (now + BACK_S, back)]

    # --- requests ----------------------------------------------------------------------

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        with self.lock:
            try:
                self._settle()
                return self._answer(request)
            except Refused as error:
                return error.answer

    def _answer(self, request: Request) -> Answer:
        if request.token != self.token:
            raise Refused(401, "Unauthorized", "Unauthorized")
        place = request.place
        if not place:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        resource, name = str(place["resource"]), place["name"]
        if resource == "selfsubjectaccessreviews":
            asked = request.body["spec"]["resourceAttributes"]
            full = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            denied = (asked["verb"], asked.get("group") or "", full) in self.denied
            return Answer(201, {**request.body, "status": {"allowed": not denied}})
        if resource == "selfsubjectreviews":
            return Answer(201, {**request.body, "status": {"userInfo": {"username": USER}}})
        watching = request.query.get("watch") == "true"
        if resource == "nodes" and request.method == "GET" and name is None:
            verb = "watch" if watching else "list"
            for fault in [one for one in self.faults if one[0] == verb][:1]:
                self.faults.remove(fault)
                return fault[1]
        if request.method == "GET" and name is None and not watching:
            selector = request.query.get("fieldSelector")
            self.lists.append(f"{resource}?{selector}" if selector else resource)
        self._check_rights(request)
        if resource not in self.objects:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if watching:
            assert resource == "nodes", resource
            return Answer(200, None, stream=self._watch(request))
        if request.method == "GET":
            return self._list(request) if name is None else Answer(200, self._get(request))
        work = getattr(self, f"_{_VERBS[request.method]}_{resource}")
        found: Answer = work(request)
        return found

    def _check_rights(self, request: Request) -> None:
        place = request.place
        listed = "watch" if request.query.get("watch") == "true" else "list"
        verb = _VERBS.get(request.method) or ("get" if place["name"] else listed)
        group = place["group"] or ""
        resource = "/".join(filter(None, (place["resource"], place["sub"])))
        if (verb, group, resource) in self.denied:
            title = f' "{place["name"]}"' if place["name"] else ""
            where = f'in the namespace "{place["namespace"]}"' if place["namespace"] else "at the cluster scope"  # fmt: skip
            raise Refused(
                403,
                "Forbidden",
                f'{place["resource"]}{"." + group if group else ""}{title} is forbidden: User "{USER}" cannot {verb} '
                f'resource "{resource}" in API group "{group}" {where}',
            )

    def _get(self, request: Request) -> Json:
        place = request.place
        kind, name = str(place["resource"]), str(place["name"])
        key = f"{place['namespace']}/{name}" if place["namespace"] else name
        found = self.objects[kind].get(key)
        if found is None:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found', name=name, kind=kind)
        return copy.deepcopy(found)

    def _list(self, request: Request) -> Answer:
        kind = str(request.place["resource"])
        field_selector = request.query.get("fieldSelector", "")
        items = list(self.objects[kind].values())
        for term in filter(None, field_selector.split(",")):
            key, _, value = term.partition("=")
            assert key == "spec.nodeName", key
            items = [one for one in items if one["spec"].get("nodeName") == value]
        meta = {"resourceVersion": str(next(self._numbers))}
        return Answer(200, {"kind": "List", "metadata": meta, "items": copy.deepcopy(items)})

    def _same_version(self, request: Request, found: Json, kind: str) -> None:
        version = ((request.body or {}).get("metadata") or {}).get("resourceVersion")
        if version and version != found["metadata"]["resourceVersion"]:
            name = found["metadata"]["name"]
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {kind} "{name}": the object has been modified; please apply your '
                "changes to the latest version and try again",
                name=name,
                kind=kind,
            )

    def _patch_nodes(self, request: Request) -> Answer:
        found = self._get(request)
        self._same_version(request, found, "nodes")
        before = found["spec"].get("unschedulable")
        _own_labels(found, request)
        _merge(found, request.body)
        now = found["spec"].get("unschedulable")
        if now != before:
            manager = request.query.get("fieldManager", "unknown")
            entries = [e for e in found["metadata"]["managedFields"] if "f:unschedulable" not in e["fieldsV1"].get("f:spec", {})]  # fmt: skip
            fields: Json = {"f:spec": {"f:unschedulable": {}}}
            entry = {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _now(), "fieldsType": "FieldsV1", "fieldsV1": fields}  # fmt: skip
            found["metadata"]["managedFields"] = [*entries, *([entry] if now else [])]
        return Answer(200, copy.deepcopy(self._store("nodes", found)))

    def _create_pods(self, request: Request) -> Answer:
        assert request.place["sub"] == "eviction"
        pod = self.objects["pods"][_key(self._get(request)["metadata"])]
        options = request.body.get("deleteOptions") or {}
        self._same_uid(pod, options)
        if not pod["metadata"].get("deletionTimestamp"):
            self._ask_budget(pod)
        if not options.get("dryRun"):
            self._end_pod(pod)
        return Answer(201, {"kind": "Status", "metadata": {}, "status": "Success", "code": 201})

    def _ask_budget(self, pod: Json) -> None:
        for budget in self.objects["poddisruptionbudgets"].values():
            wanted = budget["spec"]["selector"]["matchLabels"].items()
            if not wanted <= pod["metadata"]["labels"].items():
                continue
            status = budget["status"]
            if status["disruptionsAllowed"] <= 0:
                words = f"The disruption budget train needs {status['desiredHealthy']} healthy pods and has {status['currentHealthy']} currently"  # fmt: skip
                raise Refused(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    causes=[{"reason": "DisruptionBudget", "message": words}],
                )

    def _delete_pods(self, request: Request) -> Answer:
        pod = self.objects["pods"][_key(self._get(request)["metadata"])]
        self._same_uid(pod, request.body or {})
        self._end_pod(pod)
        return Answer(200, copy.deepcopy(pod))

    def _same_uid(self, pod: Json, options: Mapping[str, Any]) -> None:
        uid = (options.get("preconditions") or {}).get("uid")
        meta = pod["metadata"]
        if uid and uid != meta["uid"]:
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on Pod "{meta["name"]}": the UID in the precondition ({uid}) does not '
                f"match the UID in record ({meta['uid']}). The object might have been deleted and then recreated",
            )

    def _create_leases(self, request: Request) -> Answer:
        item = copy.deepcopy(request.body)
        item["metadata"].setdefault("namespace", request.place["namespace"])
        name = item["metadata"]["name"]
        if _key(item["metadata"]) in self.objects["leases"]:
            raise Refused(409, "AlreadyExists", f'leases "{name}" already exists', name=name)
        return Answer(201, copy.deepcopy(self._store("leases", item)))

    def _update_leases(self, request: Request) -> Answer:
        found = self._get(request)
        self._same_version(request, found, "leases")
        item = copy.deepcopy(request.body)
        item["metadata"] = {**found["metadata"], **item["metadata"]}
        return Answer(200, copy.deepcopy(self._store("leases", item)))

    def _delete_leases(self, request: Request) -> Answer:
        found = self._get(request)
        wanted = (request.body or {}).get("preconditions") or {}
        self._same_version(Request("", "", body={"metadata": wanted}), found, "leases")
        del self.objects["leases"][_key(found["metadata"])]
        return Answer(200, {"kind": "Status", "metadata": {}, "status": "Success", "code": 200})

    def _create_events(self, request: Request) -> Answer:
        item = copy.deepcopy(request.body)
        item["metadata"].setdefault("namespace", request.place["namespace"])
        item["metadata"].setdefault("name", f"event-{next(self._numbers)}")
        return Answer(201, copy.deepcopy(self._store("events", item)))

    # --- other clients -----------------------------------------------------------------

    def write(self, path: str, patch: Json, manager: str = "kubectl-edit") -> None:
        """Another client's patch of a Node."""
        request = Request("PATCH", path, {"fieldManager": manager}, patch, self.token)
        answer = self.answer(request)
        assert answer.status == 200, answer.body

    def replace_pods(self, app: str) -> None:
        """The pods of an owner are new ones of the same name, with another uid."""
        with self.lock:
            for pod in self.objects["pods"].values():
                if pod["metadata"]["labels"]["app"] == app and not pod["metadata"].get("deletionTimestamp"):  # fmt: skip
                    pod["metadata"]["uid"] += "-again"


def _own_labels(node: Json, request: Request) -> None:
    """Labels belong to whoever changes their value, or applies them; what was applied before and is not now, goes."""
    meta = node["metadata"]
    operation = "Apply" if request.content_type.startswith("application/apply-patch") else "Update"
    manager = request.query.get("fieldManager", "unknown")
    wanted = (request.body.get("metadata") or {}).get("labels") or {}
    entries: list[Json] = meta.setdefault("managedFields", [])
    changed = {
        one for one in wanted if operation == "Apply" or wanted[one] != meta["labels"].get(one)
    }
    of = (manager, operation)
    mine = next((e for e in entries if (e["manager"], e["operation"]) == of), None)
    if mine is None and changed:
        mine = {"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": {}}
        entries.append(mine)
    for entry in entries:
        labels = entry["fieldsV1"].setdefault("f:metadata", {}).setdefault("f:labels", {})
        for name in [one.removeprefix("f:") for one in labels]:
            if entry is mine and operation == "Apply" and name not in wanted:
                del labels[f"f:{name}"], meta["labels"][name]
            elif wanted.get(name, meta["labels"].get(name)) != meta["labels"].get(name):
                del labels[f"f:{name}"]
        if entry is mine:
            labels.update({f"f:{name}": {} for name in changed})


def _key(meta: Mapping[str, Any]) -> str:
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _ready(thing: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in thing["status"]["conditions"])  # fmt: skip


def _gpus(pod: Json) -> int:
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return int(limits.get(GPU, 0))


def _merge(target: Json, patch: Mapping[str, Any]) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            below = target.get(key)
            target[key] = dict(below) if isinstance(below, Mapping) else {}
            _merge(target[key], value)
        else:
            target[key] = value
