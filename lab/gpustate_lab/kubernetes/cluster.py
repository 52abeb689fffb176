"""The implementation of :class:`gpustate_lab.clusters.Cluster` for Kubernetes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpustate.errors import LabError
from gpustate_lab import paths, process, programs
from gpustate_lab.kubernetes import containers, controlplane, objects, virtual
from gpustate_lab.kubernetes.controlplane import ControlPlane
from gpustate_lab.kubernetes.layout import USERS, Layout
from gpustate_lab.kubernetes.machine import NFD_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpustate_lab.node import Node
    from gpustate_lab.record import Lab
    from gpustate_lab.spec import LabSpec

NODES_TIMEOUT_S = 120.0
#: Without the additional time for virtual nodes, see :meth:`Kubernetes._wait_virtual`.
VIRTUAL_TIMEOUT_S = 60.0
CNI_PLUGINS = "cni-plugins"
_KWOK, _NFD = "kwok", "nfd-master"


def modules(spec: LabSpec) -> tuple[str, ...]:
    """Return the modules of :mod:`gpustate_lab.programs` that a lab needs."""
    names = [f"kubernetes-{spec.kubernetes}", "etcd", "device-plugin", CNI_PLUGINS]
    names.append("nfd-image" if spec.pods else "nfd")
    return (*names, "kwok") if spec.virtual else tuple(names)


def prepare(spec: LabSpec, say: Callable[[str], None]) -> None:
    """Build the programs of a cluster and copy the data files of their modules."""
    for name in modules(spec):
        programs.provide(name, say)
    if not spec.pods:
        _data_files("nfd", say)
    if spec.virtual:
        _data_files("kwok", say)


class Kubernetes:
    """The Kubernetes cluster of a lab.

    Args:
        lab: the lab.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.layout = Layout(lab.directory, lab.name, lab.network)
        self.control_plane = ControlPlane(self.layout)

    def start(self, say: Callable[[str], None]) -> None:
        """Write the files that nodes need at boot, and start etcd and the API server."""
        spec, layout = self._lab.spec, self.layout
        for name in modules(spec):
            folder = layout.network_plugins if name == CNI_PLUGINS else layout.programs
            for program in programs.provide(name, say).values():
                controlplane.link_program(program, folder)
        layout.write_users()
        busybox = _file_of_image(self._lab, containers.BUSYBOX)
        containers.make_images(layout.images, busybox)
        if spec.pods:
            library = [_file_of_image(self._lab, name) for name in containers.C_LIBRARY]
            containers.make_pod_images(layout.images, layout.programs, busybox, library)
        self.control_plane.start()

    def up(self, say: Callable[[str], None]) -> None:
        """Wait for the API server, start the controllers, and wait until every node is Ready.

        Raises:
            LabError: a process ended, or a node does not become Ready.
        """
        spec = self._lab.spec
        self.control_plane.wait_ready()
        self.control_plane.start_controllers()
        with self.layout.client() as client:
            objects.create(client, None if spec.pods else _data_files("nfd", say)[0])
        if not spec.pods:
            self._start_nfd()
        if spec.virtual:
            self._start_virtual(say)
        for node in self._lab.nodes:
            self.wait_node(node)
        say(f"Kubernetes {spec.kubernetes}: {len(self._lab.nodes)} nodes Ready")
        if spec.virtual:
            self._wait_virtual()
            say(f"Kubernetes {spec.kubernetes}: {spec.virtual} virtual nodes Ready")
        say(f"kubeconfig {self.layout.user_file('admin')}; kubectl is in {self.layout.programs}")

    @property
    def running(self) -> bool:
        return self.control_plane.running and all(
            process.program_runs(self.layout.directory, name) for name in self._agents
        )

    def down(self) -> list[str]:
        ended = [
            f"process {name}"
            for name in self._agents
            if process.end_program(self.layout.directory, name)
        ]
        return ended + self.control_plane.down()

    def describe(self) -> dict[str, Any]:
        layout = self.layout
        return {
            "kubernetes": self._lab.spec.kubernetes,
            "kubeconfig": str(layout.user_file("admin")),
            "kubeconfigs": {user: str(layout.user_file(user)) for user in USERS},
            "programs": str(layout.programs),
            "audit_log": str(layout.audit_log),
            "virtual": self._lab.spec.virtual,
        }

    def wait_node(self, node: Node, timeout_s: float = NODES_TIMEOUT_S) -> None:
        """Wait until the kubelet reports Ready since the current boot of the node.

        Raises:
            LabError: it timed out; the message has the last condition.
        """

        def unmet() -> str | None:
            found = client.get(f"/api/v1/nodes/{node.name}")
            if found["status"]["nodeInfo"]["bootID"] != node.boot_id():
                return "the kubelet has not reported since the node booted"
            if virtual.is_ready(found):
                return None
            conditions = found["status"].get("conditions", [])
            return next(
                (one["message"] for one in conditions if one["type"] == "Ready"), "no condition"
            )

        subject = f"Kubernetes node {node.name}"
        try:
            with self.layout.client() as client:
                self.control_plane.wait(subject, unmet, timeout_s, every_s=0.2)
        except LabError as error:
            log = "journalctl -u kubelet -n 3 --no-pager -o cat"
            output = node.run(log, check=False).stdout if node.running else "the node is off"
            raise LabError(f"{error.message}; kubelet: {output.strip()}", fix=error.fix) from error

    # --- inner ---------------------------------------------------------------------------------

    @property
    def _agents(self) -> tuple[str, ...]:
        spec = self._lab.spec
        return (*(() if spec.pods else (_NFD,)), *((_KWOK,) if spec.virtual else ()))

    def _start_nfd(self) -> None:
        if process.program_runs(self.layout.directory, _NFD):
            return
        own = self.layout.write_system(_NFD, _NFD)
        self.control_plane.start_program(
            _NFD,
            # Metrics are on all addresses; nfd has no option for one.
            [f"-kubeconfig={own}", f"-port={_free_port()}"],
            # It looks up the Node that its pod would run on.
            NODE_NAME=self._lab.nodes[0].name,
            KUBERNETES_NAMESPACE=NFD_NAMESPACE,
        )

    def _start_virtual(self, say: Callable[[str], None]) -> None:
        own = self.layout.write_system(_KWOK, _KWOK)
        configuration = self.layout.directory / "kwok.yml"
        paths.write_text(configuration, virtual.configuration())
        files = [str(path) for path in (configuration, *_data_files("kwok", say))]
        arguments = virtual.arguments(str(own), files, self.layout.gateway)
        self.control_plane.start_program(_KWOK, arguments)
        with self.layout.client() as client:
            virtual.create(client, self._lab.spec.virtual)

    def _wait_virtual(self) -> None:
        wanted = self._lab.spec.virtual

        def unmet() -> str | None:
            ready = virtual.count_ready(client)
            return None if ready >= wanted else f"{ready} of {wanted} are Ready"

        timeout_s = VIRTUAL_TIMEOUT_S + wanted / 10
        with self.layout.client() as client:
            self.control_plane.wait("virtual nodes", unmet, timeout_s, every_s=1.0)


#: Patterns of data files, by module.
_DATA = {
    "nfd": ("deployment/base/nfd-crds/nfd-api-crds.yaml",),
    "kwok": tuple(f"kustomize/stage/{stage}/*.yaml" for stage in virtual.STAGES),
}


def _data_files(name: str, say: Callable[[str], None]) -> list[Path]:
    files = programs.data_files(name, _DATA[name], say)
    return [file for file in files if file.name != "kustomization.yaml"]


def _file_of_image(lab: Lab, name: str) -> Path:
    """Return a file of the first node's image, from any layer."""
    for layer in lab.nodes[0].layers:
        if (layer / name).exists():
            return layer / name
    raise LabError(
        f"image {lab.nodes[0].image} has no /{name}", fix="gpustate lab down, then gpustate lab up"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
