"""The base of states that register NVIDIA's runtime as a handler of a container runtime.

A subclass says which files decide, edits them with a pure editor of :mod:`gpustate.formats`, and brings the sh
functions of a :class:`gpustate.ops.daemons.Daemon`. The rest is here, once: what is observed, refused, planned, in which
order files are written, checked by the runtime's own program, read by its service and rolled back, and how the
original files come back.

``config dump`` and its like speak of files, not of the process. That a restart is owed is known from a note on tmpfs
that is older than the first changed byte; and where the handler is foreign, from a file that is newer
than the service. A process that was asked over CRI has the last word.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import AfterValidator

from gpustate.core.change import Change, Disruption, Plan
from gpustate.core.facts import NodeFacts
from gpustate.core.node import Node
from gpustate.core.parameter_errors import pattern
from gpustate.core.parameter_types import AbsolutePath, ServiceName
from gpustate.core.planned import PlannedObservation
from gpustate.core.state import AnyState, Conflict, State
from gpustate.core.step import Step
from gpustate.errors import GpustateError, ProbeError, RefusedError
from gpustate.formats.containerd import Edit, Handler
from gpustate.formats.systemd import Unit
from gpustate.ops.daemon_seen import (
    RUNNING,
    and_kept,
    digest,
    disabled,
    no_service,
    or_refusal,
    plain_files,
    silent,
    stopped,
)
from gpustate.ops.daemons import (
    RUNTIME,
    Daemon,
    left_kept,
    missing_programs,
    missing_runtime,
    require,
    start,
    writes,
)
from gpustate.ops.steps import ForgetOriginal
from gpustate.probes.cri_status import CriStatus
from gpustate.runtimes.facts import RuntimeFacts, RuntimeObservation
from gpustate.runtimes.services import SERVICES, is_needed


def _not_of_its_own(name: str) -> str:
    if name in ("runc", "crun", "kata", "youki", "runsc"):
        raise ValueError(
            f"{name} is the name of another runtime; name NVIDIA's otherwise, such as nvidia"
        )
    return name


#: What a container runtime calls NVIDIA's runtime.
HandlerName = Annotated[
    str,
    pattern(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", "a name of small letters, digits and hyphens"),
    AfterValidator(_not_of_its_own),
]

R = TypeVar("R", bound=RuntimeObservation)

#: States that go with every container runtime.
IMPLIED = {"dev-char": "runc before 1.1.7 and systemd before 240 need its links"}


class RuntimeState(State[R], Generic[R]):
    """A container runtime serves the NVIDIA runtime handler, and its other settings are what they were.

    Class attributes:
        label: how messages call the runtime. MUST be set.
        process: how they call the process that serves pods, where that is not the runtime itself.
        evidence: where what it makes of its files can be read.
        file_format: what these are written in.
        matrix_fact: the fact of the compatibility matrix that is its version.

    Args:
        handler: its name, which a RuntimeClass refers to.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no handler get this one.
    """

    needs: ClassVar[tuple[str, ...]] = ("preflight", "container-toolkit")
    implies: ClassVar[Mapping[str, str]] = IMPLIED
    worst: ClassVar[Disruption] = Disruption.RESTART
    labels: ClassVar[Mapping[str, str]] = {
        "files": "configuration files",
        "lacks": "problems in the configuration",
        "read": "service has read its configuration",
        "running": "service runs",
        "kept": "files kept from before",
    }
    stable: ClassVar[tuple[str, ...] | None] = ("digest", "lacks", "read", "running", "version")
    label: ClassVar[str] = ""
    process: ClassVar[str] = ""
    evidence: ClassVar[str] = ""
    file_format: ClassVar[str] = "TOML"
    matrix_fact: ClassVar[str] = "containerd"

    handler: HandlerName = "nvidia"
    binary: AbsolutePath = RUNTIME
    default: bool = False

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        version = planned.current("version")
        return {self.matrix_fact: version, "nvidia_ctk_configures": False} if version else {}

    # --- what a runtime brings -------------------------------------------------------------

    @abstractmethod
    def read(self, node: Node) -> RuntimeFacts:
        """MUST: ask the node; gives what ``found`` of the observation holds."""

    @abstractmethod
    def find_problems(self, observed: R) -> tuple[str, ...]:
        """MUST: what the handler lacks in what the runtime makes of its files. Not called where it is absent.

        Raises:
            GpustateError: that cannot be judged.
        """

    @abstractmethod
    def register(self, observed: R) -> Edit:
        """MUST: the files that make the runtime serve the handler.

        Raises:
            ProbeError, RefusedError: they cannot be edited.
        """

    @abstractmethod
    def unregister(self, observed: R) -> Edit:
        """MUST: the files without the handler. Called where the runtime is not installed as well."""

    def daemon(self, observed: R) -> Daemon:
        """MUST, unless :meth:`apply_edit` is its own: what asks the runtime's program on the node."""
        raise NotImplementedError(f"{type(self).__name__} has no daemon")

    @property
    def supervised(self) -> bool:
        """MAY: gpustate restarts the service."""
        return False

    def service(self, observed: R) -> str:
        """MAY: the unit that is restarted, or has the log."""
        return ""

    def rollback_paths(self, observed: R) -> tuple[str, ...]:
        """MAY: files to roll back beside those that are written."""
        return ()

    def lists_handler(self, observed: R) -> bool:
        """MAY: the runtime's effective configuration has a handler of this name."""
        return self.handler in observed.found.dump

    def check_paths(self, observed: R) -> str | None:
        """MAY: why the files are not to be edited, before an edit is tried."""
        return None

    def explain_dead(self, observed: R, edit: Edit) -> str:
        """MAY: why what is to be done here does not bring a dead process back; empty where it may."""
        if not observed.read or edit.files:
            return ""
        log = f"journalctl -u {self.service(observed)}"
        return f"{observed.dead}; {log} has more: fix that, and restart it"

    def cost(self, observed: R, edit: Edit) -> Disruption:
        """MAY: what it costs that the runtime reads its files."""
        return Disruption.RESTART if self.restarts(observed) else Disruption.NONE

    def explain_unread(self, observed: R) -> str:
        """MAY: why the service has to read its files."""
        return "its new configuration is not loaded yet"

    def notes(self, observed: R, edit: Edit) -> Iterator[str]:
        """MAY: notes of a plan beside those of the edit."""
        return iter(())

    def prerequisites(self) -> Iterator[Step]:
        """MAY: checks before the first file is written."""
        return iter(())

    def compares_dumps(self, observed: R) -> bool:
        """MAY: two dumps of the runtime's program tell whether more than the handler changes."""
        return True

    # --- judging what was observed ---------------------------------------------------------

    def to_handler(self) -> Handler:
        """The handler, for the editors."""
        return Handler(self.handler, self.binary, self.default)

    def assess(self, observed: R) -> tuple[tuple[str, ...], str]:
        """What the handler lacks, and why that cannot be judged."""
        facts = observed.found
        problems: tuple[str, ...] = ()
        problem = next((path for path, text in facts.files.items() if "\ufffd" in text), "")
        if problem:
            problem = f"{problem} is not UTF-8, which {self.file_format} requires; fix it first"
        try:
            problems = self.find_problems(observed)
        except GpustateError as error:
            problem = str(error)
        if facts.error and not facts.dump:
            problem = f"{self.label} cannot read its configuration: {facts.error}; fix it first"
        return problems, problem

    def is_read(self, observed: R) -> bool:
        """Whether the service has read what is on disk."""
        facts = observed.found
        if not self.supervised or facts.active not in RUNNING:
            return True
        return not facts.restart_pending and self.is_loaded(observed)

    def irrelevant(self, observed: R) -> tuple[str, ...]:
        """MAY: services of other runtimes beside which a disabled one is to run all the same."""
        return ()

    def is_needed(self, observed: R, units: Mapping[str, Unit]) -> bool:
        """Whether the service is to run even if it is disabled.

        Args:
            observed: the runtime.
            units: the services of the node's runtimes.
        """
        own_units = (self.service(observed), *self.irrelevant(observed))
        return is_needed(units, own_units, configured=observed.found.served)

    def is_loaded(self, observed: R) -> bool:
        """Whether the running process has the handler of the files; where no restart of ours is owed."""
        facts = observed.found
        if self.absent or facts.active != "active":
            return True
        if facts.cri is not None and facts.cri.handlers:
            return not facts.cri.missing_handler(self.handler) or not self.lists_handler(observed)
        if facts.cri is not None and facts.cri.outcome == "unserved":
            return not facts.newer
        return facts.served or not any(self.handler in facts.files.get(p, "") for p in facts.newer)

    def dead(self, observed: R) -> str:
        """Why no pod can start with the running process; empty where one can."""
        cri = observed.found.cri
        return "" if self.absent or cri is None else cri.dead(self.process or self.label)

    def edit(self, observed: R) -> Edit:
        """The files to write.

        Raises:
            ProbeError, RefusedError: they cannot be edited.
        """
        if self.absent:
            edit = self.unregister(observed)
        elif not observed.found.program:
            edit = Edit({}, (f"{self.label} is not installed here: nothing to do",))
        elif observed.problem:
            raise ProbeError(observed.problem)
        else:
            edit = self.register(observed)
        return plain_files(edit, observed.found.links)

    def restarts(self, observed: R) -> bool:
        """The service has to read what is written."""
        runs = observed.found.active in RUNNING or not observed.running
        return self.supervised and bool(observed.found.program) and runs

    def originals(self, observed: R) -> Mapping[str, str | None]:
        """Files as they were before gpustate, where they may come back."""
        return observed.found.originals

    def _preserved(self, observed: R) -> tuple[str, ...]:
        try:
            return left_kept(self.edit(observed).files, observed.found.originals)
        except GpustateError:
            return ()

    # --- the contract ----------------------------------------------------------------------

    def conflicts(
        self, policy: Mapping[str, AnyState], facts: NodeFacts, observed: R | None
    ) -> Iterator[Conflict]:
        if observed is not None and not self.absent:
            missing, registered = observed.missing_programs, bool(observed.found.program)
            yield from missing_runtime(self.binary, missing, policy, registered=registered)

    def probe(self, node: Node) -> R:
        missing = () if self.absent else missing_programs(node, self.binary)
        facts = self.read(node)
        observed: Any = self.observation_type()(
            found=facts,
            digest=digest(facts.files),
            files=facts.files,
            version=facts.version,
            missing_programs=missing,
        )
        if facts.program and not self.absent:
            problems, problem = self.assess(observed)
            observed = replace(observed, lacks=problems, problem=problem)
        restart = "systemd" if self.supervised else "none"
        needed = self.is_needed(observed, node.units(*SERVICES))
        observed = replace(
            observed,
            read=self.is_read(observed),
            running=self.absent or not stopped(facts, restart, needed=needed),
            dead=self.dead(observed),
        )
        complete: R = replace(observed, kept=self._preserved(observed)) if self.absent else observed
        return complete

    def desired(self, observed: R) -> R:
        try:
            edit = self.edit(observed)
        except (ProbeError, RefusedError):
            return observed
        facts = observed.found
        files = {p: t for p, t in {**facts.files, **edit.files}.items() if t is not None}
        facts = replace(facts, files=files, restart_pending=False, newer=())
        complete = replace(observed, lacks=(), read=True, running=True, kept=(), dead="")
        return replace(complete, digest=digest(files), files=files, found=facts)

    def refuse(self, observed: R) -> str | None:
        restart = "systemd" if self.supervised else "none"
        reason = silent(observed.found, self.service(observed), restart)
        if reason is not None or (reason := self.check_paths(observed)) is not None:
            return reason
        try:
            edit = self.edit(observed)
        except (ProbeError, RefusedError) as error:
            return and_kept(str(error), self.originals(observed))
        if observed.dead and (reason := self.explain_dead(observed, edit)):
            return and_kept(reason, self.originals(observed))
        if observed.lacks and not edit.files and not self.absent:
            return (
                f"the files match the policy, but {self.label} reports: {'; '.join(observed.lacks)}; "
                f"see {self.evidence}"
            )
        return None

    def plan(self, observed: R) -> Plan:
        try:
            edit = self.edit(observed)
        except (ProbeError, RefusedError):
            return Plan()
        facts, cost = observed.found, self.cost(observed, edit)
        changes = [
            Change("files", facts.files.get(path), text, cost, edit.why, path=path)
            for path, text in edit.files.items()
        ]
        if observed.lacks:
            changes.append(Change("lacks", list(observed.lacks), [], cost))
        if observed.kept:
            changes.append(Change("kept", list(observed.kept), []))
        if not observed.read:
            changes.append(Change("read", False, True, cost, self.explain_unread(observed)))
        service = self.service(observed)
        if not observed.running:
            why = "should be running"
            if disabled(facts):
                reason = (
                    "gpustate has configured it" if facts.served else "no other runtime is enabled"
                )
                why = f"is disabled, and {reason}"
            changes.append(Change("running", False, True, why=f"{service} {why}"))
        notes = [*edit.notes, *([observed.dead] if observed.dead else [])]
        notes += self.notes(observed, edit)
        if edit.files and facts.program and not self.restarts(observed):
            notes.append(f"{service} is not restarted: it reads the files when it starts")
        return Plan(tuple(changes), tuple(notes))

    def apply(self, observed: R, plan: Plan) -> Iterator[Step]:
        settles = bool(plan.fields & {"files", "read"})
        if "running" in plan.fields:
            facts = observed.found
            yield from start(
                self.service(observed), facts.active, enable=disabled(facts), changes=settles
            )
        if settles:
            edit = self.edit(observed) if "files" in plan.fields else Edit({})
            if edit.files and not self.absent:
                yield require(self.binary)
                yield from self.prerequisites()
            yield from self.apply_edit(observed, edit)
        if "kept" in plan.fields:
            yield from (ForgetOriginal(path) for path in observed.kept)

    def apply_edit(self, observed: R, edit: Edit) -> Iterator[Step]:
        """Write the files, have the runtime's program judge them and its service read them, or roll back."""
        if not observed.found.program:
            yield from self.write_steps(observed, edit)
            return
        daemon, present = self.daemon(observed), not self.absent
        yield daemon.remember(
            edit.files, unread=not observed.read and not observed.found.restart_pending
        )
        yield from self.write_steps(observed, edit)
        paths = tuple(dict.fromkeys((*edit.files, *self.rollback_paths(observed))))
        yield daemon.validate(paths, present=present, compare=self.compares_dumps(observed))
        if self.restarts(observed):
            yield from self.restart_steps(observed, edit, daemon, paths)
        else:
            yield daemon.settle(present=present)

    def write_steps(self, observed: R, edit: Edit) -> Iterator[Step]:
        """The steps that write the files."""
        # What refers to another file comes after it.
        files = dict(reversed(list(edit.files.items())))
        yield from writes(files, self.originals(observed))

    def restart_steps(
        self, observed: R, edit: Edit, daemon: Daemon, paths: tuple[str, ...]
    ) -> Iterator[Step]:
        """MAY: the steps by which the service reads its files."""
        yield daemon.restart(paths, present=not self.absent)

    def first_boot(self, observed: R) -> Iterator[Step]:
        if self.supervised and observed.found.program and not self.absent:
            yield self.daemon(observed).first_start()

    def verify(self, observed: R) -> Plan:
        return or_refusal(self.plan(observed), self.refuse(observed))


