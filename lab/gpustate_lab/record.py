"""A lab, and its record on disk.

The record has all information that cannot be recovered otherwise: specification, subnet, kernel names and the
image layers in use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from gpustate.errors import LabError
from gpustate_lab import access, paths
from gpustate_lab.network import Network
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec, NodeSpec

RECORD_FORMAT = "gpustate.lab-record/1"
REPOSITORY_PORT = 8080


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab, running or not.

    Args:
        spec: its specification.
        directory: of all its files.
        network: addresses and kernel names.
        nodes: by number.
        complete: ``up`` has succeeded once.
        head: the machine with slurmctld, in a lab with Slurm.
    """

    spec: LabSpec
    directory: Path
    network: Network
    nodes: tuple[Node, ...]
    complete: bool
    head: Node | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def inventory(self) -> Path:
        return self.directory / "inventory.yml"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def private_key(self) -> Path:
        return self.directory / "id_ed25519"

    @property
    def repository_url(self) -> str:
        return f"http://{self.network.gateway}:{REPOSITORY_PORT}"

    @property
    def repository_key(self) -> Path:
        """The public key of the lab's packages."""
        return self.directory / access.KEY_NAME

    @property
    def running(self) -> bool:
        return self.complete and all(machine.running for machine in self.machines)

    @property
    def machines(self) -> tuple[Node, ...]:
        """All machines: Slurm's head, if any, and the nodes."""
        return self.nodes if self.head is None else (self.head, *self.nodes)

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise LabError(f"lab {self.name} has no node {name!r}", fix=f"choose one of {names}")

    def to_json(self) -> dict[str, Any]:
        """Return the lab's entry in :func:`gpustate_lab.api.document`."""
        return {
            "name": self.name,
            "inventory": str(self.inventory),
            "running": self.running,
            "repository": self.repository_url,
            "simulated": True,
            "nodes": [
                {
                    "name": node.name,
                    "address": node.address,
                    "image": node.image,
                    "gpus": node.gpus,
                    "faults": list(node.faults),
                    "running": node.running,
                }
                for node in self.nodes
            ],
        }


def write_record(lab: Lab, *, complete: bool) -> Path:
    record = {
        "format": RECORD_FORMAT,
        "spec": lab.spec.to_json(),
        "subnet": str(lab.network.subnet),
        "tag": lab.network.tag,
        "complete": complete,
        "layers": {node.name: [str(layer) for layer in node.layers] for node in lab.machines},
        "sources": {node.name: dict(node.sources) for node in lab.machines},
    }
    path = lab.directory / "lab.json"
    paths.write_text(path, json.dumps(record, indent=2) + "\n")
    return path


def load(path: Path) -> Lab:
    try:
        record = json.loads(path.read_text())
        if record["format"] != RECORD_FORMAT:
            raise LabError(
                f"format is {record['format']!r}, not {RECORD_FORMAT!r}", place=str(path)
            )
        spec = LabSpec.from_json(record["spec"])
        net = Network(tag=record["tag"], subnet=IPv4Network(record["subnet"]))

        def machine(node: NodeSpec) -> Node:
            return Node(
                lab_directory=path.parent,
                network=net,
                spec=node,
                layers=tuple(map(Path, record["layers"][node.name])),
                sources=tuple(record["sources"][node.name].items()),
            )

        nodes = tuple(map(machine, spec.node_specs()))
        head_spec = spec.head_spec()
        head = None if head_spec is None else machine(head_spec)
        return Lab(spec, path.parent, net, nodes, complete=bool(record["complete"]), head=head)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"not a valid lab record ({error!r})", place=str(path)) from error
