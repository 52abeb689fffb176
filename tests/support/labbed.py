"""A lab's real cluster with the gate of :mod:`apigate` before its API server, as a bed of :mod:`rolloutbed`.

Real: API server, controllers, scheduler, kubelets, NVIDIA's device plugin, nodes. The change itself is a file
(:mod:`rolloutstates`), so that a run takes seconds; what is killed here is the controller.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import forkserver
import gpupods
import pluginpods
import yaml
from apigate import HOLD, Gate, Upstream
from forkserver import Command
from killsite import WRAPPER
from labkubernetes import create, kubectl, wait_for
from rolloutbed import NEW, OLD, SUPPORT, Bed, Machine
from rolloutpoints import RACK, SEEN
from stubcluster import Answer, Request

from gpustate.documents import Json
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.node import Node

GPUS = {"nvidia.com/gpu": 8}
FOLDER = "/var/lib/gpustate-rollout"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpustate"
_WAIT_S = 120.0
_WAIT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"


@dataclass(slots=True)
class LabMachine(Machine):
    """A node of the lab; its folder is seen from outside."""

    def prepare(self) -> None:
        """Make its folder, and the ``sync`` at which a run can be held."""
        root = self.folder.parents[2]
        (root / "run/gpustate-kill").mkdir()
        self.folder.mkdir()
        # Relative, for they are followed from outside.
        (self.folder / "state").symlink_to("../gpustate")
        (self.folder / "kill").symlink_to("../../../run/gpustate-kill")
        for name in ("reached", "go"):
            os.mkfifo(self.folder / "kill" / name)
        program = root / "usr/local/sbin/sync"
        program.write_text(WRAPPER)
        program.chmod(0o755)

    def reset(self) -> None:
        """With the old driver, and without records of runs."""
        for name in ("firmware", "firmware.begun", "driver.count", "broken"):
            (self.folder / name).unlink(missing_ok=True)
        for path in [*(self.folder / "state/runs").glob("*"), self.folder / "state/lock"]:
            shutil.rmtree(path, ignore_errors=True)
        (self.folder / "driver").write_text(f"{OLD}\n")
        self.stop_at("0")


@dataclass(slots=True)
class LabCluster:
    """The lab's API server, as other clients and the judge see it.

    Args:
        lab: of it.
        upstream: the same server.
        moments: when a Node became schedulable or not, by gpustate.
        token: has no meaning here.
    """

    lab: Lab
    upstream: Upstream
    moments: list[tuple[float, str, bool]] = field(default_factory=list[tuple[float, str, bool]])
    token: str = ""

    def answer(self, request: Request) -> Answer:
        """What the server says to gpustate."""
        answer = self.upstream.answer(request)
        if request.method == "PATCH" and request.place.get("resource") == "nodes" and answer.status == 200:  # fmt: skip
            node = json.loads(str(answer.body))
            held = bool(node["spec"].get("unschedulable"))
            self.moments.append((time.time(), node["metadata"]["name"], held))
        return answer

    def read(self, path: str) -> Json:
        """An object, or a list of them; faster than kubectl."""
        parts = urlsplit(path)
        answer = self.upstream.answer(Request("GET", parts.path, url=path))
        assert answer.status in (200, 404), answer.body
        found: Json = json.loads(str(answer.body))
        return found

    def node(self, name: str) -> Json:
        """A Node."""
        found = self.read(f"/api/v1/nodes/{name}")
        found["metadata"].setdefault("annotations", {})
        return found

    def ready(self, app: str, namespace: str = "default") -> list[Json]:
        """The pods of an owner that are Ready and stay."""
        query = urlencode({"labelSelector": f"app={app}"})
        found = self.read(f"/api/v1/namespaces/{namespace}/pods?{query}")["items"]
        return [one for one in found if _is_ready(one)]

    def all(self, kind: str) -> list[Json]:
        """Leases of gpustate, of which there is one at most."""
        assert kind == "leases"
        found = self.read(_LEASE)
        return [found] if found["kind"] == "Lease" else []

    def write(self, path: str, patch: Json, manager: str = "kubectl-edit") -> None:
        """Another client's patch of a Node."""
        url = f"{path}?{urlencode({'fieldManager': manager})}"
        kind = "application/merge-patch+json"
        answer = self.upstream.answer(Request("PATCH", path, {}, patch, "", url, kind))
        assert answer.status == 200, answer.body

    def replace_pods(self, app: str) -> None:
        """The pods of an owner are deleted by someone else; others follow."""
        namespace = pluginpods.NAMESPACE if app == pluginpods.NAME else "default"
        words = ("--namespace", namespace, "--selector", f"app={app}", "--wait=false")
        kubectl(self.lab, "delete", "pods", *words)