class RuntimeServiceState(RuntimeState[R], Generic[R]):
    """A runtime with a service of its own, which policies may name.

    Args:
        unit: the runtime's service.
        restart: ``systemd`` has the unit read its files when its effective configuration changes, rolls them back when
            it does not come up, and starts it where it is stopped; ``none`` leaves the service alone. A disabled
            one is enabled and started, unless another runtime is enabled or runs.
    """

    unit: ServiceName
    restart: Literal["systemd", "none"] = "systemd"

    @property
    def supervised(self) -> bool:
        return self.restart == "systemd"

    def service(self, observed: R) -> str:
        return self.unit

    def refuse(self, observed: R) -> str | None:
        usual = type(self).model_fields["unit"].default
        if not self.absent and (unknown := no_service(observed.found, self.unit, usual)):
            return unknown
        return super().refuse(observed)


def bundled_problems(
    cri: CriStatus | None, handler: str, file_problems: tuple[str, ...]
) -> tuple[str, ...]:
    """What a distribution's containerd lacks: in its files, else in the running process.

    Args:
        cri: what the process says; ``None`` where it was not asked.
        handler: the handler.
        file_problems: what it lacks in the files.
    """
    if cri is None or file_problems or not (unserved := cri.missing_handler(handler)):
        return file_problems
    return (f"the running containerd has {unserved}",)
