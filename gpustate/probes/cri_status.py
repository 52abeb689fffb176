"""What a running container runtime says of itself over CRI: the sh that asks, the reader, and the judgement.

A runtime's files and its own reading of them (``config dump``) say nothing about the process: a containerd whose
CRI plugin did not load is active, and its dump looks well. So the process is asked, as a kubelet asks it.

``CRI_ROWS`` names the programs of :mod:`gpustate.nodeside` on the node. Without Python there,
containerd's own client says whether its CRI plugin is loaded.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    kubelet.config.k8s.io, cgroupDriver; KEP-4033: from containerd 2.0 and CRI-O 1.28 on a kubelet takes the
    runtime's word on the cgroup driver (Kubernetes 1.34; by default from 1.31).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpustate import shell

#: Defines ``cri_says SOCKET``: prints the rows of :mod:`gpustate.nodeside.cri_rows`, with ``cri_socket`` first.
FUNCTION = shell.load("cri_says", "gpustate.probes")

#: Where the containerd of a Kubernetes distribution answers, and whose it is.
BUNDLED = {
    "/run/k3s/containerd/containerd.sock": "k3s",  # RKE2's too
    "/run/k0s/containerd.sock": "k0s",
    "/var/snap/microk8s/common/run/containerd.sock": "microk8s",
}
#: Prints the rows of ``cri_says`` of the kubelet's own containerd, each with ``bundled_`` ahead. Expects ``KUBELET``.
BUNDLED_SAYS = shell.fill(shell.load("bundled_says", "gpustate.probes"), SOCKETS=" ".join(BUNDLED))

#: Prints ``kubelet=1``, ``kubelet_endpoint=SOCKET`` and ``kubelet_cgroup=DRIVER|WHERE`` of a kubelet.
KUBELET = shell.load("agents", "gpustate.shell") + shell.load("kubelet_cgroup", "gpustate.probes")


@dataclass(frozen=True)
class CriHandler:
    """A handler of the running process; of CRI-O only the name is known."""

    name: str
    kind: str = ""  # io.containerd.runc.v2
    binary: str = ""
    systemd: bool = False
    exists: bool = True  # its program does

    @property
    def driver(self) -> str:
        """Its cgroup driver; empty where it is not a runc, or nothing is known of it."""
        if not self.kind.startswith("io.containerd.runc."):
            return ""
        return "systemd" if self.systemd else "cgroupfs"


@dataclass(frozen=True)
class CriStatus:
    """What a runtime answered.

    Args:
        socket: where it was asked.
        outcome: ``ok``, ``unserved`` (it runs without CRI), ``silent``; empty where nobody could ask.
        why: of the last two.
        name, version: as in ``containerd`` and ``v1.7.24``.
        driver: the cgroup driver that it tells a kubelet; empty where it tells none.
        default: the handler of pods that name none; empty where it does not say.
        cdi: it injects CDI devices into pods; ``None`` where it does not say.
        cdi_folders: where it looks for CDI specifications.
        not_ready: why it says that it is not ready; empty where it is.
        handlers: those of the running process; empty where it lists none.
        kubelet, kubelet_from: the cgroup driver of the kubelet that runs here, and where that stands.
    """

    socket: str = ""
    outcome: str = ""
    why: str = ""
    name: str = ""
    version: str = ""
    driver: str = ""
    default: str = ""
    cdi: bool | None = None
    cdi_folders: tuple[str, ...] = ()
    not_ready: str = ""
    handlers: tuple[CriHandler, ...] = ()
    kubelet: str = ""
    kubelet_from: str = ""

    def handler(self, name: str) -> CriHandler | None:
        """A handler by name."""
        return next((h for h in self.handlers if h.name == name), None)

    def dead(self, runtime: str) -> str:
        """Why no pod can start with it at all, in one line; empty where one can, or nobody knows."""
        if self.outcome == "unserved":
            return f"{runtime} runs without its CRI service, so that no pod can start: {self.why}"
        if self.outcome == "silent":
            return f"{runtime} runs and does not answer: {self.why}"
        if self.not_ready:
            return f"{runtime} says that it is not ready: {self.not_ready}"
        return ""

    def missing_handler(self, handler: str) -> str:
        """That the running process does not have a handler, in one line; empty where it has, or does not say."""
        if not self.handlers or self.handler(handler) is not None:
            return ""
        return f"no {handler}; it has {', '.join(known_handler.name for known_handler in self.handlers)}"

    def cgroup_drivers(self, handler: str) -> str:
        """How the cgroup drivers of kubelet and runtimes differ, in one line; empty where they agree.

        Pods run with the default handler and with ours: these and the kubelet have to agree.
        """
        drivers_by_owner: dict[str, str] = {}
        for name in dict.fromkeys((self.default, handler)):
            cri_handler = self.handler(name) if name else None
            if cri_handler is not None and cri_handler.driver:
                drivers_by_owner[f"handler {name}"] = cri_handler.driver
        # With it, a kubelet takes the runtime's word.
        if self.kubelet and not self.driver:
            drivers_by_owner[f"kubelet ({self.kubelet_from})"] = self.kubelet
        if len(set(drivers_by_owner.values())) < 2:
            return ""
        return ", ".join(f"{owner}: {driver}" for owner, driver in drivers_by_owner.items())


def read(keys: Mapping[str, Sequence[str]]) -> CriStatus | None:
    """Read rows by key; ``None`` where nobody was asked.

    Args:
        keys: what stands behind ``cri=`` and the other keys, row by row.
    """
    if not keys.get("cri_socket"):
        return None
    socket = keys["cri_socket"][0]
    kubelet, _, where = (keys.get("kubelet_cgroup") or ("",))[0].partition("|")
    outcome, _, details = (keys.get("cri") or ("",))[0].partition("|")
    if outcome != "ok":
        return CriStatus(socket, outcome, details, kubelet=kubelet, kubelet_from=where)
    name, version, driver, default, cdi, folders = (*details.split("|"), *[""] * 6)[:6]
    broken = [
        row.partition("|")[2]
        for row in keys.get("cri_false", ())
        if row.startswith("RuntimeReady|")
    ]
    handlers = [row.split("|") for row in keys.get("cri_handler", ())]
    return CriStatus(
        socket=socket,
        outcome=outcome,
        name=name,
        version=version,
        driver=driver,
        default=default,
        cdi={"0": False, "1": True}.get(cdi),
        cdi_folders=tuple(folders.split()),
        not_ready=(broken[0] or "RuntimeReady is false") if broken else "",
        handlers=tuple(
            CriHandler(row[0], row[1], row[2], row[3] == "1", row[4:] != ["0"])
            for row in handlers
            if len(row) in (4, 5)
        ),
        kubelet=kubelet,
        kubelet_from=where,
    )
