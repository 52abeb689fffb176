"""Slurm knows this node's GPUs: ``gres.conf`` names them, and what ``slurm.conf`` needs is written down.

Each GPU becomes one line: its device node, its type, the cores near it, its NVLinks to the others; a MIG
device becomes one line with its three device nodes. Without them Slurm hands out numbers and cannot keep
jobs to their GPUs (``ConstrainDevices``), nor near them.

Surprising: Slurm counts GPUs in PCI order, but the X of ``/dev/nvidiaX`` is the order in which the
driver met them (on a DGX A100 they differ); and ``Cores=`` are Slurm's own numbers of cores, not the
kernel's of CPUs. ``gres.conf`` may hold lines of others (another kind of resource): those stay byte
for byte, ours stand between two marks. ``Gres=`` and ``Feature=`` of ``slurm.conf`` belong to the whole
cluster, so this state writes the node's line into a file of its own and leaves ``slurm.conf`` alone.
slurmd ends for good if a device node of ``gres.conf`` is not there within 19 s of its start, so a drop-in starts it
after the services that create them, and again when it ended.

Sources:
    Slurm, gres.conf(5) and slurm.conf(5) 22.05 and 25.11; "Generic Resource (GRES) Scheduling".
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.core.parameter_types import OptionalName, PlainName, PlainPath, ServiceName
from gpustate.formats import slurm
from gpustate.ops import first_boot
from gpustate.ops.library import original_path
from gpustate.probes import slurm_gpus

_DROP_IN = """\
# Written by gpustate. slurmd ends if a GPU of gres.conf has no device node yet.
[Unit]
After=nvidia-persistenced.service nvidia-fabricmanager.service
StartLimitIntervalSec=0

