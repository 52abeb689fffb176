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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Annotated, ClassVar

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
from gpustate.documents import JsonView
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
#: Where a slurmd without files of its own has those that slurmctld sent, and what says that it will.
_SENT = "/run/slurm/conf"
_CONFIGLESS = f"{slurm_gpus.CONFIGLESS}configless $UNIT && echo configless; :"
_HARDWARE = re.compile(
    r"\b(?:CPUs|Boards|SocketsPerBoard|CoresPerSocket|ThreadsPerCore|RealMemory)=\d+"
)
_NODES = pattern(
    r"^([A-Za-z0-9._-]+(\[[0-9,-]+\])?,?)*$", "names of nodes such as gpu[01-16], or an empty text"
)
_SETTING = pattern(r"^[^\s#\"]+$", "a word without spaces, quotation marks and #")
#: Settings of a line that follow from the GPUs, and those with a value for each of its nodes.
_GPU_KEYS, _EACH = (
    {"nodename", "gres", "feature", "features"},
    {"nodeaddr", "nodehostname", "bcastaddr", "port"},
)
#: Of files that are not 0644; ``None``: as it was.
_MODES = {"gres_text": None, "prolog": 0o755, "epilog": 0o755}


def _placed(text: str) -> str:
    """A file that slurmctld has sent is to be changed where it is from."""
    return text.replace(f"{_SENT}/", "slurmctld's ")


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
    scripts: tuple[str, str] | None = None  # prolog and epilog
    needs: tuple[str, ...] = ()  # what slurm.conf lacks
    clash: str = ""  # in slurm.conf, with our file
    foreign: str = ""  # line of gres.conf that is not ours and describes GPUs
    sent: bool = False  # slurmd gets its files from slurmctld
    host: str = ""
    gpus: bool = False  # here and now
    slurmd: bool = False  # it is installed
    active: bool = False
    failed: bool = False  # slurmd ended with an error
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
            lines of ``slurm.conf`` with these GPUs, for ``Include gpustate-node.conf`` instead of them.
        node_settings: settings of these lines, as ``{RealMemory: "1000000"}``, beside or instead of those that they
            have, or that ``slurmd -C`` prints of nodes without one.
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
        self, policy: JsonView, facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        exporter = policy.get("dcgm-exporter") if self.job_mapping else None
        if observed is not None or self.absent:
            return
        for key, value in self.node_settings.items():
            count = len(slurm.hosts(value))
            if key.lower() in _EACH and count not in (1, len(self._names)):
                yield Conflict(
                    f"{key}={value} of node_settings is not as long as nodes={self.nodes}"
                )
        if exporter and not exporter.absent and exporter.job_mapping != self.job_mapping:
            mapping = exporter.job_mapping or "not set"
            yield Conflict(
                f"job_mapping is {self.job_mapping}, and that of dcgm-exporter is {mapping}: write the same in both"
            )

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        texts = {field: node.own_text(path) for field, path in self.own_paths.items()}
        gres, local = node.read_text(self.gres_path), node.read_text(f"{self.folder}/slurm.conf")
        cached = node.read_text(f"{_SENT}/slurm.conf")
        configless = node.shell(_CONFIGLESS.replace("$UNIT", shlex.quote(self.unit))).stdout
        # Without the option slurmd looks for its own file first, and 22.05 leaves old ones that were sent.
        sent = "configless" in configless or (cached is not None and local is None)
        otherwise, original = node.otherwise(self.gres_path), original_path(self.gres_path)
        stats = node.stats(original, f"{original}.path")
        unit = node.units(self.unit).get(self.unit)
        result = slurm_gpus.desired_gres(
            node, name=self.node_name, shards=self.shards, features=self.features
        )
        folder = _SENT if sent else self.folder
        conf = slurm.read(f"{folder}/slurm.conf", node.read_text)
        described = (node.read_text(f"{_SENT}/gres.conf") if sent else gres) or ""
        printed = node.shell("slurmd -C 2>/dev/null; :").stdout if self.nodes else ""
        place = f"{folder}/gpustate-node.conf"
        before = conf.nodes(self._names, place)
        rows = before or slurm.replaced(place, node.read_text(place) or "").nodes(self._names)
        scripts = slurm_gpus.job_scripts(self.job_mapping, result.names)
        return Observed(
            gres_text=gres,
            **texts,
            gres_file=otherwise if f"{original}.path" in stats and original not in stats else "",
            lines=result.lines,
            node_line=result.node_line,
            include=self._include(
                result, rows, printed, types=not conf.setting("grestypes", place)
            ),
            scripts=scripts if self.job_mapping else None,
            needs=tuple(
                map(_placed, (*self._needs(result, conf, place), *self._unrun(conf, node)))
            ),
            clash=_placed(next(self._clashes(conf, place, before, rows), ""))
            or self._undescribed(result, described if sent and conf.rows else None),
            foreign=slurm.foreign(described, result.host) or "",
            sent=sent,
            host=result.host,
            gpus=result.gpus,
            slurmd=result.slurmd,
            active=unit is not None and unit.active,
            failed=unit is not None and unit.active_state == "failed",
            problem=result.problem,
            systemd=facts.systemd,
            image=facts.image,
            able=facts.image and first_boot.has_python(node),
        )

    def _include(
        self,
        result: slurm_gpus.DesiredGres,
        rows: Sequence[slurm.Row],
        printed: str,
        *,
        types: bool,
    ) -> str:
        """Lines for all nodes like this one, where slurm.conf is to include them; ``rows``: those that they replace."""
        if not self.nodes or not result.lines:
            return ""
        text = f"GresTypes={','.join(self._types)}\n" if types else ""
        for row in rows:
            text += slurm.instead(row) + self._line(row, result)
        listed = {name for row in rows for name in slurm.hosts(row.values["nodename"])}
        if missing := ",".join(name for name in self._names if name not in listed):
            # Equal nodes differ by some MiB.
            printed = re.sub(
                r"(?<=RealMemory=)\d+", lambda mib: f"{int(mib[0]) // 1024 * 1024}", printed
            )
            words = (f"NodeName={missing if rows else self.nodes}", *_HARDWARE.findall(printed))
            row = slurm.Row("", {word.partition("=")[0].lower(): word for word in words})
            text += self._line(row, result)
        return text

    def _line(self, row: slurm.Row, result: slurm_gpus.DesiredGres) -> str:
        """What a line says, with the right GPUs, their features and ``node_settings``."""
        nodes = row.values["nodename"]
        gres = slurm.with_gpus(row.values.get("gres", ""), result.gres)
        configured = row.values.get("feature", row.values.get("features", ""))
        words = slurm.with_features(configured, result.words)
        settings = {key: word for key, word in row.written.items() if key not in _GPU_KEYS}
        for key, value in self.node_settings.items():
            values = slurm.hosts(value)
            if key.lower() in _EACH and len(values) == len(self._names):
                each = dict(zip(self._names, values, strict=True))
                value = ",".join(each.get(name, "") for name in slurm.hosts(nodes))
            settings[key.lower()] = f"{key}={value}"
        return " ".join((slurm.node_line(nodes, gres, words), *settings.values())) + "\n"

    @property
    def _names(self) -> list[str]:
        return slurm.hosts(self.nodes)

    @property
    def _types(self) -> tuple[str, ...]:
        return ("gpu", "shard") if self.shards else ("gpu",)

    def _needs(
        self, result: slurm_gpus.DesiredGres, conf: slurm.SlurmConf, place: str
    ) -> Iterator[str]:
        """What slurm.conf lacks, with the line to write."""
        without, path = place if self.nodes else "", conf.files[0]
        if not result.lines:
            return
        if not conf.rows and place.startswith(_SENT):
            yield f"slurmd gets its files from slurmctld, and has none yet: start {self.unit}, then run again"
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
            rows = conf.nodes(self._names, place)
            more = f" and {len(rows) - 1} more lines up to {rows[-1].place}" if rows[1:] else ""
            instead = [
                f", instead of NodeName={r.values['nodename']} in {r.place}{more}" for r in rows
            ]
            yield f"{path} needs: Include {posixpath.basename(place)}{''.join(instead[:1])}"
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

    def _clashes(
        self,
        conf: slurm.SlurmConf,
        place: str,
        before: Sequence[slurm.Row],
        rows: Sequence[slurm.Row],
    ) -> Iterator[str]:
        """Why our file cannot be as it should be with what slurm.conf has."""
        path = self.own_paths["node_text"]
        if self.absent or not self.node_file:
            if path in conf.files:
                yield f"{conf.files[0]} includes {path}, and Slurm needs it: remove that line first"
            return
        for row in before if place in conf.files else ():
            name = row.values["nodename"]
            yield f"{row.place} and {place} both have NodeName={name}, and slurmctld refuses that: remove the line in {row.place}"
        for row in rows:
            name = row.values["nodename"]
            if not {*slurm.hosts(name)} <= {*self._names}:
                yield f"{row.place} has NodeName={name}, and nodes={self.nodes} has only some of these: divide that line"

    def _undescribed(self, result: slurm_gpus.DesiredGres, sent: str | None) -> str:
        """Why slurmd does not know the GPUs, by the ``gres.conf`` that slurmctld has sent."""
        if sent is None or not result.lines or self.absent:
            return ""
        files = slurm.device_files("\n".join(result.lines), result.host)
        if slurm.device_files(sent, result.host) in (None, files):
            return ""
        return (
            f"slurmd gets its files from slurmctld, whose gres.conf does not have this node's GPUs, and reads no {self.gres_path}: "
            "add the lines that gpustate node labels -o slurm prints to gres.conf on its host, then: scontrol reconfigure"
        )

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
        # slurmd reads no local file then; that for Include is there to be copied.
        unread = observed.sent and not self.nodes
        line = observed.node_line if lines and self.node_file and not unread else ""
        prolog, epilog = (lines and observed.scripts) or (None, None)
        return replace(
            observed,
            gres_text=gres,
            node_text=slurm_gpus.node_text(line, observed.include) if line else None,
            drop_in=_DROP_IN if lines and observed.systemd else None,
            prolog=prolog,
            epilog=epilog,
            gres_file="" if gres is not None else observed.gres_file,
            active=observed.active or bool(lines and observed.failed),
        )

    def refuse(self, observed: Observed) -> str | None:
        if observed.image:
            return None
        if self.absent:
            return observed.clash or None
        if not observed.slurmd:
            return None
        if observed.foreign and observed.lines and not observed.sent:
            return (
                f"{self.gres_path}: {observed.foreign} already describes GPUs; remove it, or remove this "
                "state from the policy"
            )
        return observed.clash or observed.problem

    def plan(self, observed: Observed) -> Plan:
        desired = self.desired(observed)
        notes = () if self.absent else observed.needs
        if not observed.slurmd and not self.absent:
            notes = ("slurmd is not installed here: there is nothing to configure",)
        elif observed.include and observed.node_text != desired.node_text:
            copy = f"copy {self.own_paths['node_text']} to the host of slurmctld, beside slurm.conf, then: scontrol reconfigure"
            notes = (*notes, copy)
        return diff(
            observed,
            desired,
            costs={"gres_text": Disruption.RESTART if observed.active else Disruption.NONE},
            why={"gres_text": f"{self.unit} reads it when it starts"} if observed.active else None,
            paths={**self._paths, "gres_file": self.gres_path},
            notes=notes,
        )

    @property
    def _paths(self) -> dict[str, str]:
        return {**self.own_paths, "gres_text": self.gres_path}

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        for field, path in self._paths.items():
            if field not in plan.fields:
                continue
            text: str | None = getattr(desired, field)
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
        if "gres_file" in plan.fields and desired.gres_text is not None:
            yield ops.PutText(self.gres_path, desired.gres_text, mode=0o644)
        if "gres_text" in plan.fields and observed.active:
            yield ops.RestartUnit(self.unit, roll_back=(self.gres_path,))
        if "active" in plan.fields:
            yield ops.StartUnit(self.unit)

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
