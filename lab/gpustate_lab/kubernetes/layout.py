"""Files, addresses and users of a lab's cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpustate_lab.kubernetes import kubeconfig
from gpustate_lab.kubernetes.certificates import Authority, Identity
from gpustate_lab.kubernetes.client import Client
from gpustate_lab.network import Network
from gpustate_lab.paths import write_text

#: Port of the API server, the same as that of the service ``kubernetes``.
PORT = 443
#: Group that is bound to ``cluster-admin``, see :mod:`.objects`.
ADMINISTRATORS = "gpustate-lab:administrators"
#: Group that bypasses RBAC, only for the lab's own processes.
MASTERS = "system:masters"
#: Namespace of ``developer``.
DEVELOPER_NAMESPACE = "team"
#: Users with a kubeconfig: groups, and default namespace.
USERS: dict[str, tuple[tuple[str, ...], str]] = {
    "admin": ((ADMINISTRATORS,), ""),
    "viewer": ((), ""),
    "gpustate": ((), ""),
    "developer": ((), DEVELOPER_NAMESPACE),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Files and addresses of a lab's cluster.

    Args:
        lab: the lab's folder.
        name: of lab and cluster.
        network: the lab's addresses.
    """

    lab: Path
    name: str
    network: Network

    @property
    def directory(self) -> Path:
        return self.lab / "kubernetes"

    @property
    def programs(self) -> Path:
        """Folder of the cluster's programs, which is mounted in nodes too."""
        return self.lab / "programs"

    @property
    def network_plugins(self) -> Path:
        """Folder of the CNI plugins of nodes."""
        return self.directory / "cni"

    @property
    def images(self) -> Path:
        """Folder of container images that nodes import at boot."""
        return self.directory / "images"

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit" / "audit.log"

    @property
    def authority(self) -> Authority:
        return Authority(self.directory / "pki")

    @property
    def address(self) -> str:
        """Address of the API server: a second one of the lab's bridge, that of the service ``kubernetes``."""
        return str(self.network.api_address)

    @property
    def server(self) -> str:
        return f"https://{self.address}:{PORT}"

    @property
    def gateway(self) -> str:
        return str(self.network.gateway)

    def user_file(self, user: str) -> Path:
        """Return the kubeconfig of one of :data:`USERS`."""
        return self.lab / "kubeconfigs" / f"{user}.yml"

    def system_file(self, name: str) -> Path:
        """Return the kubeconfig of a process of the lab."""
        return self.directory / f"{name}.kubeconfig"

    def write_users(self) -> None:
        """Write the kubeconfigs of :data:`USERS`, unless they exist."""
        for user, (groups, namespace) in USERS.items():
            identity = self.authority.issue(f"user-{user}", user, groups=groups)
            self._write(self.user_file(user), user, identity, namespace)

    def write_system(self, name: str, user: str, *groups: str) -> Path:
        """Write the kubeconfig of a process of the lab, unless it exists, and return its path."""
        identity = self.authority.issue(name, user, groups=groups)
        path = self.system_file(name)
        self._write(path, user, identity)
        return path

    def kubeconfig_text(self, user: str, identity: Identity, namespace: str = "") -> str:
        return kubeconfig.text(
            cluster=self.name,
            server=self.server,
            authority=self.authority.certificate,
            user=user,
            identity=identity,
            namespace=namespace,
        )

    def client(self) -> Client:
        """Return a client that bypasses RBAC."""
        identity = self.authority.issue("lab", "gpustate-lab", groups=(MASTERS,))
        return Client(self.server, self.authority.certificate, identity)

    def _write(self, path: Path, user: str, identity: Identity, namespace: str = "") -> None:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, self.kubeconfig_text(user, identity, namespace), 0o600)
