"""Slurm knows this node's GPUs: ``gres.conf`` names them, and ``slurm.conf`` is checked for what it needs.

Each GPU becomes one line: its device node, its type, the cores near it, its NVLinks to the others; a MIG
device becomes one line with its three device nodes. Without them Slurm hands out numbers and cannot keep
jobs to their GPUs (``ConstrainDevices``), nor near them.

Surprising: Slurm counts GPUs in PCI order, but the X of ``/dev/nvidiaX`` is the order in which the
driver met them (on a DGX A100 they differ); and ``Cores=`` are Slurm's own numbers of cores, not the
kernel's of CPUs. ``gres.conf`` may hold lines of others (another kind of resource): those stay byte
for byte, ours stand between two marks. ``slurm.conf`` belongs to the whole cluster: it is read with its
includes and never written; a plan has the lines that it lacks. With ``nodes`` a file of our own has them, for ``Include``.
Where slurmd gets its files from slurmctld ("configless"), it reads no local ``gres.conf``.
slurmd ends for good if a device node of ``gres.conf`` is not there within 19 s of its start, so a drop-in starts it
after the services that create them, and again when it ended.

Sources:
    Slurm, gres.conf(5) and slurm.conf(5) 22.05 and 26.05; "Generic Resource (GRES) Scheduling"; "Configless Slurm";
    "Prolog and Epilog Guide"; NVIDIA/dcgm-exporter, README (HPC jobs in metric labels).
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gpustate import Conflict, Disruption, Node, NodeFacts, Plan, State, Step, diff, ops
from gpustate.core.parameter_errors import pattern
from gpustate.core.parameter_types import (
    OptionalName,
    OptionalPath,
    PlainName,
    PlainPath,
    ServiceName,
)
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
#: Where a slurmd without files of its own has those that slurmctld sent.
_SENT = "/run/slurm/conf"
_HARDWARE = re.compile(
    r"\b(?:CPUs|Boards|SocketsPerBoard|CoresPerSocket|ThreadsPerCore|RealMemory)=\d+"
)
_NODES = pattern(
    r"^([A-Za-z0-9._-]+(\[[0-9,-]+\])?,?)*$", "names of nodes such as gpu[01-16], or an empty text"
)
_SETTING = pattern(r"^[^\s#\"]+$", "a word without spaces, quotation marks and #")
#: Of files that are not 0644; ``None``: as it was.
_MODES = {"gres_text": None, "prolog": 0o755, "epilog": 0o755}


@dataclass(frozen=True, slots=True)
class Observed:
    """The files, and what they should say."""

    gres_text: str | None
    node_text: str | None
    drop_in: str | None = None
    prolog: str | None = None
    epilog: str | None = None
    gres_file: str = (
        ""  # owner and mode of gres.conf, where gpustate has made it and they are not as written
    )
    lines: tuple[str, ...] = ()  # for gres.conf
    node_line: str = ""  # for slurm.conf
    include: str = ""  # for the file of our own that slurm.conf includes
    scripts: tuple[str, ...] = ()  # prolog and epilog
    needs: tuple[str, ...] = ()  # what slurm.conf lacks
    clash: str = ""  # in slurm.conf, with our file
    foreign: str = ""  # line of gres.conf that is not ours and describes GPUs
    sent: bool = False  # slurmd has its files from slurmctld
    host: str = ""
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
        nodes: names of the nodes with the same hardware, as ``gpu[01-16]``: that file then has ``GresTypes`` and their
            complete line, for ``Include gpustate-node.conf`` in ``slurm.conf``.
        node_settings: settings of that line, as ``{RealMemory: "1000000"}``, beside or instead of those that
            ``slurmd -C`` prints.
        job_mapping: folder in which a prolog and an epilog, in ``folder/prolog.d`` and ``epilog.d``, name the job
            of each GPU for dcgm-exporter; empty: none.
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
    computed: ClassVar[tuple[str, ...]] = ("gres_text", "node_text", "prolog")
    stable: ClassVar[tuple[str, ...] | None] = (
        *("gres_text", "node_text", "drop_in", "prolog", "epilog"),
        *("gres_file", "lines", "node_line"),
    )

    folder: PlainPath = "/etc/slurm"
    node_name: OptionalName = ""
    shards: Annotated[int, Field(ge=0, le=1024)] = 0
    features: tuple[PlainName, ...] = Field(default=(), strict=False)
    node_file: bool = True
    nodes: Annotated[str, _NODES] = ""
    node_settings: dict[PlainName, Annotated[str, _SETTING]] = Field(default_factory=dict)
    job_mapping: OptionalPath = ""
    unit: ServiceName = "slurmd.service"

    @property
    def gres_path(self) -> str:
        """``gres.conf``."""
        return f"{self.folder}/gres.conf"

    @property
    def own_paths(self) -> dict[str, str]:
        """Files that are wholly gpustate's, by their field; the order in which they are written."""
        return {
            "node_text": f"{self.folder}/gpustate-node.conf",
            "prolog": f"{self.folder}/prolog.d/gpustate-jobs.sh",
            "epilog": f"{self.folder}/epilog.d/gpustate-jobs.sh",
            "drop_in": f"/etc/systemd/system/{self.unit}.d/gpustate.conf",
        }

    def conflicts(
        self, policy: Mapping[str, Any], facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        exporter = policy.get("dcgm-exporter")
        if observed is not None or not self.job_mapping or self.absent:
            return
        if exporter and not exporter.absent and exporter.job_mapping != self.job_mapping:
            other = exporter.job_mapping or "not set"
            yield Conflict(
                f"job_mapping is {self.job_mapping}, and that of dcgm-exporter is {other}: write the same in both"
            )

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        own = {field: node.own_text(path) for field, path in self.own_paths.items()}
        gres, sent = node.read_text(self.gres_path), node.read_text(f"{_SENT}/slurm.conf")
        otherwise, kept = node.otherwise(self.gres_path), original_path(self.gres_path)
        known = node.stats(kept, f"{kept}.path")
        unit = node.units(self.unit).get(self.unit)
        result = slurm_gpus.desired_gres(
            node, name=self.node_name, shards=self.shards, features=self.features
        )
        folder = self.folder if sent is None else _SENT
        conf = slurm.read(f"{folder}/slurm.conf", node.read_text)
        described = gres if sent is None else node.read_text(f"{_SENT}/gres.conf")
        printed = node.shell("slurmd -C 2>/dev/null; :").stdout if self.nodes else ""
        included = f"{folder}/gpustate-node.conf"
        scripts = slurm_gpus.job_scripts(self.job_mapping, result.names)
        return Observed(
            gres_text=gres,
            **own,
            gres_file=otherwise if f"{kept}.path" in known and kept not in known else "",
            lines=result.lines,
            node_line=result.node_line,
            include=self._include(result, conf, included, printed),
            scripts=scripts if self.job_mapping else (),
            needs=(*self._needs(result, conf, included), *self._unrun(conf, node)),
            clash=self._clash(result.host, conf),
            foreign=slurm.foreign(described or "", result.host) or "",
            sent=sent is not None,
            host=result.host,
            gpus=result.gpus,
            slurmd=result.slurmd,
            active=unit is not None and unit.active,
            problem=result.problem,
            systemd=facts.systemd,
            image=facts.image,
            able=facts.image and first_boot.has_python(node),
        )

    def _include(
        self, result: slurm_gpus.DesiredGres, conf: slurm.SlurmConf, place: str, printed: str
    ) -> str:
        """Lines for all nodes like this one, where slurm.conf is to include them."""
        if not self.nodes or not result.lines:
            return ""
        hardware = dict(word.split("=") for word in _HARDWARE.findall(printed))
        if memory := hardware.get("RealMemory"):  # equal nodes differ by some MiB
            hardware["RealMemory"] = str(int(memory) // 1024 * 1024)
        settings = [f"{key}={value}" for key, value in {**hardware, **self.node_settings}.items()]
        line = slurm.node_line(self.nodes, result.gres, result.words)
        types = "" if conf.setting("grestypes", place) else f"GresTypes={','.join(self._types)}\n"
        return f"{types}{' '.join((line, *settings))}\n"

    @property
    def _types(self) -> tuple[str, ...]:
        return ("gpu", "shard") if self.shards else ("gpu",)

    def _replaced(self, row: slurm.Row) -> str:
        """The line that an Include takes the place of, with what only it has."""
        known = {"nodename", "gres", "feature", "features", *map(str.lower, self.node_settings)}
        other = " ".join(f"{key}={value}" for key, value in row.values.items() if key not in known)
        more = f", which also has {other}: repeat in node_settings what is to stay" if other else ""
        return f", instead of NodeName={row.values['nodename']} in {row.place}{more}"

    def _needs(
        self, result: slurm_gpus.DesiredGres, conf: slurm.SlurmConf, place: str
    ) -> Iterator[str]:
        """What slurm.conf lacks, with the line to write."""
        without, path = place if self.nodes else "", conf.files[0]
        if not result.lines:
            return
        if not conf.rows:
            yield f"slurm.conf of the cluster needs: GresTypes={','.join(self._types)} and {result.node_line}"
            return
        row = conf.setting("grestypes", without)
        types = row.values["grestypes"].split(",") if row else []
        if (row or not self.nodes) and not set(self._types) <= set(types):
            line = ",".join(dict.fromkeys((*types, *self._types)))
            yield f"{row.place if row else path} needs: GresTypes={line}"
        row = conf.node(result.host, without)
        gres = row.values.get("gres", "") if row else ""
        if self.nodes and place not in conf.files:
            instead = self._replaced(row) if row else ""
            yield f"{path} needs: Include {posixpath.basename(place)}{instead}"
        elif row is None and not self.nodes:
            yield f"{path} does not have this node; add, with what slurmd -C prints: {result.node_line}"
        elif row and not gres:
            yield f"{row.place} needs: Gres={result.gres}"
        elif row and not slurm.gres_fits(gres, result.gres):
            yield (
                f"{row.place} has Gres={gres}, and Slurm takes GPUs of that type and number only: write "
                f"Gres={result.gres} on all nodes, then: scontrol reconfigure"
            )

    def _unrun(self, conf: slurm.SlurmConf, node: Node) -> Iterator[str]:
        """Prolog and Epilog that slurmd does not run."""
        for key in ("Prolog", "Epilog") if self.job_mapping and conf.rows else ():
            path = self.own_paths[key.lower()]
            line = f"{key}={posixpath.dirname(path)}/*"
            row = conf.setting(key.lower())
            if row is None:
                yield f"{conf.files[0]} needs: {line}"
                continue
            program = posixpath.join(self.folder, row.values[key.lower()])
            if not fnmatch(path, program) and path not in (node.read_text(program) or ""):
                yield f"{row.place} has {key}={program}, which does not run {path}; call it there, or write {line}"

    def _clash(self, host: str, conf: slurm.SlurmConf) -> str:
        """Why our file cannot be as it should be while slurm.conf includes it."""
        place = self.own_paths["node_text"]
        if place not in conf.files:
            return ""
        if self.absent or not self.node_file:
            return f"{conf.files[0]} includes {place}, and Slurm needs it: remove that line first"
        row = conf.node(host, without=place) if self.nodes else None
        if row is None:
            return ""
        return f"{row.place} and {place} both have NodeName={host}, and slurmctld refuses that: remove the line in {row.place}"

    def desired(self, observed: Observed) -> Observed:
        if not self.absent and (
            observed.image or observed.problem is not None or not observed.slurmd
        ):
            return observed
        lines = () if self.absent else observed.lines
        before = observed.gres_text
        gres = slurm.place(before or "", [] if observed.sent else list(lines)) or None
        if before is not None and slurm.find_block(before) is None and (not lines or observed.sent):
            gres = before  # somebody's file without a line of ours, be it empty
        line = observed.node_line if lines and self.node_file else ""
        prolog, epilog = observed.scripts if lines and observed.scripts else (None, None)
        return replace(
            observed,
            gres_text=gres,
            node_text=slurm_gpus.node_text(line, observed.include) if line else None,
            drop_in=_DROP_IN if lines and observed.systemd else None,
            prolog=prolog,
            epilog=epilog,
            gres_file="" if gres is not None else observed.gres_file,
        )

    def refuse(self, observed: Observed) -> str | None:
        if observed.image:
            return None
        if self.absent:
            return observed.clash or None
        if not observed.slurmd:
            return None
        if observed.sent and not observed.foreign and observed.lines:
            return (
                f"slurmd gets its files from slurmctld, whose gres.conf does not have these GPUs, and reads no {self.gres_path}: "
                "add the lines that gpustate labels -o slurm prints to gres.conf on its host, then: scontrol reconfigure"
            )
        if observed.foreign and observed.lines and not observed.sent:
            return (
                f"{self.gres_path}: {observed.foreign} already describes GPUs; remove it, or remove this "
                "state from the policy"
            )
        return observed.clash or observed.problem

    def plan(self, observed: Observed) -> Plan:
        wanted = self.desired(observed)
        notes = () if self.absent else observed.needs
        if not observed.slurmd and not self.absent:
            notes = ("slurmd is not installed here: there is nothing to configure",)
        elif observed.include and observed.node_text != wanted.node_text:
            copy = f"copy {self.own_paths['node_text']} to the host of slurmctld, beside slurm.conf, then: scontrol reconfigure"
            notes = (*notes, copy)
        return diff(
            observed,
            wanted,
            costs={"gres_text": Disruption.RESTART if observed.active else Disruption.NONE},
            why={"gres_text": f"{self.unit} reads it when it starts"} if observed.active else None,
            paths={**self._paths, "gres_file": self.gres_path},
            notes=notes,
        )

    @property
    def _paths(self) -> dict[str, str]:
        return {**self.own_paths, "gres_text": self.gres_path}

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted = self.desired(observed)
        for field, path in self._paths.items():
            if field not in plan.fields:
                continue
            text: str | None = getattr(wanted, field)
            if text is not None:
                yield ops.PutText(path, text, mode=_MODES.get(field, 0o644))
            else:
                yield ops.RemoveFile(path)
            if self.absent:
                yield ops.ForgetOriginal(path)
            if field == "drop_in" and observed.systemd:
                yield ops.DaemonReload()
        if self.absent and self.job_mapping and "epilog" in plan.fields:
            files = f"{self.job_mapping}/[0-9]*"
            yield ops.Run(f"rm -f {files}\neffect removed", f"remove {files}", timeout=30)
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
            # The lines of several nodes need slurm.conf, which an apply reads.
            "node_file": self.node_file and not self.nodes,
            "job_mapping": self.job_mapping,
            "drop_in": _DROP_IN,
        }
        writes = {self.gres_path: f"put {shlex.quote(self.gres_path)} - -"} | {
            path: f"put {shlex.quote(path)} 0{_MODES.get(field, 0o644):o} own"
            for field, path in self.own_paths.items()
        }
        drop_in = self.own_paths["drop_in"]
        writes[drop_in] = f"{{ {writes[drop_in]}; systemctl daemon-reload; }}"
        label = f"write {self.gres_path}"
        yield first_boot.compute_files("slurm", json.dumps(options, sort_keys=True), writes, label)
