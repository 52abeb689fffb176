"""The cluster's processes on the controller: etcd, API server, controller-manager, scheduler.

They listen on addresses of the lab's bridge, so that labs do not collide, and run in the lab's cgroup, so that
``down`` always finds them. The API server has the address of the service ``kubernetes``, so that pods reach it as
in any cluster, without kube-proxy.

Sources:
    kube-apiserver, kube-controller-manager and kube-scheduler 1.34 to 1.36, ``--help``.
    kubeadm's manifests of the same versions, whose settings are used here.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab import paths, process
from gpustate_lab.command import tail
from gpustate_lab.kubernetes.layout import MASTERS, PORT, Layout
from gpustate_lab.paths import write_text

#: In start order.
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
READY_TIMEOUT_S = 120.0
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259

#: Audit policy, which tests rely on: writes are logged with content; those of secrets and of the cluster's own
#: components without; heartbeats and reads of the components are not logged.
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    resources:
      - group: coordination.k8s.io
        resources: [leases]
      - group: authentication.k8s.io
      - group: authorization.k8s.io
      - group: ""
        resources: [events]
      - group: events.k8s.io
  - level: None
    verbs: [get, list, watch]
    userGroups: [system:masters, system:nodes, "system:serviceaccounts:kube-system"]
  - level: None
    verbs: [get, list, watch]
    users: ["system:apiserver", "system:kube-scheduler"]
  - level: None
    nonResourceURLs: ["/readyz*", "/livez*", "/healthz*", "/version", "/api*", "/openapi*"]
  - level: Metadata
    userGroups: [system:masters, system:nodes, "system:serviceaccounts:kube-system"]
  - level: Metadata
    verbs: [get, list, watch]
  - level: Metadata
    resources:
      - group: ""
        resources: [secrets, configmaps, serviceaccounts/token]
  - level: Request
"""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """The control plane of a lab.

    Args:
        layout: files and addresses.
    """

    layout: Layout

    @property
    def running(self) -> bool:
        return all(process.program_runs(self.layout.directory, name) for name in NAMES)

    def start(self) -> None:
        """Start etcd and the API server, unless they are running; do not wait."""
        for name in NAMES:
            # A state file of an earlier process would be reported as a process that ended.
            if not process.program_runs(self.layout.directory, name):
                (self.layout.directory / f"{name}.json").unlink(missing_ok=True)
        self.start_program("etcd", self._etcd())
        self.start_program("kube-apiserver", self._api_server())

    def start_controllers(self) -> None:
        """Start controller-manager and scheduler, which exit if the API server has no roles for them yet."""
        self.start_program("kube-controller-manager", self._controller_manager())
        self.start_program("kube-scheduler", self._scheduler())

    def start_program(self, name: str, arguments: list[str], **environment: str) -> None:
        """Start a program from the lab's program folder, unless it is running."""
        process.start_program(
            self.layout.directory,
            name,
            [str(self.layout.programs / name), *arguments],
            cgroup=self.layout.network.tag,
            environment={"HOME": str(self.layout.directory), **environment},
        )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until ``/readyz`` of the API server returns ``ok``.

        Raises:
            LabError: a process ended, or it timed out; the message has the last response.
        """
        with self.layout.client() as client:

            def unmet() -> str | None:
                answer = client.get("/readyz")
                return None if answer == "ok" else f"/readyz returned {answer!r}"

            self.wait("API server", unmet, timeout_s)

    def wait(
        self, subject: str, unmet: Callable[[], str | None], timeout_s: float, every_s: float = 0.1
    ) -> None:
        """Wait until ``unmet`` returns ``None`` instead of the unmet condition.

        Raises:
            LabError: a control process ended, or it timed out.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                condition = unmet()
            except LabError as error:
                condition = error.message
            if condition is None:
                return
            self.check()
            if time.monotonic() > deadline:
                raise LabError(
                    f"{subject}: not ready within {timeout_s:.0f} s; last status: {condition}",
                    fix=f"read the logs in {self.layout.directory}",
                )
            time.sleep(every_s)

    def check(self) -> None:
        """Raise a LabError with the last output of a control process that ended."""
        for name in NAMES:
            started = (self.layout.directory / f"{name}.json").exists()
            if started and not process.program_runs(self.layout.directory, name):
                log = self.layout.directory / f"{name}.log"
                # The lab's folder is removed when `up` fails.
                kept = paths.cache_dir() / log.name
                shutil.copy(log, kept)
                raise LabError(
                    f"{name} exited: {tail(log.read_text(errors='replace'), 2)}", fix=f"read {kept}"
                )

    def down(self) -> list[str]:
        """Kill all processes in reverse start order."""
        return [
            f"process {name}"
            for name in reversed(NAMES)
            if process.end_program(self.layout.directory, name)
        ]

    # --- arguments -----------------------------------------------------------------------------

    def _etcd(self) -> list[str]:
        layout = self.layout
        identity = layout.authority.issue("etcd", "etcd", hosts=(layout.gateway,))
        url = f"https://{layout.gateway}:{ETCD_PORT}"
        peer = f"https://{layout.gateway}:{ETCD_PEER_PORT}"
        secured = []
        for prefix in ("", "peer-"):
            secured += [
                f"--{prefix}cert-file={identity.certificate}",
                f"--{prefix}key-file={identity.key}",
                f"--{prefix}trusted-ca-file={layout.authority.certificate}",
                f"--{prefix}client-cert-auth",
            ]
        return [
            "--name=lab",
            f"--data-dir={layout.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=lab={peer}",
            # Losing the data of a lab in a power loss is acceptable, and its disk may be slow.
            "--unsafe-no-fsync",
            "--quota-backend-bytes=4294967296",
            "--auto-compaction-retention=1",
            "--log-level=warn",
            *secured,
        ]

    def _api_server(self) -> list[str]:
        layout = self.layout
        authority = layout.authority
        serving = authority.issue(
            "kube-apiserver",
            "kube-apiserver",
            hosts=(
                layout.address,
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ),
        )
        etcd = authority.issue("kube-apiserver-etcd-client", "kube-apiserver-etcd-client")
        kubelet = authority.issue(
            "kube-apiserver-kubelet-client", "kube-apiserver-kubelet-client", groups=(MASTERS,)
        )
        private, public = authority.key_pair("service-accounts")
        policy = layout.directory / "audit-policy.yml"
        write_text(policy, AUDIT_POLICY)
        layout.audit_log.parent.mkdir(parents=True, exist_ok=True)
        return [
            f"--bind-address={layout.address}",
            f"--advertise-address={layout.address}",
            f"--secure-port={PORT}",
            f"--service-cluster-ip-range={layout.network.services}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--client-ca-file={authority.certificate}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--etcd-servers=https://{layout.gateway}:{ETCD_PORT}",
            f"--etcd-cafile={authority.certificate}",
            f"--etcd-certfile={etcd.certificate}",
            f"--etcd-keyfile={etcd.key}",
            f"--kubelet-certificate-authority={authority.certificate}",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            # The controller cannot resolve node names.
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={layout.audit_log}",
            "--audit-log-maxsize=100",
            "--audit-log-maxbackup=3",
        ]

    def _controller_manager(self) -> list[str]:
        layout = self.layout
        own = layout.write_system("kube-controller-manager", "system:kube-controller-manager")
        authority = layout.authority
        private, _ = authority.key_pair("service-accounts")
        return [
            f"--kubeconfig={own}",
            f"--authentication-kubeconfig={own}",
            f"--authorization-kubeconfig={own}",
            f"--bind-address={layout.gateway}",
            f"--secure-port={CONTROLLER_MANAGER_PORT}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={private}",
            f"--root-ca-file={authority.certificate}",
            f"--client-ca-file={authority.certificate}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.directory / 'ca.key'}",
            f"--cluster-name={layout.name}",
            # Thousands of virtual nodes join at the same time.
            *("--kube-api-qps=200", "--kube-api-burst=400"),
        ]

    def _scheduler(self) -> list[str]:
        layout = self.layout
        own = layout.write_system("kube-scheduler", "system:kube-scheduler")
        return [
            f"--kubeconfig={own}",
            f"--authentication-kubeconfig={own}",
            f"--authorization-kubeconfig={own}",
            f"--client-ca-file={layout.authority.certificate}",
            f"--bind-address={layout.gateway}",
            f"--secure-port={SCHEDULER_PORT}",
            "--leader-elect=false",
            *("--kube-api-qps=200", "--kube-api-burst=400"),
        ]


def link_program(source: Path, folder: Path) -> None:
    """Put a program into ``folder``: a hard link, which survives a rebuild of the cache, or a copy."""
    target = folder / source.name
    if target.exists() and os.path.samestat(target.stat(), source.stat()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{source.name}.new"
    fresh.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), fresh)
    except OSError:  # another file system
        shutil.copy2(source, fresh)
    fresh.rename(target)