[Service]
Restart=on-failure
RestartSec=10
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The two files, and what they should say."""

    gres_text: str | None
    node_text: str | None
    drop_in: str | None = None
    gres_file: str = (
        ""  # owner and mode of gres.conf, where gpustate has made it and they are not as written
    )
    lines: tuple[str, ...] = ()  # for gres.conf
    node_line: str = ""  # for slurm.conf
    host: str = ""
    other_gres: str = ""  # of slurm.conf, with none of these types of GPUs
    gpus: bool = False  # here and now
    slurmd: bool = False  # it is installed
    active: bool = False
    systemd: bool = True
    problem: str | None = None
    image: bool = False
    able: bool = False  # an image's Python can describe the GPUs at the first boot


class SlurmGresConfigured(State[Observed]):
    """``gres.conf`` describes this node's GPUs, and slurmd has read it.

    Args:
        folder: where ``slurm.conf`` and ``gres.conf`` are.
        node_name: the node's name in Slurm; empty: its host name.
        shards: jobs that may share one GPU (``gres/shard``); 0: they may not.
        features: further words for ``Feature=``.
        node_file: also write the node's ``NodeName=`` line to ``folder/gpustate-node.conf``.
        unit: the service of slurmd.

    Disruption:
        ``RESTART`` where slurmd runs: it reads ``gres.conf`` at its start; jobs go on.
    """

    name: ClassVar[str] = "slurm-gres"
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    #: The feature ``nvlink_fabric`` is there once Fabric Manager has configured the fabric.
    known_after: ClassVar[tuple[str, ...]] = ("driver", "fabric-manager", "mig", "quarantine")
    left_to_apply: ClassVar[bool] = True
    worst: ClassVar[Disruption] = Disruption.RESTART
    disturbs: ClassVar[str] = "active"
    worst_if: ClassVar[str] = "the GPUs in gres.conf change"
    computed: ClassVar[tuple[str, ...]] = ("gres_text", "node_text")
    stable: ClassVar[tuple[str, ...] | None] = (
        *("gres_text", "node_text", "drop_in", "gres_file", "lines", "node_line"),
    )

    folder: PlainPath = "/etc/slurm"
    node_name: OptionalName = ""
    shards: Annotated[int, Field(ge=0, le=1024)] = 0
    features: tuple[PlainName, ...] = Field(default=(), strict=False)
    node_file: bool = True
    unit: ServiceName = "slurmd.service"

    @property
    def gres_path(self) -> str:
        """``gres.conf``."""
        return f"{self.folder}/gres.conf"

    @property
    def node_path(self) -> str:
        """The file with the node's line."""
        return f"{self.folder}/gpustate-node.conf"

    @property
    def drop_in_path(self) -> str:
        """The drop-in of slurmd's unit."""
        return f"/etc/systemd/system/{self.unit}.d/gpustate.conf"

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        gres, node_text = node.read_text(self.gres_path), node.own_text(self.node_path)
        drop_in = node.own_text(self.drop_in_path)
        config = node.read_text(f"{self.folder}/slurm.conf") or ""
        otherwise, kept = node.otherwise(self.gres_path), original_path(self.gres_path)
        known = node.stats(kept, f"{kept}.path")
        unit = node.units(self.unit).get(self.unit)
        result = slurm_gpus.desired_gres(
            node, name=self.node_name, shards=self.shards, features=self.features
        )
        configured, right = (slurm.gres_of(one, result.host) for one in (config, result.node_line))
        types = slurm.gpu_types(configured)
        differ = types and not types & slurm.gpu_types(right)
        return Observed(
            gres_text=gres,
            node_text=node_text,
            drop_in=drop_in,
            gres_file=otherwise if f"{kept}.path" in known and kept not in known else "",
            lines=result.lines,
            node_line=result.node_line,
            host=result.host,
            other_gres=configured if differ and right else "",
            gpus=result.gpus,
            slurmd=result.slurmd,
            active=unit is not None and unit.active,
            problem=result.problem,
            systemd=facts.systemd,
            image=facts.image,
            able=facts.image and first_boot.has_python(node),
        )

    def desired(self, observed: Observed) -> Observed:
        if not self.absent and (
            observed.image or observed.problem is not None or not observed.slurmd
        ):
            return observed
        lines = [] if self.absent else list(observed.lines)
        gres = slurm.place(observed.gres_text or "", lines) or None
        line = "" if self.absent or not self.node_file else observed.node_line
        node_text = slurm_gpus.node_text(line) if line else None
        if (
            observed.gres_text is not None
            and slurm.find_block(observed.gres_text) is None
            and not lines
        ):
            gres = observed.gres_text  # somebody's file without a line of ours, be it empty
        otherwise = "" if gres is not None else observed.gres_file
        return replace(
            observed,
            gres_text=gres,
            node_text=node_text,
            drop_in=_DROP_IN if lines and observed.systemd else None,
            gres_file=otherwise,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or observed.image:
            return None
        if not observed.slurmd:
            return None
        other = slurm.foreign(observed.gres_text or "", observed.host)
        if other is not None and observed.lines:
            return (
                f"{self.gres_path}: {other} already describes GPUs; remove it, or remove this "
                "state from the policy"
            )
        return observed.problem or None

    def plan(self, observed: Observed) -> Plan:
        wanted = self.desired(observed)
        notes: tuple[str, ...] = ()
        if not observed.slurmd and not self.absent:
            notes = ("slurmd is not installed here: there is nothing to configure",)
        if observed.gres_text != wanted.gres_text and observed.lines and not self.absent:
            notes = (f"slurm.conf of the cluster needs: {observed.node_line}",)
        elif observed.other_gres and not self.absent:
            right = slurm.gres_of(observed.node_line, observed.host)
            notes = (
                f"slurm.conf has Gres={observed.other_gres}, and Slurm ignores GPUs of another type: write Gres={right} on "
                "all nodes, then: scontrol reconfigure",
            )
        return diff(
            observed,
            wanted,
            costs={"gres_text": Disruption.RESTART if observed.active else Disruption.NONE},
            why={"gres_text": f"{self.unit} reads it when it starts"} if observed.active else None,
            paths={
                "gres_text": self.gres_path,
                "node_text": self.node_path,
                "drop_in": self.drop_in_path,
                "gres_file": self.gres_path,
            },
            notes=notes,
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted = self.desired(observed)
        files = {
            "drop_in": self.drop_in_path,
            "node_text": self.node_path,
            "gres_text": self.gres_path,
        }
        for field, path in files.items():
            if field not in plan.fields:
                continue
            text: str | None = getattr(wanted, field)
            if text is not None:
                yield ops.PutText(path, text, mode=None if field == "gres_text" else 0o644)
            else:
                yield ops.RemoveFile(path)
            if self.absent:
                yield ops.ForgetOriginal(path)
            if field == "drop_in" and observed.systemd:
                yield ops.DaemonReload()
        if "gres_file" in plan.fields and wanted.gres_text is not None:
            yield ops.PutText(self.gres_path, wanted.gres_text, mode=0o644)
        if "gres_text" in plan.fields and observed.active:
            yield ops.RestartUnit(self.unit, roll_back=(self.gres_path,))

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """The machine describes its GPUs itself, where the image has slurmd and a Python that can."""
        if self.absent or not (observed.slurmd and observed.able):
            return
        options = {
            "name": self.node_name,
            "shards": self.shards,
            "features": self.features,
            "gres_path": self.gres_path,
            "node_file": self.node_file,
            "drop_in": _DROP_IN,
        }
        writes = {
            self.gres_path: f"put {shlex.quote(self.gres_path)} - -",
            self.node_path: f"put {shlex.quote(self.node_path)} 0644 own",
            self.drop_in_path: f"{{ put {shlex.quote(self.drop_in_path)} 0644 own; systemctl daemon-reload; }}",
        }
        label = f"write {self.gres_path}"
        yield first_boot.compute_files("slurm", json.dumps(options, sort_keys=True), writes, label)