class LabBed(Bed):
    """Two nodes of a lab with GPUs, on each a pod with all of them.

    Args:
        folder: of the test.
        lab: with the old driver and the plugin's pods.
    """

    away_s, long_s = 2.0, 14.0
    bound_s = 400.0

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder = folder
        self.lab = lab
        self.machines = []
        for node in lab.nodes:
            place = Path(f"/proc/{node.leader()}/root{FOLDER}")
            self.machines.append(LabMachine(node.name, place, address=node.address))
            self.machines[-1].prepare()
        layout = Kubernetes(lab).layout
        identity = layout.authority.issue("user-admin", "admin")
        upstream = Upstream(
            layout.server, layout.authority.certificate, identity.certificate, identity.key
        )
        self.cluster = LabCluster(lab, upstream)  # type: ignore[assignment]
        self.gate = Gate(self.cluster.answer, owner_of=self._owner_of)
        self.gate.open()
        self.kubeconfig = self.gate.kubeconfig(folder, "none")
        self.write_policy()
        self.inventory()
        for node in lab.nodes:
            create(lab, _training(node), _budget(node.name))
        self.reset()

    def _owner_of(self, pod: str) -> str:
        """The Deployment or DaemonSet of a pod, whose name ends in what was chosen at random."""
        owners = [pluginpods.NAME, *(f"training-{machine.name}" for machine in self.machines)]
        return next((one for one in owners if pod.startswith(f"{one}-")), pod)

    def inventory(self, **variables: str) -> Path:
        """Write the lab's inventory with the folders of the states."""
        found = yaml.safe_load(Path(self.lab.inventory).read_text())
        names = ("rollout-driver", "rollout-firmware")
        found["all"]["vars"] = {"gpustate_kubeconfig": str(self.kubeconfig)} | variables
        groups: dict[str, Any] = found["all"]["children"]
        for group in groups.values():
            group.get("vars", {}).pop("gpustate_kubeconfig", None)
            if "gpustate" in group.get("vars", {}):
                group["vars"]["gpustate"] = {name: {"folder": FOLDER} for name in names}
        path = self.folder / "inventory.yml"
        path.write_text(json.dumps(found))
        return path

    def start(self, *words: str, verb: str = "apply", hurry: bool = True) -> Command:
        """Start gpustate over both nodes."""
        line = [verb, str(self.folder / "policy.py"), "-i", str(self.folder / "inventory.yml")]
        line += ["--yes"] if verb == "apply" else []
        return forkserver.start([*line, *words], str(SUPPORT / "hurrylab.py"))

    def reset(self) -> None:
        """Nodes with the old driver, in service, on each the pod with GPUs."""
        for machine in self.machines:
            machine.reset()
            others = {"annotations": {HOLD: None, SEEN: None}, "labels": {RACK: None}}
            patch = {"spec": {"unschedulable": None}, "metadata": others}
            self.cluster.write(f"/api/v1/nodes/{machine.name}", patch)
        self.cluster.upstream.answer(Request("DELETE", _LEASE))  # type: ignore[attr-defined]
        for machine in self.machines:
            wait_for(lambda name=machine.name: self._in_service(name), machine.name, _WAIT_S)
        self.cluster.moments.clear()  # type: ignore[attr-defined]

    def _in_service(self, name: str) -> bool:
        node = self.cluster.node(name)
        ready = node["status"]["allocatable"].get("nvidia.com/gpu") == "8"
        return ready and len(self._ready(f"training-{name}")) == 1

    def _ready(self, app: str, namespace: str = "default") -> list[Json]:
        found: list[Json] = self.cluster.ready(app, namespace)  # type: ignore[attr-defined]
        return found

    def close(self) -> None:
        """End everything but the lab."""
        self.gate.close()

    def wrong(self, versions: Sequence[str] = (NEW,)) -> list[str]:
        """What is not as it has to be after a run that ended well, one line each."""
        found: list[str] = []
        plugins = self._ready(pluginpods.NAME, pluginpods.NAMESPACE)
        for machine in self.machines:
            node = self.cluster.node(machine.name)
            for file in ("driver", "firmware"):
                if machine.read(file) not in versions:
                    found.append(f"{machine.name}: {file} is {machine.read(file) or 'missing'}")
            if len(machine.read("driver.count").split()) > 1:
                found.append(f"{machine.name}: the driver was installed more than once")
            if node["spec"].get("unschedulable"):
                found.append(f"{machine.name}: still cordoned")
            if record := node["metadata"]["annotations"].get(HOLD):
                found.append(f"{machine.name}: still held: {record}")
            if (machine.folder / "state/lock").exists():
                found.append(f"{machine.name}: its lock is left")
            if machine.read("driver") != NEW:
                continue
            at = (machine.folder / "driver").stat().st_mtime
            own = [one for one in plugins if one["spec"]["nodeName"] == machine.name]
            if not own or _time(own[0]["metadata"]["creationTimestamp"]) < int(at):
                found.append(f"{machine.name}: its device plugin runs since before the change")
            moments: list[tuple[float, str, bool]] = self.cluster.moments  # type: ignore[attr-defined]
            before = [held for when, name, held in moments if name == machine.name and when <= at]
            if not before or not before[-1]:
                found.append(f"{machine.name}: changed while it was schedulable")
            for one in self._ready(f"training-{machine.name}"):
                if _time(one["status"]["startTime"]) < int(at):
                    found.append(f"{machine.name}: changed under a pod with GPUs")
        return found


def _training(node: Node) -> Json:
    interpreter = gpupods.import_image(node)
    made = gpupods.gpu_deployment(f"training-{node.name}", node, interpreter, GPUS)
    spec = made["spec"]["template"]["spec"]
    spec["runtimeClassName"] = "nvidia"
    spec["terminationGracePeriodSeconds"] = 1
    # It only has the GPUs: proving them again with every pod takes most of a point's time.
    spec["containers"][0]["command"] = [interpreter, "-ISB", "-c", _WAIT]
    return made


def _budget(name: str) -> Json:
    selector = {"matchLabels": {"app": f"training-{name}"}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"training-{name}"},
        "spec": {"maxUnavailable": 1, "selector": selector},
    }


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
