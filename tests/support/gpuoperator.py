"""NVIDIA's GPU Operator itself, run against an API server: what it creates for a ClusterPolicy.

The program is built from its Go module, v24.3.0: the proxy serves no newer one. ``GPUSTATE_TEST_GPU_OPERATOR`` names a folder
with the source tree of another release and, in it, the program ``gpu-operator``.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from localcluster import PATHS, LocalCluster

from gpustate.documents import Json
from gpustate_lab import programs
from gpustate_lab.kubernetes import virtual

OTHER = "GPUSTATE_TEST_GPU_OPERATOR"
NAMESPACE = "gpu-operator"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
DRIVERS = "/apis/nvidia.com/v1alpha1/nvidiadrivers"
_MODULE = "gpu-operator"
_SETTLED_S = 2.0
_UNREADY_S = 15.0
_GONE_S = 0.5
#: Sections of a ClusterPolicy whose images the chart sets, in its values.
_IMAGES = (
    *("validator", "driver", "toolkit", "devicePlugin", "gfd", "dcgm", "dcgmExporter"),
    *("migManager", "nodeStatusExporter", "gds", "gdrcopy", "vgpuManager", "vgpuDeviceManager"),
    *("vfioManager", "sandboxDevicePlugin", "kataManager", "ccManager", "kataSandboxDevicePlugin"),
    *("driver.manager", "vgpuManager.driverManager", "vfioManager.driverManager"),
    *("operator.initContainer",),
)
_PARTS = ("repository", "image", "version")


@dataclass(frozen=True, slots=True)
class Release:
    """One release of the Operator.

    Args:
        tree: its source: ``assets``, ``manifests``, chart and custom resources.
        program: the built command.
    """

    tree: Path
    program: Path

    @property
    def name(self) -> str:
        """As ``v24.3.0``."""
        found = re.search(r"^VERSION \?= (v[\d.]+)$", (self.tree / "versions.mk").read_text(), re.M)
        assert found is not None
        return found[1]

    @property
    def crds(self) -> list[Path]:
        return sorted((self.tree / "deployments/gpu-operator/crds").glob("*.yaml"))

    def sample(self) -> Json:
        """The Operator's own ClusterPolicy, with the images of its chart."""
        file = self.tree / "config/samples/v1_clusterpolicy.yaml"
        policy: Json = yaml.safe_load(file.read_text())
        values: Json = yaml.safe_load(
            (self.tree / "deployments/gpu-operator/values.yaml").read_text()
        )
        for path in _IMAGES:
            given = _section(values, path)
            if given is None:
                continue
            section = policy["spec"]
            for word in path.split("."):
                section = section.setdefault(word, {})
            for part in _PARTS:
                # The chart fills in its own version for images of the Operator.
                if value := given.get(part) or (self.name if part == "version" else ""):
                    section.setdefault(part, value)
        return policy


def _section(values: Json, path: str) -> Json | None:
    found: Any = values
    for word in path.split("."):
        found = found.get(word) if isinstance(found, dict) else None
    return found if isinstance(found, dict) and found.get("repository") else None


def release() -> Release:
    """The release that is the judge."""
    if folder := os.environ.get(OTHER):
        return Release(Path(folder), Path(folder, "gpu-operator"))
    program = programs.provide(_MODULE, print)["gpu-operator"]
    return Release(programs.source(_MODULE, print), program)


