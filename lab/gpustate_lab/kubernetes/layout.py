"""Where a lab's cluster keeps its files, and which addresses and users it has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpustate_lab.kubernetes import kubeconfig
from gpustate_lab.kubernetes.certificates import Authority, Identity
from gpustate_lab.kubernetes.client import Client
from gpustate_lab.network import Network
from gpustate_lab.paths import write_text

#: Port of the API server: that of the service ``kubernetes``, whose address it has too.
PORT = 443
#: Members may do everything by RBAC: the binding of ``cluster-admin`` in :mod:`.objects`.
ADMINISTRATORS = "gpustate-lab:administrators"
#: The group that RBAC is not asked about. For the lab's own processes alone.
MASTERS = "system:masters"
#: Where ``developer`` may edit.
DEVELOPER_NAMESPACE = "team"
#: Users with a kubeconfig, their groups, and the namespace that their context starts in.
USERS: dict[str, tuple[tuple[str, ...], str]] = {
    "admin": ((ADMINISTRATORS,), ""),
    "viewer": ((), ""),
    "gpustate": ((), ""),
    "developer": ((), DEVELOPER_NAMESPACE),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Files and addresses of one lab's cluster.

    Args:
        lab: the lab's folder.
        name: the lab's name, which the cluster has too.
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
        """Hard links to every program of the cluster; nodes see this folder too."""
        return self.lab / "programs"

    @property
    def images(self) -> Path:
        """Container images that nodes import at boot."""
        return self.directory / "images"

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit" / "audit.log"

    @property
    def authority(self) -> Authority:
        return Authority(self.directory / "pki")

    @property
    def address(self) -> str:
        """Of the API server: a second address of the lab's bridge, that of the service ``kubernetes``."""
        return str(self.network.api_address)

    @property
    def server(self) -> str:
        return f"https://{self.address}:{PORT}"

    @property
    def gateway(self) -> str:
        return str(self.network.gateway)

    def user_file(self, user: str) -> Path:
        """Kubeconfig of one of :data:`USERS`."""
        return self.lab / "kubeconfigs" / f"{user}.yml"

    def system_file(self, name: str) -> Path:
        """Kubeconfig of one of the lab's own processes."""
        return self.directory / f"{name}.kubeconfig"

    def write_users(self) -> None:
        """Write the kubeconfigs of :data:`USERS`, unless they are there."""
        for user, (groups, namespace) in USERS.items():
            identity = self.authority.issue(f"user-{user}", user, groups=groups)
            self._write(self.user_file(user), user, identity, namespace)

    def write_system(self, name: str, user: str, *groups: str) -> Path:
        """Write the kubeconfig of a process of the lab, unless it is there, and return its path."""
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
        """The lab's own access, which RBAC does not bind."""
        identity = self.authority.issue("lab", "gpustate-lab", groups=(MASTERS,))
        return Client(self.server, self.authority.certificate, identity)

    def _write(self, path: Path, user: str, identity: Identity, namespace: str = "") -> None:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, self.kubeconfig_text(user, identity, namespace), 0o600)
