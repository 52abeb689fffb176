"""k3s and RKE2 have found NVIDIA's runtime by themselves, and no file of theirs was written.

Both write their containerd's configuration anew at every start and look for nvidia-container-runtime while
they do. So the right state is: the package is installed, the service was started after that, and its
generated file names the handler. This state looks at that file, restarts the service once when it was
started too early, and refuses to restart it again when that would not help. The running containerd is asked
over CRI for its handlers: a file names what the next start makes of it.

Surprising: a program left in /usr/local/nvidia/toolkit by a removed GPU Operator wins over /usr/bin, and
every pod of the handler fails. A template of the administrator (config.toml.tmpl, config-v3.toml.tmpl) takes
the place of what is generated, and with it the detection.

Sources:
    k3s-io/k3s, pkg/agent/containerd/runtimes.go (places and order of the search), docs.k3s.io "Advanced";
    pkg/agent/config/config.go: the socket, which RKE2 has too.
    No package of k3s or RKE2 was at hand to try it with: the tests run a stand-in that generates its file
    by that source.
    rancher/rke2#3385, NVIDIA/gpu-operator#992: configuration written over, or lost at the next start.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from gpustate import Change, Disruption, Node, NodeFacts, Plan, ProbeError, State, Step, ops, shell
from gpustate.core.parameter_types import AbsolutePath
from gpustate.core.queries import Answer
from gpustate.core.shared_probes import show_unit
from gpustate.formats.containerd import Handler, effective, handler_problems
from gpustate.formats.numbers import parse_uint
from gpustate.formats.systemd import Unit
from gpustate.ops.daemon_seen import or_refusal, read_rows
from gpustate.probes import cri_status
from gpustate.runtimes.facts import CriQuery
from gpustate.runtimes.services import SERVICES, is_needed
from gpustate.runtimes.state import IMPLIED, bundled_problems

#: Where they look, the first one wins.
SEARCHED = ("/usr/local/nvidia/toolkit", "/usr/bin")
PROGRAM = "nvidia-container-runtime"
UNITS = ("k3s", "k3s-agent", "rke2-server", "rke2-agent")
#: Where the containerd of both answers.
SOCKET = "/run/k3s/containerd/containerd.sock"


@dataclass(frozen=True, slots=True)
class Service:
    """One of the four services on a node.

    Args:
        unit: its name without ``.service``.
        active: its ``ActiveState``.
        started: when, in seconds; 0 when it does not run.
        folder: where its containerd's configuration is generated.
        config: that configuration; ``None`` where none was generated yet.
        template: a foreign template that leaves the detection out; empty where there is none.
        enabled: its ``UnitFileState``.
    """

    unit: str
    active: str = ""
    started: int = 0
    folder: str = ""
    config: str | None = None
    template: str = ""
    enabled: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The services there are, and the programs they would find, best first, with their change times.

    ``cri`` is what the running containerd says; ``None`` where none was asked.
    """

    services: tuple[Service, ...] = ()
    programs: Mapping[str, int] = field(default_factory=dict[str, int])
    cri: cri_status.CriStatus | None = None


@dataclass(frozen=True, slots=True)
class K3sQuery(CriQuery[Found]):
    """Which of k3s and RKE2 is here, what it has generated, what it would find now, and what its containerd says."""

    def fragment(self) -> str:
        each = "\n".join(f'print_unit {unit} "{show_unit(f"{unit}.service")}"' for unit in UNITS)
        folders = " ".join(SEARCHED)
        script = shell.load(
            "k3s", "gpustate.states", SEARCHED=folders, PROGRAM=PROGRAM, SOCKET=SOCKET
        )
        return shell.fill(script, EACH=each)

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "the generated configuration", ("config",))
        folders, enabled = rows.pairs("folder"), rows.pairs("enabled")
        lost = {}
        for row in rows.keys.get("template", ()):
            unit, kind, path = ([*row.split(" ", 2), "", ""])[:3]
            if kind == "lost":
                lost[unit] = path
        services: list[Service] = []
        for row in rows.keys.get("unit", ()):
            unit, active, started = ([*row.split(" "), "", ""])[:3]
            services.append(
                Service(
                    unit,
                    active,
                    parse_uint(started) or 0,
                    folders.get(unit, ""),
                    rows.blobs["config"].get(unit),
                    lost.get(unit, ""),
                    enabled.get(unit, ""),
                )
            )
        times = rows.pairs("program")
        programs = {path: parse_uint(second) or 0 for path, second in times.items()}
        return Found(tuple(services), programs, cri_status.read(rows.keys))

    def placeholder(self) -> Found:
        return Found()


