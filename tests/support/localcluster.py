"""A Kubernetes control plane on loopback: API server, garbage collector, DaemonSet controller, scheduler, virtual nodes.

Real: etcd, API server, controller-manager and scheduler of the lab's module. Nodes are kwok's: pods are reported as
running. For what needs no machine; it starts in seconds and needs no bridge.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from gpustate.documents import Json
from gpustate.errors import LabError
from gpustate_lab import programs
from gpustate_lab.kubernetes import kubeconfig, virtual
from gpustate_lab.kubernetes.certificates import Authority
from gpustate_lab.kubernetes.client import Client, Refused

MODULE = "kubernetes-1.36"
HOST = "127.0.0.1"
NODES = "/api/v1/nodes"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: Of kwok: pods run at once, whatever their init containers do.
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
_MASTERS = "system:masters"
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
#: Paths of the kinds that the GPU Operator creates; ``{}`` is the namespace.
PATHS: Mapping[str, str] = {
    "Namespace": "/api/v1/namespaces",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ServiceMonitor": "/apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors",
    "PrometheusRule": "/apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules",
}


def _silent(line: str) -> None:
    del line


class LocalCluster:
    """One control plane.

    Args:
        directory: of its data, keys and logs.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory / "pki")
        self.port = _free_port()
        self.server = f"https://{HOST}:{self.port}"
        self.kubeconfig = self._kubeconfig("admin", _MASTERS)
        self.client = self.own_client()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._programs = {**programs.provide(MODULE, _silent), **programs.provide("etcd", _silent)}

    def own_client(self) -> Client:
        """A client for one more thread."""
        identity = self.authority.issue("admin", "admin", groups=(_MASTERS,))
        return Client(self.server, self.authority.certificate, identity)

    # --- processes -----------------------------------------------------------------------------

    def start(self, *, controllers: bool = False) -> None:
        """Start etcd and the API server; with controllers also the rest, and virtual nodes' kwok."""
        clients, peers = _free_port(), _free_port()
        etcd = f"http://{HOST}:{clients}"
        self.run(
            "etcd",
            self._programs["etcd"],
            "--name=local",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://{HOST}:{peers}",
            f"--initial-advertise-peer-urls=http://{HOST}:{peers}",
            f"--initial-cluster=local=http://{HOST}:{peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        policy = self.directory / "audit-policy.yaml"
        policy.write_text(json.dumps(_AUDIT))
        serving = self.authority.issue("kube-apiserver", "kube-apiserver", hosts=(HOST,))
        private, public = self.authority.key_pair("service-accounts")
        self.run(
            "kube-apiserver",
            self._programs["kube-apiserver"],
            f"--etcd-servers={etcd}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.directory / 'audit.log'}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
        )
        self.wait("the API server", lambda: self.client.get("/readyz") == "ok")
        if controllers:
            self._start_controllers(private)

    def _start_controllers(self, private: Path) -> None:
        own = self._kubeconfig("kube-controller-manager", _MASTERS)
        self.run(
            "kube-controller-manager",
            self._programs["kube-controller-manager"],
            f"--kubeconfig={own}",
            f"--bind-address={HOST}",
            f"--secure-port={_free_port()}",
            "--leader-elect=false",
            f"--service-account-private-key-file={private}",
            f"--root-ca-file={self.authority.certificate}",
        )
        own = self._kubeconfig("kube-scheduler", _MASTERS)
        self.run(
            "kube-scheduler",
            self._programs["kube-scheduler"],
            f"--kubeconfig={own}",
            f"--bind-address={HOST}",
            f"--secure-port={_free_port()}",
            "--leader-elect=false",
        )
        patterns = [f"kustomize/stage/{stage}/*.yaml" for stage in STAGES]
        stages = programs.data_files("kwok", patterns, _silent)
        configuration = self.directory / "kwok.json"
        configuration.write_text(virtual.configuration())
        files = [*(str(one) for one in stages if one.name != "kustomization.yaml")]
        self.run(
            "kwok",
            programs.provide("kwok", _silent)["kwok"],
            f"--kubeconfig={self._kubeconfig('kwok', _MASTERS)}",
            f"--manage-nodes-with-annotation-selector={virtual.ANNOTATION}=fake",
            f"--node-lease-duration-seconds={virtual.LEASE_S}",
            f"--server-address={HOST}:{_free_port()}",
            *(f"--config={file}" for file in (str(configuration), *files)),
        )
        self.wait(
            "the default service account",
            lambda: self.client.get("/api/v1/namespaces/default/serviceaccounts/default"),
        )

    def run(self, name: str, program: Path, *arguments: str, **environment: str) -> None:
        """Start a program, whose output goes to ``<name>.log``."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(program), *arguments],
                env={
                    "HOME": str(self.directory),
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def end(self, name: str) -> None:
        """Kill a program, if it runs."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(timeout=30)

    def runs(self, name: str) -> bool:
        """Whether a program was started and not killed."""
        return name in self._processes

    def close(self) -> None:
        """Kill everything."""
        self.client.close()
        for name in reversed(list(self._processes)):
            self.end(name)

    def wait(self, what: str, ready: Callable[[], Any], timeout_s: float = 120.0) -> Any:
        """Return what ``ready`` returns as soon as it is true; an error of the server is not yet."""
        deadline = time.monotonic() + timeout_s
        problem: object = "not true"
        while True:
            try:
                if found := ready():
                    return found
            except (LabError, KeyError) as error:
                problem = error
            for name, process in list(self._processes.items()):
                log = self.directory / f"{name}.log"
                assert process.poll() is None, f"{name} ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s: {problem}"
            time.sleep(0.1)

    def audit(self, since: int = 0) -> list[Json]:
        """The log of requests, but for the first ones."""
        lines = (self.directory / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines[since:]]

    # --- objects -------------------------------------------------------------------------------

    def list(self, kind: str, namespace: str) -> list[Json]:
        """All objects of a kind, with kind and apiVersion; none if the server does not know the kind."""
        path = PATHS[kind].format(namespace)
        try:
            found = self.client.get(path)
        except Refused as error:
            if error.status != 404:
                raise
            return []
        return [
            {"apiVersion": found["apiVersion"], "kind": kind, **item} for item in found["items"]
        ]

    def dry_run(self, item: Json, namespace: str) -> Json:
        """An object as the server would create it, with all defaults."""
        path = PATHS[item["kind"]].format(namespace)
        found: Json = self.client.request("POST", f"{path}?dryRun=All", item)
        return found

    def delete(self, item: Json, namespace: str) -> None:
        """Delete an object at once; ignore a missing one."""
        path = f"{PATHS[item['kind']].format(namespace)}/{item['metadata']['name']}"
        try:
            self.client.request("DELETE", f"{path}?gracePeriodSeconds=0")
        except Refused as error:
            if error.status != 404:
                raise

    def create_crds(self, files: list[Path]) -> None:
        """Create custom resources, and wait until the server serves them."""
        for file in files:
            for document in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
                if document:
                    self.client.create(CRDS, document)
                    self._wait_served(document)

    def _wait_served(self, document: Json) -> None:
        spec = document["spec"]
        version = spec["versions"][0]["name"]
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        self.wait(path, lambda: "items" in self.client.get(path))

    def _kubeconfig(self, user: str, *groups: str) -> Path:
        identity = self.authority.issue(user, user, groups=groups)
        file = self.directory / f"{user}.kubeconfig"
        text = kubeconfig.text(
            cluster="local",
            server=self.server,
            authority=self.authority.certificate,
            user=user,
            identity=identity,
        )
        file.write_text(text)
        file.chmod(0o600)
        return file


@contextmanager
def local_cluster(directory: Path, *, controllers: bool = False) -> Iterator[LocalCluster]:
    """A control plane that ends with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(directory)
    try:
        cluster.start(controllers=controllers)
        yield cluster
    finally:
        cluster.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
