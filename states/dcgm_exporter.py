"""dcgm-exporter runs as a host service, and its answer has every wanted field of every GPU.

Its counters file is made for the GPUs of the node: a field that none of them can report is left out and
named, because the exporter would leave it out without a word. Validation is a real request on the node
at every look: what is wanted and not in the answer is drift. A GPU that hangs vanishes from the answer,
and an exporter that lost its host engine answers with nothing; both show here.

Nothing of the package's own files is touched: a drop-in of its unit gives the command line, and the
counters file is one of our own. Where the exporter is there without a unit (another build of it), the
unit is ours too.

Surprising: restarts follow the arguments the process really has and what it made of the counters file,
noted in its environment. So a comment in the file costs none, and a run that was killed between writing
and restarting is made good for.

Sources:
    NVIDIA/dcgm-exporter (d5e5f51): README (flags), internal/pkg/transformation/hpc.go (job mapping),
    packaging/config-files/systemd/nvidia-dcgm-exporter.service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from gpustate import Conflict, Disruption, Node, NodeFacts, Step, ops, shell
from gpustate.bases.service import PackagedService, ServiceState, package_fields
from gpustate.core.packages import Offer, StatePackages, not_offered
from gpustate.core.parameter_errors import pattern
from gpustate.core.parameter_types import DottedVersion, OptionalPath
from gpustate.core.queries import Shell
from gpustate.core.shared_probes import show_unit
from gpustate.documents import JsonView
from gpustate.errors import GpustateError, PolicyError, UsageError
from gpustate.formats import dcgm, dpkg, keyed, systemd
from gpustate.formats.dcgm import fields, packages, scraping, services, shipped
from gpustate.formats.numbers import parse_uint
from gpustate.probes import listeners
from gpustate.probes.gpu_facts import Gpu, GpuFacts
from gpustate.probes.package_files import PackageFiles

UNIT = services.EXPORTER_UNIT
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
DROP_IN_PATH = f"{UNIT_PATH}.d/gpustate.conf"
COUNTERS_PATH = "/etc/dcgm-exporter/gpustate-counters.csv"
_PATHS = {"counters": COUNTERS_PATH, "unit": UNIT_PATH, "drop_in": DROP_IN_PATH}

_NAMES = {"PROGRAM": services.EXPORTER, "UNIT": UNIT, "DIGEST": services.DIGEST}
_PROBE = (
    f'show_unit() {{ SHOWN="{show_unit(UNIT)}"; }}\n'
    f"{shell.load('process_words', 'gpustate.shell')}{shell.load('dcgm_exporter_probe', 'gpustate.states', **_NAMES)}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(PackagedService):
    """The exporter, its files, and what its answer lacks."""

    unit: str | None = None  # text of a unit of ours
    drop_in: str | None = None
    counters: str | None = None
    jobs: str | None = None  # what is at the job mapping folder: dir, another kind, or nothing
    running: tuple[str, ...] = ()  # arguments it runs with, and what it made of the counters file
    missing: tuple[str, ...] = ()  # wanted fields of GPUs that are not in its answer
    program: bool = False  # the exporter is there
    packaged_unit: bool = False  # its package has a unit
    left_out: tuple[str, ...] = ()  # fields that no GPU here can report
    notes: tuple[str, ...] = ()
    gpus: int = 0
    problem: str = ""  # why GPUs do not answer
    taken: tuple[str, ...] = ()  # who else has its port
    elsewhere: bool = False  # the address it is to listen on is not the node's
    others: dict[str, str] = field_of(default_factory=dict[str, str])  # drop-ins that are not ours


_WHY = {
    "missing": "a restart may bring it back",
    "running": "its new configuration is not loaded yet",
}


class DcgmExporterRunning(ServiceState[Observed]):
    """dcgm-exporter runs with a counters file that fits, and answers with every field of every GPU.

    Args:
        version: the exporter's version, such as ``4.8.3``; the installed one, else the newest, when
            not given. It should be the one that was released with DCGM's.
        hold: hold the package, so that it moves with the policy only.
        counters: a counters file, on the machine that gpustate runs on; gpustate's own, which its
            alert rules and its dashboard need, when not given.
        contents: text of that file by its path; filled in when the file is read, not to be given.
        keep_unreportable: also ask for fields that no GPU of the node can report.
        listen: address and port it answers on; without an address on every one.
        interval_ms: how often values are read.
        engine: host engine it asks; empty: one of its own, inside it.
        job_mapping: folder in which a scheduler's prolog names the job of each GPU; empty: none.
        scrape: check at every probe that the answer is complete.

    Disruption:
        ``RESTART`` where an exporter that runs gets another configuration or version: metrics pause
        for a moment. Otherwise ``NONE``.
    """

    name: ClassVar[str] = "dcgm-exporter"
    matrix: ClassVar[Mapping[str, object]] = {"dcgm_exporter": "version"}
    labels: ClassVar[Mapping[str, str]] = {
        "jobs": "folder of job mappings",
        "running": "options of the service",
        "missing": "what the program lacks",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver", "dcgm")
    after: ClassVar[tuple[str, ...]] = ("persistenced", "fabric-manager", "mig")
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver", "mig", "dcgm")
    predicted: ClassVar[tuple[str, ...]] = ("package", "version")
    worst: ClassVar[Disruption] = Disruption.RESTART
    needs_gpu: ClassVar[bool] = True
    stable: ClassVar[tuple[str, ...] | None] = (
        *("package", "version", "held", "unit", "drop_in", "counters", "jobs", "at_boot", "active"),
        *("running", "missing", "left_out", "damaged"),
    )
    unit: ClassVar[str] = UNIT
    files: ClassVar[Mapping[str, str]] = _PATHS
    reloads: ClassVar[frozenset[str]] = frozenset({"unit", "drop_in", "package"})
    restarts: ClassVar[frozenset[str]] = frozenset(
        {"version", "damaged", "running", "active", "missing"}
    )
    program_files: ClassVar[PackageFiles | None] = PackageFiles(
        "dcgm-exporter-files", packages.EXPORTERS, (services.EXPORTER,)
    )
    install_s: ClassVar[int] = 900

    version: DottedVersion | None = None
    hold: bool = True
    counters: str | None = None
    contents: dict[str, str] = Field(default_factory=dict)
    keep_unreportable: bool = False
    listen: Annotated[
        str,
        pattern(
            r"^([0-9]{1,3}(\.[0-9]{1,3}){3})?:[0-9]{1,5}$",
            "a port such as :9400, with or without an IPv4 address before it",
        ),
    ] = ":9400"
    interval_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 30_000
    engine: Annotated[
        str,
        pattern(
            r"^([A-Za-z0-9.-]+:[0-9]{1,5})?$",
            "a host and port such as localhost:5555, or an empty text",
        ),
    ] = "localhost:5555"
    job_mapping: OptionalPath = ""
    scrape: bool = True

    @model_validator(mode="before")
    @classmethod
    def _with_contents(cls, data: Any) -> Any:
        """Read the file once, where the policy is; a saved plan carries its text along."""
        path = data.get("counters") if isinstance(data, dict) else None
        if not isinstance(path, str) or path in (data.get("contents") or ()):
            return data
        from gpustate.files import TextFiles

        try:
            text = TextFiles("counters file", PolicyError, 1).text(path)
        except PolicyError as error:  # its own place will be that of the policy
            raise PolicyError(str(error)) from None
        return {**data, "contents": {path: text}}

    @model_validator(mode="after")
    def _checked(self) -> DcgmExporterRunning:
        try:
            self._counters()
        except UsageError as error:
            raise ValueError(str(error)) from None
        host, _, number = self.listen.rpartition(":")
        port = parse_uint(number) or 0
        if not 0 < port < 65536:
            raise ValueError(f"listen: {self.listen!r} has no port of 1 to 65535")
        if host:
            listeners.ipv4(host)
        return self

    def _counters(self) -> tuple[dcgm.Counter, ...]:
        if self.counters is None:
            return shipped.counters()
        return dcgm.read(self.contents.get(self.counters, ""), self.counters)

    def _warnings(self) -> tuple[str, ...]:
        if self.counters is None:
            return ()
        warnings = dcgm.check(self.contents.get(self.counters, ""), self.counters).warnings
        return tuple(str(warning) for warning in warnings)

    def _exported(self, left_out: tuple[str, ...]) -> tuple[dcgm.Counter, ...]:
        return tuple(counter for counter in self._counters() if counter.field.name not in left_out)

    @property
    def _place(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return ("127.0.0.1" if host in ("", "0.0.0.0") else host), int(port)

    @property
    def _words(self) -> tuple[str, ...]:
        return services.exporter_words(
            COUNTERS_PATH, self.listen, self.interval_ms, self.engine, self.job_mapping
        )

    def conflicts(
        self, policy: JsonView, facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        host_engine = policy.get("dcgm")
        host, _, port = self.engine.rpartition(":")
        if (
            observed is None
            and host_engine is not None
            and not (self.absent or host_engine.absent)
            and host in ("localhost", "127.0.0.1")
        ):
            local = host_engine.address in (services.EVERYWHERE, services.ENGINE_ADDRESS)
            if not local or int(port) != host_engine.port:
                right = f"{host if local else host_engine.address}:{host_engine.port}"
                yield Conflict(
                    f"engine is {self.engine}, and dcgm listens on {host_engine.address}:{host_engine.port}: "
                    f"write engine: {right}, or leave address and port of dcgm as they are"
                )

    def pinned(self, observed: Observed) -> JsonView:
        return {"version": dpkg.upstream_version(observed.version)} if observed.version else {}

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        package = next((name for name in packages.EXPORTERS if offer.versions(name)), None)
        return StatePackages(((package, ""),) if package else ())

    def probe(self, node: Node) -> Observed:
        fields, nvml = self.read(node, *packages.EXPORTERS), node.query(GpuFacts())
        if self.scrape and not self.absent:
            node.query(Shell(scraping.wait_script(UNIT, *self._place), waits=True))
        fields |= package_fields(node.packages(*packages.EXPORTERS))
        drop_ins = node.drop_ins(UNIT)
        jobs = node.stats(self.job_mapping) if self.job_mapping else {}
        port = "" if self.absent else listeners.script(self._place[1])
        port += "" if self.absent else listeners.elsewhere(self.listen.rpartition(":")[0])
        keys = keyed.lists(node.shell(f"{_PROBE}{port}:").stdout)
        query = f'[ -z "${{GPUSTATE_IMAGE-}}" ] || exit 0\n{scraping.script(*self._place)}'
        answer = node.shell(query) if self.scrape and not self.absent else None
        words = services.words_after("".join(keys.get("words", [])), "dcgm-exporter")
        running = () if words is None else (*words, "".join(keys.get(services.DIGEST, [])))
        observed = Observed(
            **fields,
            jobs=jobs[self.job_mapping].kind if self.job_mapping in jobs else None,
            running=(*(("replaced",) if "replaced" in keys else ()), *running),
            program="program" in keys,
            packaged_unit="unit" in keys,
            gpus=len(nvml.gpus),
            problem="" if nvml.works else nvml.error_text or nvml.error_name or "a GPU is lost",
            taken=listeners.find_conflicts(
                keys.get("listener", ()), self.listen.rpartition(":")[0], UNIT
            ),
            elsewhere="elsewhere" in keys,
            others={path: text for path, text in drop_ins.items() if path != DROP_IN_PATH},
        )
        left_out, notes = self._fit(() if observed.image else nvml.gpus, self._choice(observed))
        observed = replace(observed, left_out=left_out, notes=notes)
        if observed.active and answer is not None and not observed.image:
            text = answer.stdout if answer.ok else None
            observed = replace(observed, missing=self._missing(text, nvml.gpus, left_out))
        return observed

    def _fit(
        self, gpus: tuple[Gpu, ...], chosen: tuple[str, str] | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Fields to leave out: the exporter does not know the name, or no GPU can report it; a line for each."""
        release = dpkg.upstream_version(chosen[1]) if chosen else ""
        place = self.counters or "counters.csv"
        unknown = [c for c in self._counters() if release and not fields.is_known(c.field, release)]
        notes = tuple(
            f"{place}:{c.line}: {c.field.name}: dcgm-exporter {release} does not support it "
            f"and would fail to start; omitted{_older_name(c.field, release)}"
            for c in unknown
        )
        left_out, more = self._unreportable(gpus, place, unknown)
        return (*(c.field.name for c in unknown), *left_out), (*self._warnings(), *notes, *more)

    def _unreportable(
        self, gpus: tuple[Gpu, ...], place: str, unknown: list[dcgm.Counter]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Fields that no GPU can report, and a line for each that some cannot."""
        counters = [counter for counter in self._counters() if counter not in unknown]
        unfit = dcgm.unfit(counters, gpus)
        reached = {
            counter.field.name: sum(len(row.gpus) for row in unfit if row.counter == counter)
            for counter in counters
        }
        out = tuple(name for name, count in reached.items() if gpus and count >= len(gpus))
        notes = tuple(
            f"{row.text(place)}{'' if self.keep_unreportable or row.counter.field.name not in out else '; left out'}"
            for row in unfit
        )
        return (() if self.keep_unreportable else out), notes

    def _missing(
        self, text: str | None, gpus: tuple[Gpu, ...], left_out: tuple[str, ...]
    ) -> tuple[str, ...]:
        """What the answer lacks, one line a field."""
        where = f"http://{self._place[0]}:{self._place[1]}/metrics"
        if text is None:
            return (f"{where} does not answer",)
        try:
            samples = dcgm.parse(text, where)
        except GpustateError as error:
            return (str(error),)
        answering = [gpu for gpu in gpus if gpu.error is None]
        return dcgm.summed_up(dcgm.find_missing(samples, self._exported(left_out), answering))

    def _choice(self, observed: Observed) -> tuple[str, str] | None:
        """Package and version that should be there; ``None`` where none can be had."""
        rows = [(n, v) for n, v in observed.offered if observed.package in (None, n)]
        if observed.package is not None and observed.version is not None:
            rows.insert(0, (observed.package, observed.version))
        if self.version is not None:
            rows = [row for row in rows if dpkg.upstream_version(row[1]) == self.version]
        elif observed.package is not None:
            rows = rows[:1]
        name = next((n for n in packages.EXPORTERS if any(row[0] == n for row in rows)), None)
        matches = [row for row in rows if row[0] == name]
        return max(matches, key=lambda row: dpkg.version_key(row[1])) if matches else None

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            removed = replace(
                observed, package=None, version=None, held=False, unit=None, drop_in=None
            )
            idle = replace(removed, at_boot=False, active=False, running=(), missing=())
            return replace(idle, counters=None, damaged=())
        chosen = self._choice(observed)
        if chosen is None and not observed.program:
            return observed
        counters = self._exported(observed.left_out)
        mark = services.digest(counters)
        words = self._words
        local = self.engine.partition(":")[0] in ("localhost", "127.0.0.1")
        # NVIDIA's package has a unit; a program without one has none.
        own_unit = chosen is None and not observed.packaged_unit
        base = (
            observed
            if observed.image
            else replace(observed, active=True, running=(*words, mark), missing=())
        )
        return replace(
            base,
            package=chosen[0] if chosen else None,
            version=chosen[1] if chosen else None,
            held=(self.hold or observed.held) and chosen is not None,
            damaged=(),
            unit=services.exporter_unit(words, mark, local) if own_unit else None,
            drop_in=None if own_unit else services.exporter_drop_in(words, mark, local),
            counters=dcgm.as_text(counters, "Written by gpustate; changes are overwritten."),
            jobs="dir" if self.job_mapping else observed.jobs,
            at_boot=True,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            return None
        if reason := super().refuse(observed):
            return reason
        if not observed.image and not observed.gpus:
            return f"no GPU answers ({observed.problem or 'there is none'}); see: gpustate explain"
        if self.job_mapping and observed.jobs not in (None, "dir"):
            return f"{self.job_mapping} is not a directory; remove it, or set another job_mapping"
        desired = self.desired(observed)
        own_path = DROP_IN_PATH if desired.drop_in is not None else ""
        path, command = systemd.effective_command(observed.others, own_path)
        if path and (services.words_after(command, "dcgm-exporter") or ()) != self._words:
            return services.override_error(path, UNIT, command)
        if observed.elsewhere:
            return (
                f"listen: {self._place[0]} is not an address of this node; set one listed by: ip "
                "-4 addr"
            )
        if observed.taken:
            return (
                f"port {self._place[1]} is taken by {', '.join(observed.taken[:3])}; stop it, or "
                "set another port with listen"
            )
        return None

    def unavailable(self, observed: Observed) -> str | None:
        has_program = observed.program and self.version is None
        if has_program or self._choice(observed) is not None:
            return None
        return not_offered(
            f"{packages.EXPORTERS[0]} {self.version or ''}",
            (version for _, version in observed.offered),
            f"use NVIDIA's CUDA repository or a mirror of it (driver-repository), or put {services.EXPORTER} there",
            observed.forbidden,
        )

    def costs(self, observed: Observed) -> Mapping[str, Disruption]:
        # Of comments and blanks in its files it has read all that counts.
        read = observed.running == self.desired(observed).running or not observed.active
        return {
            **super().costs(observed),
            **({} if read else dict.fromkeys(self.files, self.worst)),
        }

    def why(self, observed: Observed) -> Mapping[str, str]:
        return {} if self.absent else _WHY

    def notes(self, observed: Observed) -> Iterator[str]:
        yield from observed.notes

    def configure(
        self, observed: Observed, desired: Observed, moved: frozenset[str]
    ) -> Iterator[Step]:
        if "jobs" in moved:
            yield ops.Run(
                f"folder {self.job_mapping}; chmod 755 {self.job_mapping}; effect made",
                f"create the folder {self.job_mapping}",
                timeout=30,
            )
        yield from super().configure(observed, desired, moved)

    def restart(self, observed: Observed) -> Step:
        wait_s = 30 + self.interval_ms // 1000
        return ops.RestartUnit(UNIT, healthy=self._answers(observed), wait_s=wait_s)

    def _answers(self, observed: Observed) -> str:
        """It answers with a line for each GPU; a counter of its own may have none."""
        first = next(
            (c for c in self._exported(observed.left_out) if c.field.id and c.type != "label"), None
        )
        active = f"systemctl is-active --quiet {UNIT}"
        query = scraping.script(*self._place)
        if first is None or not self.scrape:
            return f"{active} && {{ {query}; }} >/dev/null"
        count = f"$({{ {query}; }} | grep -c '^{first.field.name}{{')"
        return f'{active} && lines={count}; [ "${{lines:-0}}" -ge {max(observed.gpus, 1)} ]'

    def remove(self, observed: Observed, moved: frozenset[str]) -> Iterator[Step]:
        yield from super().remove(observed, moved)
        if self.job_mapping:
            # What a scheduler wrote into it is not ours, nor is a folder that was there before.
            yield ops.Run(
                f"left_folders {self.job_mapping}/job\neffect removed",
                f"remove {self.job_mapping} if it is empty",
                timeout=30,
            )
        yield ops.Run(
            "rmdir /etc/dcgm-exporter 2>/dev/null || :\neffect removed",
            "remove /etc/dcgm-exporter if it is empty",
            timeout=30,
        )


def _older_name(field: fields.Field, release: str) -> str:
    """What to write for that release; empty when it has no such field."""
    older = fields.known_as(field, release)
    return f"; write {older}, the same field" if older else ""
