"""The cluster's processes on the controller: etcd, API server, controller-manager, scheduler.

All of them listen on addresses of the lab's bridge, so that labs do not collide, and run in the lab's
cgroup, so that ``down`` finds them whatever happens. The API server has the address of the service
``kubernetes``: what runs in a pod finds it as in any cluster, though the lab has no kube-proxy.

Sources:
    kube-apiserver, kube-controller-manager and kube-scheduler 1.34 to 1.36, ``--help``.
    kubeadm's manifests of the same: a full cluster's settings, which these follow.
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

#: In the order in which they are started.
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
READY_TIMEOUT_S = 120.0
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259

#: Who wrote what: writes with their content, secrets and the traffic of the cluster itself without it;
#: heartbeats and the cluster's own reads not at all. Tests read it.
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
    """The control processes of one lab.

    Args:
        layout: files and addresses.
    """

    layout: Layout

    @property
    def running(self) -> bool:
        return all(process.program_runs(self.layout.directory, name) for name in NAMES)

    def start(self) -> None:
        """Start etcd and the API server, unless they run; wait for nothing."""
        for name in NAMES:
            # What is known of a process of an earlier time would count as one that ended.
            if not process.program_runs(self.layout.directory, name):
                (self.layout.directory / f"{name}.json").unlink(missing_ok=True)
        self.start_program("etcd", self._etcd())
        self.start_program("kube-apiserver", self._api_server())

    def start_controllers(self) -> None:
        """Start what reads its rights from the API server at once, and ends when it has none yet."""
        self.start_program("kube-controller-manager", self._controller_manager())
        self.start_program("kube-scheduler", self._scheduler())

    def start_program(self, name: str, arguments: list[str], **environment: str) -> None:
        """Start one program of the lab's folder of programs with these arguments, unless it runs."""
        process.start_program(
            self.layout.directory,
            name,
            [str(self.layout.programs / name), *arguments],
            cgroup=self.layout.network.tag,
            environment={"HOME": str(self.layout.directory), **environment},
        )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once the API server answers ``/readyz`` with ``ok``.

        Raises:
            LabError: a process ended, or the time ran out; the last answer is in the message.
        """
        with self.layout.client() as client:

            def unmet() -> str | None:
                answer = client.get("/readyz")
                return None if answer == "ok" else f"/readyz says {answer!r}"

            self.wait("the API server", unmet, timeout_s)

    def wait(
        self, what: str, unmet: Callable[[], str | None], timeout_s: float, every_s: float = 0.1
    ) -> None:
        """Return once ``unmet`` returns ``None``; it says what is missing, or raises a LabError.

        Raises:
            LabError: a control process ended meanwhile, or the time ran out.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                seen = unmet()
            except LabError as error:
                seen = error.message
            if seen is None:
                return
            self.check()
            if time.monotonic() > deadline:
                raise LabError(
                    f"{what}: not ready within {timeout_s:.0f} s; last seen: {seen}",
                    fix=f"read the logs in {self.layout.directory}",
                )
            time.sleep(every_s)

    def check(self) -> None:
        """Raise a LabError for a control process that ended, with what it said last."""
        for name in NAMES:
            started = (self.layout.directory / f"{name}.json").exists()
            if started and not process.program_runs(self.layout.directory, name):
                log = self.layout.directory / f"{name}.log"
                # The lab's folder goes with an `up` that fails.
                kept = paths.cache_dir() / log.name
                shutil.copy(log, kept)
                raise LabError(
                    f"{name} ended: {tail(log.read_text(errors='replace'), 2)}", fix=f"read {kept}"
                )

    def down(self) -> list[str]:
        """End every process; the last started goes first."""
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
            # The data of a lab may be lost with the power of the controller; its disks may be slow.
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
            # Names of nodes are not resolved on the controller.
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
            # Thousands of virtual nodes join at once.
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
    """Make ``folder`` hold a program: a hard link, so that it stays when the cache is rebuilt, or a copy."""
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