class GpuOperator:
    """A running Operator.

    Args:
        cluster: it works in.
        release: of the program.
    """

    def __init__(self, cluster: LocalCluster, release: Release) -> None:
        self.cluster = cluster
        self.release = release

    def install(self, *, monitoring: bool = True) -> None:
        """Create what the chart creates before the Operator runs: resources and namespace."""
        client = self.cluster.client
        self.cluster.create_crds(self.release.crds)
        if monitoring:
            for kind in ("ServiceMonitor", "PrometheusRule"):
                self.cluster.create_crds([_monitoring_crd(self.cluster.directory, kind)])
        client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    def start(self) -> None:
        """Start the program in a root folder with what its image has."""
        root = self.cluster.directory / "operator"
        if not root.exists():
            files = root / "opt/gpu-operator"
            shutil.copytree(self.release.tree / "assets", files, copy_function=shutil.copyfile)
            manifests = self.release.tree / "manifests"
            shutil.copytree(manifests, files / "manifests", copy_function=shutil.copyfile)
            (root / "host-etc").mkdir()
            (root / "host-etc/os-release").write_text('ID=ubuntu\nVERSION_ID="22.04"\n')
            (root / "tmp").mkdir()
            shutil.copy(self.cluster.kubeconfig, root / "kubeconfig")
            shutil.copy(self.release.program, root / "gpu-operator")
        self.cluster.run(
            "gpu-operator",
            Path("/usr/sbin/chroot"),
            *(str(root), "/gpu-operator"),
            *("--metrics-bind-address=0", "--health-probe-bind-address=0"),
            KUBECONFIG="/kubeconfig",
            OPERATOR_NAMESPACE=NAMESPACE,
            WATCH_NAMESPACE="",
        )

    def stop(self) -> None:
        self.cluster.end("gpu-operator")

    @property
    def running(self) -> bool:
        return self.cluster.runs("gpu-operator")

    def create(self, policy: Json) -> str:
        """Create a ClusterPolicy; return its uid."""
        found = self.cluster.client.request("POST", POLICIES, policy)
        return str(found["metadata"]["uid"])

    def owned(self, uid: str) -> list[Json]:
        """What belongs to a ClusterPolicy."""
        return [
            item
            for kind in PATHS
            if kind != "Namespace"
            for item in self.cluster.list(kind, NAMESPACE)
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or ())
        ]

    def settled(self, uid: str, timeout_s: float = 90.0, *, ready: bool = True) -> list[Json]:
        """What belongs to a ClusterPolicy once its state is known and nothing changes any more.

        Args:
            uid: of the policy.
            timeout_s: until then.
            ready: its state is to be so. Some drivers never are on virtual nodes, and are updated again and again:
                of these, what is there after a while, and with a driver.
        """
        before: Mapping[str, str] = {}
        since = begun = time.monotonic()
        deadline = since + timeout_s
        while True:
            found = self.owned(uid)
            versions = {
                f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
                for one in found
            }
            now = time.monotonic()
            if versions != before:
                before, since = versions, now
            elif now - since >= _SETTLED_S and self._state(uid) == "ready":
                return found
            if not ready and now - begun >= _UNREADY_S and any(map(_is_driver, found)):
                return found
            assert now < deadline, f"not settled: {len(found)} objects, {self.log()[-3000:]}"
            time.sleep(0.2)

    def of_driver(self, driver: Json, timeout_s: float = 90.0) -> list[Json]:
        """What belongs to an NVIDIADriver, once it has a DaemonSet; it is deleted again."""
        made = self.cluster.client.request("POST", DRIVERS, driver)
        uid = str(made["metadata"]["uid"])
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                found = self.owned(uid)
                if any(one["kind"] == "DaemonSet" for one in found):
                    time.sleep(_SETTLED_S)
                    return self.owned(uid)
                assert time.monotonic() < deadline, f"no DaemonSet: {self.log()[-3000:]}"
                time.sleep(0.2)
        finally:
            self.cluster.client.request("DELETE", f"{DRIVERS}/{driver['metadata']['name']}")
            for item in self.owned(uid):
                self.cluster.delete(item, NAMESPACE)

    def _state(self, uid: str) -> str:
        for one in self.cluster.client.get(POLICIES)["items"]:
            if one["metadata"]["uid"] == uid:
                return str((one.get("status") or {}).get("state") or "")
        return ""

    def log(self) -> str:
        return (self.cluster.directory / "gpu-operator.log").read_text(errors="replace")

    def remove(self, policy: Json, uid: str) -> None:
        """Delete a ClusterPolicy and what belonged to it, as the garbage collector does."""
        self.cluster.client.request("DELETE", f"{POLICIES}/{policy['metadata']['name']}")
        quiet = time.monotonic()
        while time.monotonic() - quiet < _GONE_S:  # the Operator may be about to write
            for item in self.owned(uid):
                self.cluster.delete(item, NAMESPACE)
                quiet = time.monotonic()
            time.sleep(0.1)
        # The Operator labels its namespace for Pod Security, and does not remove that.
        modes = ("audit", "enforce", "warn")
        labels = dict.fromkeys(f"pod-security.kubernetes.io/{mode}" for mode in modes)
        namespace = f"/api/v1/namespaces/{NAMESPACE}"
        patch = {"metadata": {"labels": labels}}
        self.cluster.client.request("PATCH", namespace, patch, "merge-patch+json")


def _is_driver(item: Json) -> bool:
    return item["kind"] == "DaemonSet" and item["metadata"]["name"].startswith("nvidia-driver-")


def gpu_node(name: str) -> Json:
    """A virtual Node as node feature discovery has labelled it."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "feature.node.kubernetes.io/kernel-version.full": "5.15.0-100-generic",
        "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "22.04",
    }
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    info = {
        "containerRuntimeVersion": "containerd://1.7.27",
        "kubeletVersion": "v1.34.0",
        "osImage": "Ubuntu 22.04",
        "kernelVersion": "5.15.0-100-generic",
        "architecture": "amd64",
        "operatingSystem": "linux",
        **dict.fromkeys(("bootID", "machineID", "systemUUID", "kubeProxyVersion"), name),
    }
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {virtual.ANNOTATION: "fake"}},
        "spec": {"providerID": f"kwok://{name}"},
        "status": {"nodeInfo": info, "allocatable": resources, "capacity": resources},
    }


class Deployed:
    """The Operator as a cluster runs it: its program runs if, and only if, its Deployment has a pod.

    Args:
        operator: installed and not started.
    """

    def __init__(self, operator: GpuOperator) -> None:
        self._operator = operator
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def create(self) -> None:
        """Create the Deployment as the chart does, and follow it."""
        path = PATHS["Deployment"].format(NAMESPACE)
        self._operator.cluster.client.create(path, deployment(self._operator.release.name))
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=30)

    def _follow(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3Dgpu-operator"
        with self._operator.cluster.own_client() as client:
            while not self._ended.wait(0.1):
                wanted = bool(client.get(path)["items"])
                if wanted and not self._operator.running:
                    self._operator.start()
                elif not wanted and self._operator.running:
                    self._operator.stop()


def deployment(version: str) -> Json:
    """The Operator's Deployment, as Helm creates it from the chart."""
    selector = {"app": "gpu-operator", "app.kubernetes.io/component": "gpu-operator"}
    labels = {
        **selector,
        "app.kubernetes.io/managed-by": "Helm",
        "app.kubernetes.io/version": version,
        "helm.sh/chart": f"gpu-operator-{version}",
    }
    container = {"name": "gpu-operator", "image": f"nvcr.io/nvidia/gpu-operator:{version}"}
    annotations = {
        "meta.helm.sh/release-name": "gpu-operator",
        "meta.helm.sh/release-namespace": NAMESPACE,
    }
    return {
        "metadata": {"name": "gpu-operator", "labels": labels, "annotations": annotations},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def _monitoring_crd(folder: Path, kind: str) -> Path:
    """A resource of the Prometheus operator without a schema."""
    plural = f"{kind.lower()}s"
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        },
    }
    document = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }
    file = folder / f"{plural}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file
