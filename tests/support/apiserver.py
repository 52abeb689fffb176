"""An API server with its etcd on loopback, without nodes: what it accepts, and who may do what.

Of the controllers only that of namespaces runs.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpustate.manifests.kinds import Kind
from gpustate_lab import programs

_READY_S = 60.0
#: Users by token; the first may do everything.
ADMIN, USER = "admin", "user"
_AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server.

    Args:
        folder: of its files.
        port: on 127.0.0.1.
    """

    folder: Path
    port: int

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of a user."""
        path = self.folder / f"{user}.kubeconfig"
        cluster = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": str(self.folder / "apiserver.crt"),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": user}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
            "current-context": "c",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def request(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        """A request of the administrator, as another program than gpustate makes it.

        Args:
            method: of HTTP.
            path: with the query.
            body: as JSON.
            kind: of the body: ``json``, or a patch's such as ``merge-patch+json``.

        Raises:
            Refused: the server's error.
        """
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": f"application/{kind}"},
        )
        context = ssl.create_default_context(cafile=str(self.folder / "apiserver.crt"))
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(json.load(error)["message"]) from None

    def audit(self) -> list[dict[str, Any]]:
        """The log of all requests."""
        return [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]


class Refused(Exception):
    """A request was refused; the message is the server's."""


def path_of(kind: Kind, namespace: str = "", name: str = "") -> str:
    """The path of an object, or of all of a kind."""
    base = f"/apis/{kind.version}" if kind.group else f"/api/{kind.version}"
    within = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
    return f"{base}{within}/{kind.plural}{f'/{name}' if name else ''}"


@contextmanager
def running(version: str, folder: Path) -> Iterator[ApiServer]:
    """Run an API server of a minor version until the block ends."""
    etcd = programs.provide("etcd", print)["etcd"]
    kubernetes = programs.provide(f"kubernetes-{version}", print)
    storage, peers, port = _free_port(), _free_port(), _free_port()
    tokens, key = folder / "tokens.csv", folder / "accounts.key"
    tokens.write_text(f'{ADMIN},{ADMIN},1,"system:masters"\n{USER},{USER},2\n')
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-out", key], check=True, capture_output=True
    )
    audit = folder / "audit-policy.yaml"
    audit.write_text(_AUDIT)
    commands = (
        [
            *(etcd, f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync"),
            f"--listen-client-urls=http://127.0.0.1:{storage}",
            f"--advertise-client-urls=http://127.0.0.1:{storage}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-cluster=default=http://127.0.0.1:{peers}",
        ],
        [
            *(kubernetes["kube-apiserver"], "--bind-address=127.0.0.1", f"--secure-port={port}"),
            *("--advertise-address=127.0.0.1", f"--cert-dir={folder}"),
            *(f"--etcd-servers=http://127.0.0.1:{storage}", "--authorization-mode=RBAC"),
            *(f"--token-auth-file={tokens}", "--service-cluster-ip-range=10.96.0.0/16"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            *("--allow-privileged=true", f"--audit-policy-file={audit}"),
            f"--audit-log-path={folder / 'audit.log'}",
        ],
    )
    running: list[subprocess.Popen[bytes]] = []
    with (folder / "log").open("wb") as log:
        try:
            for command in commands:
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
            found = ApiServer(folder, port)
            _wait(found, running)
            controllers = [
                kubernetes["kube-controller-manager"],
                f"--kubeconfig={found.kubeconfig(ADMIN)}",
                *("--controllers=namespace-controller", "--leader-elect=false"),
                "--secure-port=0",
            ]
            running.append(subprocess.Popen(controllers, stdout=log, stderr=log))
            yield found
        finally:
            for process in running:  # a stop in order takes the API server a minute
                process.kill()
            for process in running:
                process.wait()


def _wait(server: ApiServer, processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _READY_S
    request = urllib.request.Request(
        f"https://127.0.0.1:{server.port}/readyz", headers={"Authorization": f"Bearer {ADMIN}"}
    )
    while True:
        ended = [one.args for one in processes if one.poll() is not None]
        assert not ended, (server.folder / "log").read_text()[-3000:]
        try:
            context = ssl.create_default_context(cafile=str(server.folder / "apiserver.crt"))
            with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                if answer.read() == b"ok":
                    return
        except (OSError, urllib.error.URLError):
            pass
        assert time.monotonic() < deadline, (server.folder / "log").read_text()[-3000:]
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