@dataclass(frozen=True, slots=True)
class Observed:
    """The service, and what it has found.

    Args:
        unit: the service that runs, or the one that is there.
        lacks: what the generated configuration lacks.
        active: the service runs.
        late: it was started after the program was there: a restart would change nothing.
        template, folder: see :class:`Service`.
        programs: what it would find, best first.
        problem: why the generated file cannot be judged.
        dead: why no pod can start with the running containerd; empty where one can.
        running: the service runs, or need not.
        disabled: nothing starts it at the next boot.
    """

    unit: str = ""
    lacks: tuple[str, ...] = ()
    active: bool = False
    late: bool = False
    template: str = ""
    folder: str = ""
    programs: tuple[str, ...] = ()
    problem: str = ""
    dead: str = ""
    running: bool = True
    disabled: bool = False


class K3sHandlerRegistered(State[Observed]):
    """k3s or RKE2 serves the handler ``nvidia``, by its own detection.

    On a node without them there is nothing to do.

    Args:
        binary: absolute path of the program that must be found.
        default: containers that name no handler must get this one: checked, not set, since the setting
            stands in a file of theirs.
        restart: ``systemd`` restarts the service once when it was started before the program was there, and
            starts it where it has run before and is stopped; ``none`` leaves the service alone. A disabled one
            is enabled and started, unless another runtime is enabled or runs.

    Disruption:
        ``RESTART`` of k3s or RKE2 when it was started too early; pods go on.

    Raises:
        StepFailed: the service does not come up, or does not find the program after all.
    """

    name: ClassVar[str] = "k3s"
    labels: ClassVar[Mapping[str, str]] = {
        "lacks": "problems in the configuration",
        "late": "started before the program was there",
        "running": "service runs",
    }
    supported_runtime: ClassVar[str] = "k3s and RKE2"
    needs: ClassVar[tuple[str, ...]] = ("preflight", "container-toolkit")
    implies: ClassVar[Mapping[str, str]] = IMPLIED
    known_after: ClassVar[tuple[str, ...]] = ("container-toolkit",)
    worst: ClassVar[Disruption] = Disruption.RESTART
    stable: ClassVar[tuple[str, ...] | None] = ("unit", "lacks", "active", "running")

    binary: AbsolutePath = f"/usr/bin/{PROGRAM}"
    default: bool = False
    restart: Literal["systemd", "none"] = "systemd"

    def probe(self, node: Node) -> Observed:
        facts, units = node.query(K3sQuery()), node.units(*SERVICES)
        if not facts.services:
            return Observed()
        running = [s for s in facts.services if s.active in ("active", "activating")]
        enabled = [s for s in facts.services if s.enabled == "enabled"]
        service = (running or enabled or list(facts.services))[0]
        problem = ""
        missing: tuple[str, ...] = ()
        try:
            missing = self._lacks(service)
        except ProbeError as error:
            problem = str(error)
        cri = facts.cri if service.active == "active" and not self.absent else None
        missing = bundled_problems(cri, "nvidia", missing)
        distribution = service.unit.partition("-")[0]
        changed_at = facts.programs.get(self.binary, 0)
        return Observed(
            unit=service.unit,
            lacks=() if self.absent else missing,
            active=service in running,
            late=bool(changed_at) and service.started > changed_at,
            template=service.template,
            folder=service.folder,
            programs=tuple(facts.programs),
            problem=problem,
            dead="" if cri is None else cri.dead(f"the containerd of {distribution}"),
            running=self.absent or self.restart == "none" or not self._stopped(service, units),
            disabled=service.enabled == "disabled",
        )

    def _stopped(self, service: Service, units: Mapping[str, Unit]) -> bool:
        """Whether it is meant to run and does not; one that has never run awaits its configuration."""
        if service.active not in ("inactive", "failed") or service.config is None:
            return False
        if service.enabled != "disabled":
            return service.enabled in ("enabled", "masked")
        return is_needed(units, (f"{service.unit}.service",), configured=False)

    def _lacks(self, service: Service) -> tuple[str, ...]:
        path = f"{service.folder}/config.toml"
        if service.config is None:
            return (f"{path} is not generated yet",)
        handler = Handler("nvidia", self.binary, self.default)
        # Which cgroup driver it gives its handlers is its own affair.
        return handler_problems(effective(service.config, path), handler, low_level=handler.name)

    def desired(self, observed: Observed) -> Observed:
        idle = not observed.active and observed.running
        unchanged = self.absent or not observed.unit or idle or self.restart == "none"
        if unchanged or self.refuse(observed) is not None:
            return observed
        late = bool(observed.lacks) or observed.late
        return replace(observed, lacks=(), late=late, dead="", active=True, running=True)

    def worst_case(self, observed: Observed, facts: NodeFacts) -> tuple[Disruption, str] | None:
        return (
            (self.worst, "it was started before the program was installed")
            if observed.unit
            else None
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not observed.unit:
            return None
        if observed.problem:
            return observed.problem
        if observed.dead and (not observed.lacks or observed.late):
            log = f"{observed.folder.removesuffix('/etc/containerd')}/containerd/containerd.log"
            return f"{observed.dead}; see {log}, fix that and restart {observed.unit}"
        if not observed.lacks or not observed.active:
            return None
        distribution = observed.unit.partition("-")[0]
        if self.binary not in observed.programs:
            return f"{self.binary} not found; add the state container-toolkit to the policy"
        if observed.programs[0] != self.binary:
            return (
                f"{observed.programs[0]} takes precedence over {self.binary}; remove "
                f"{SEARCHED[0]}, left by a GPU Operator"
            )
        if observed.template:
            return (
                f"{observed.template} replaces the configuration that {distribution} generates and "
                'disables its detection; begin it with {{ template "base" . }}, or remove it'
            )
        if self.default and any("default runtime" in problem for problem in observed.lacks):
            return (
                f"{observed.lacks[-1]}: write default-runtime: nvidia into "
                f"/etc/rancher/{distribution}/config.yaml, which gpustate does not manage, and "
                f"restart {observed.unit}"
            )
        if observed.late:
            return (
                f"{observed.unit} was started after {self.binary} was installed, and reports: "
                f"{'; '.join(observed.lacks)}; "
                f"see {observed.folder}/config.toml"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        if self.absent or not observed.unit or self.refuse(observed) is not None:
            notes = (
                () if observed.unit or self.absent else ("neither k3s nor RKE2 is installed here",)
            )
            return Plan(notes=notes)
        if not observed.running:
            why = (
                "is disabled, and no other runtime is enabled"
                if observed.disabled
                else "should be running"
            )
            return Plan((Change("running", False, True, why=f"{observed.unit}.service {why}"),))
        if not observed.lacks:
            return Plan()
        if not observed.active or self.restart == "none":
            return Plan(notes=(f"{observed.unit} finds the program when it starts",))
        why = f"{observed.unit} was started before {self.binary} was installed"
        return Plan((Change("lacks", list(observed.lacks), [], Disruption.RESTART, why),))

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if not plan.fields & {"lacks", "running"}:
            return
        config = shlex.quote(f"{observed.folder}/config.toml")
        program = shlex.quote(self.binary)
        unit = f"{observed.unit}.service"
        # It writes the file before it starts its containerd.
        check = (
            f"systemctl is-active --quiet {unit} && grep -qF {program} {config} && "
            f"[ {SOCKET} -nt {config} ]"
        )
        if "running" in plan.fields:
            if observed.disabled:
                yield ops.EnableUnit(unit, now=False)
            yield ops.StartUnit(unit, healthy=check, wait_s=120)
        else:
            yield ops.RestartUnit(unit, healthy=check, wait_s=120)

    def verify(self, observed: Observed) -> Plan:
        return or_refusal(self.plan(observed), self.refuse(observed))

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """Nothing: the service finds the program when the machine starts it."""
        yield from ()
