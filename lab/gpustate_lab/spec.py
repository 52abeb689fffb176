"""The specification of a lab, parsed from the command line. Pure.

Images, cgroup drivers and GPU sets are assigned in turn: with two images, four nodes get each image twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpustate.errors import LabError

#: The limit keeps host names, which contain the node's name too, short enough.
NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
FAULT = re.compile(r"(?P<name>[a-z][a-z0-9-]*)(:(?P<argument>[^@]+))?@(?P<node>[A-Za-z0-9-]+)")
NO_GPUS = "none"
#: Name of a lab if none is given.
DEFAULT_NAME = "lab"
DEFAULT_IMAGE = "ubuntu2404"
#: Cgroup drivers of containerd and kubelet. The first, kubeadm's, is the default.
CGROUP_DRIVERS = ("systemd", "cgroupfs")
#: NVIDIA's container toolkits. The first is in every lab's packages.
TOOLKITS = ("1.20.1", "1.18.2", "1.17.8")
#: A lab has a /24; the controller has its first address.
MAX_NODES = 200
MAX_VIRTUAL = 5000
#: The first is the default.
KUBERNETES_VERSIONS = ("1.36", "1.35", "1.34")
#: The machine that runs slurmctld, beside the nodes; its address is the one before the first node's.
SLURM_HEAD = "slurm"


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault of a node.

    Args:
        name: as listed in ``docs/lab.md``.
        node: name of the node.
        argument: GPU index or kernel version, for faults that have one.
    """

    name: str
    node: str
    argument: str | None = None

    @property
    def text(self) -> str:
        """``name`` or ``name:argument``, as the simulator reads it."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read ``NAME[:ARGUMENT]@NODE``."""
        match = FAULT.fullmatch(text)
        if match is None:
            raise LabError(
                f"fault {text!r} is not NAME[:ARGUMENT]@NODE",
                fix="for example: --fault nouveau@gpu1",
            )
        return cls(name=match["name"], node=match["node"], argument=match["argument"])


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of a lab.

    Args:
        name: in the inventory, also its host name.
        number: from 1; determines its address.
        image: name of its image.
        gpus: ``8xH100``, or ``none``.
        cgroups: the cgroup driver of containerd and kubelet.
        faults: ``name`` or ``name:argument``, active from the first boot.
        kubernetes: it joins the Kubernetes cluster.
        pods: NVIDIA's programs and node feature discovery do not run as units.
        slurm: it joins the Slurm cluster.
    """

    name: str
    number: int
    image: str
    gpus: str
    cgroups: str = CGROUP_DRIVERS[0]
    faults: tuple[str, ...] = ()
    kubernetes: bool = False
    pods: bool = False
    slurm: bool = False


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab.

    Args:
        name: at most 24 lower-case letters, digits and dashes; several labs can exist.
        nodes: number of nodes, 1 to 200, called ``gpu1``, ``gpu2`` and so on.
        images: assigned in turn.
        gpus: ``<count>x<model>`` or ``none``, assigned in turn.
        cgroups: cgroup drivers of containerd and kubelet, assigned in turn.
        faults: faults from the first boot.
        kubernetes: minor version of the cluster that the nodes join, ``1.36``; empty: no cluster.
        virtual: number of additional kwok nodes, 0 to 5000.
        pods: NVIDIA's programs and node feature discovery do not run; nodes have their images.
        slurm: the nodes join a Slurm cluster.
    """

    name: str = DEFAULT_NAME
    nodes: int = 2
    images: tuple[str, ...] = (DEFAULT_IMAGE,)
    gpus: tuple[str, ...] = ("8xH100",)
    cgroups: tuple[str, ...] = CGROUP_DRIVERS[:1]
    faults: tuple[Fault, ...] = ()
    kubernetes: str = ""
    virtual: int = 0
    pods: bool = False
    slurm: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.kubernetes and self.kubernetes not in KUBERNETES_VERSIONS:
            raise LabError(
                f"Kubernetes {self.kubernetes!r} is not supported",
                fix=f"choose one of {', '.join(KUBERNETES_VERSIONS)}",
            )
        if not 0 <= self.virtual <= MAX_VIRTUAL:
            raise LabError(
                f"invalid number of virtual nodes {self.virtual}; choose 0 to {MAX_VIRTUAL}"
            )
        if self.virtual and not self.kubernetes:
            raise LabError("--virtual requires a Kubernetes cluster", fix="add --kubernetes")
        if self.pods and not self.kubernetes:
            raise LabError("--pods requires a Kubernetes cluster", fix="add --kubernetes")
        if not 1 <= self.nodes <= MAX_NODES:
            raise LabError(f"invalid number of nodes {self.nodes}; choose 1 to {MAX_NODES}")
        if not self.images or not self.gpus or not self.cgroups:
            raise LabError(
                "a lab needs at least one image, one GPU set and one cgroup driver",
                fix="see gpustate lab up --help",
            )
        for driver in self.cgroups:
            if driver not in CGROUP_DRIVERS:
                raise LabError(
                    f"cgroup driver {driver!r} does not exist",
                    fix=f"choose one of {', '.join(CGROUP_DRIVERS)}",
                )
        names = self.node_names
        for fault in self.faults:
            if fault.node not in names:
                raise LabError(
                    f"fault {fault.text!r}: the lab has no node {fault.node!r}",
                    fix=f"choose one of {names[0]} to {names[-1]}",
                )

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"gpu{number}" for number in range(1, self.nodes + 1))

    def node_specs(self) -> tuple[NodeSpec, ...]:
        """Return the specification of each node."""
        return tuple(
            NodeSpec(
                name=name,
                number=index + 1,
                image=self.images[index % len(self.images)],
                gpus=self.gpus[index % len(self.gpus)],
                cgroups=self.cgroups[index % len(self.cgroups)],
                faults=tuple(fault.text for fault in self.faults if fault.node == name),
                kubernetes=bool(self.kubernetes),
                pods=self.pods,
                slurm=self.slurm,
            )
            for index, name in enumerate(self.node_names)
        )

    def head_spec(self) -> NodeSpec | None:
        """Return the specification of Slurm's head, with the first image and no GPUs; None without Slurm."""
        if not self.slurm:
            return None
        return NodeSpec(SLURM_HEAD, 0, self.images[0], NO_GPUS, slurm=True)

    @classmethod
    def parse(
        cls,
        *,
        nodes: int = 2,
        image: str = DEFAULT_IMAGE,
        gpus: str = "8xH100",
        cgroups: str = CGROUP_DRIVERS[0],
        faults: Sequence[str] = (),
        name: str = DEFAULT_NAME,
        kubernetes: str = "",
        virtual: int = 0,
        pods: bool = False,
        slurm: bool = False,
    ) -> LabSpec:
        """Parse options of the command line; lists are separated by commas."""
        return cls(
            name=name,
            nodes=nodes,
            images=_split(image),
            gpus=_split(gpus),
            cgroups=_split(cgroups),
            faults=tuple(Fault.parse(text) for text in faults),
            kubernetes=kubernetes,
            virtual=virtual,
            pods=pods,
            slurm=slurm,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LabSpec:
        """Parse the result of :meth:`to_json`."""
        return cls(
            name=data["name"],
            nodes=data["nodes"],
            images=tuple(data["images"]),
            gpus=tuple(data["gpus"]),
            faults=tuple(Fault(**fault) for fault in data["faults"]),
            # Older records lack these.
            cgroups=tuple(data.get("cgroups", CGROUP_DRIVERS[1:])),
            kubernetes=data.get("kubernetes", ""),
            virtual=data.get("virtual", 0),
            pods=data.get("pods", False),
            slurm=data.get("slurm", False),
        )


def check_name(name: str) -> str:
    """Return ``name`` if it is valid in paths and kernel names."""
    if NAME.fullmatch(name) is None:
        raise LabError(
            f"invalid lab name {name!r}",
            fix="start with a lower-case letter, then up to 23 lower-case letters, digits or dashes",
        )
    return name


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
