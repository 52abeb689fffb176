"""containerd offers the NVIDIA runtime handler, and everything else in its configuration stays.

What to write is worked out in :mod:`gpustate.formats.containerd`: a drop-in that is wholly ours where
containerd merges key by key, marked lines in the file that has the last word where it does not. Here
it is brought to a node: the containerd binary itself is asked what it makes of the new files before
anything restarts, the service restarts once and only when that differs from what it runs with, and
the old bytes come back when it does not come up, or when its CRI plugin does not.

Surprising: systemd is never told to reload its units. That would make it write the device cgroups
of running containers anew, without the GPUs that a hook has put there.

``config dump`` speaks of files, not of the process. That a restart is owed is known from a note on
tmpfs that is older than the first changed byte; and where somebody else registered the handler, from
a file that is newer than the service.

Sources:
    containerd, docs/man/containerd-config.toml.5.md, docs/cri/config.md.
    NVIDIA/nvidia-container-toolkit#48, discussion #1133: NVML unknown after a daemon-reload.
    NVIDIA/gpu-operator#594: restarts of containerd with unchanged files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gpustate import (
    Change,
    Conflict,
    Disruption,
    GpustateError,
    Node,
    NodeFacts,
    Plan,
    ProbeError,
    State,
    Step,
    ops,
)
from gpustate.core.planned import PlannedObservation
from gpustate.core.required_programs import HandlerName
from gpustate.core.state import AnyState
from gpustate.errors import RefusedError
from gpustate.formats import toml_scan
from gpustate.formats.containerd import (
    Edit,
    Files,
    Handler,
    deciding_runtime,
    effective,
    handler_problems,
    is_imported,
    marks,
    plan_edit,
    plan_removal,
)
from gpustate.ops.daemon_seen import (
    RUNNING,
    and_kept,
    digest,
    no_service,
    or_refusal,
    plain_files,
    silent,
    stopped,
)
from gpustate.ops.daemons import (
    RUNTIME,
    left_kept,
    missing_programs,
    missing_runtime,
    require,
    start,
    writes,
)
from gpustate.states.containerd import scripts
from gpustate.states.containerd.query import DROP_IN, ContainerdQuery, Found
from gpustate.states.containerd.reading import (
    address,
    disabled_by,
    dump_without_imports,
    elsewhere,
    imports,
    masked,
    named,
    unreadable,
)

UNIT = "containerd.service"
_ABSOLUTE = r"^/[A-Za-z0-9_./+@:-]+$"
_NO_CRI = (
    "containerd does not serve Kubernetes here: disabled_plugins lists {name}, Docker's package "
    "default; nothing to do (to run pods, remove it from {root} and restart containerd)"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """The files, what containerd makes of them, and whether the service has read them.

    Args:
        digest: of root file, drop-ins and their paths.
        lacks: what the handler lacks in containerd's effective configuration.
        read: the service has read the configuration on disk; true where it does not run.
        running: the service runs, or nobody wants it to.
        version: of the containerd binary; empty where there is none.
        root_path: the file it reads.
        files: path to text, of that file and of all that it might import.
        originals: path to text as it was before gpustate; ``None`` for no file.
        kept: files of which a removal would leave bytes from before it kept.
        links: files that are symbolic links, to what they lead to.
        dump: its effective configuration.
        trapped: an imported file is newer than the root, so containerd does not do what they say.
        problem: why all this cannot be judged.
        dead: why no pod can start with the running process; empty where one can.
        disabled: the entry of ``disabled_plugins`` by which it serves no CRI at all.
        missing_programs: programs of the handler that do not exist.
        program, active, enabled, halted, starting_s, started_with, owed: see :class:`Found`.
    """

    digest: str = ""
    lacks: tuple[str, ...] = ()
    read: bool = True
    running: bool = True
    version: str = ""
    root_path: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    originals: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    kept: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    dump: str = ""
    trapped: bool = False
    problem: str = ""
    dead: str = ""
    disabled: str = ""
    program: str = ""
    active: str = ""
    enabled: str = ""
    halted: str = ""
    starting_s: int = 0
    started_with: str = ""
    owed: bool = False
    missing_programs: tuple[str, ...] = ()


class ContainerdHandlerRegistered(State[Observed]):
    """containerd serves the NVIDIA runtime handler, and its other settings are what they were.

    On a node without containerd there is nothing to do.

    Args:
        handler: its name, which a RuntimeClass refers to.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no handler get this one.
        enable_cdi: whether containerd injects CDI devices, where its version knows them; ``None``
            leaves that as it is.
        config_path: containerd's configuration file; by default the one its unit names.
        drop_in_path: the file that is wholly ours; by default ``conf.d/99-nvidia.toml`` beside
            ``config_path``. It is not used where containerd would not merge it (before 2.0).
        unit: containerd's service.
        socket: where it answers; by default the one its configuration names.
        restart: ``systemd`` restarts the unit when its effective configuration changes and rolls the
            files back when it does not come up, and starts it where it is enabled and stopped; ``none``
            leaves that to somebody else.

    Disruption:
        ``RESTART`` of containerd when its effective configuration changes; containers go on.

    Raises:
        RefusedError: the files cannot be edited without touching what is not ours, or containerd
            would not do what they say.
        StepFailed: containerd cannot read the new files, or does not come up with them.
    """

    name: ClassVar[str] = "containerd"
    supported_runtime: ClassVar[str] = "containerd 1.6, 1.7 and 2"
    needs: ClassVar[tuple[str, ...]] = ("preflight", "container-toolkit")
    worst: ClassVar[Disruption] = Disruption.RESTART
    # Files may have passwords of registries in them, so a saved plan has their digest.
    stable: ClassVar[tuple[str, ...] | None] = (
        *("digest", "lacks", "read", "running", "version", "root_path"),
    )

    handler: HandlerName = "nvidia"
    binary: Annotated[str, Field(pattern=_ABSOLUTE)] = RUNTIME
    default: bool = False
    enable_cdi: bool | None = True
    config_path: Annotated[str | None, Field(pattern=_ABSOLUTE)] = None
    drop_in_path: Annotated[str | None, Field(pattern=_ABSOLUTE)] = None
    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9@_.:-]+\.service$")] = UNIT
    socket: Annotated[str | None, Field(pattern=_ABSOLUTE)] = None
    restart: Literal["systemd", "none"] = "systemd"

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        return {"containerd": planned.now("version") or None}

    def conflicts(
        self, policy: Mapping[str, AnyState], facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        if observed is not None and not self.absent:
            missing, registered = observed.missing_programs, bool(observed.program)
            yield from missing_runtime(self.binary, missing, policy, registered=registered)

    def probe(self, node: Node) -> Observed:
        missing = () if self.absent else missing_programs(node, self.binary)
        found = node.query(ContainerdQuery(self.unit, self.drop_in_path, self.socket))
        files = dict(found.files)
        lacks: tuple[str, ...] = ()
        disabled = ""
        try:
            for pattern in elsewhere(files, found.started_with):
                files |= node.read_texts(pattern)
            trapped = self._trapped(files, found.started_with)
            dump = found.dump
            if trapped and found.program:
                dump = node.shell(dump_without_imports(found)).stdout
            disabled = disabled_by(dump)
            if found.program and not self.absent and not disabled:
                lacks = self._lacks(files, found, dump)
            problem = unreadable(files)
        except GpustateError as error:
            trapped, dump, problem = False, found.dump, str(error)
            if not dump and found.error:
                problem = f"containerd cannot read its configuration: {found.error}; fix it first"
        observed = Observed(
            digest=digest(files),
            lacks=lacks,
            read=bool(disabled) or self._read(found, files),
            running=self.absent or not stopped(found, self.restart),
            version=found.version,
            root_path=found.started_with,
            files=files,
            originals=found.originals,
            links=found.links,
            dump=dump,
            trapped=trapped,
            problem=problem,
            dead="" if disabled or self.absent else self._dead(found, dump),
            disabled=disabled,
            program=found.program,
            active=found.active,
            enabled=found.enabled,
            halted=found.halted,
            starting_s=found.starting_s,
            started_with=found.started_with,
            owed=found.owed,
            missing_programs=missing,
        )
        return replace(observed, kept=self._kept(observed))

    def _kept(self, observed: Observed) -> tuple[str, ...]:
        try:
            return left_kept(self._edit(observed).files, observed.originals) if self.absent else ()
        except GpustateError:
            return ()

    # --- judging what was seen -------------------------------------------------------------

    def _wanted(self) -> Handler:
        return Handler(self.handler, self.binary, self.default, self.enable_cdi)

    def _drop_in(self, root_path: str) -> str:
        return self.drop_in_path or posixpath.join(posixpath.dirname(root_path), DROP_IN)

    def _files(self, files: Mapping[str, str], root_path: str) -> Files:
        """What containerd loads of what there is, in its order."""
        drop_in = self._drop_in(root_path)
        imported: dict[str, str] = {}
        for entry in imports(files, root_path):
            for path in sorted(files):
                if path != root_path and is_imported([entry], root_path, path):
                    imported.setdefault(path, files[path])
        loose = None if drop_in in imported else files.get(drop_in)
        return Files(files.get(root_path), imported, root_path, drop_in, loose)

    def _trapped(self, files: Mapping[str, str], root_path: str) -> bool:
        loaded = self._files(files, root_path)
        root = toml_scan.parse(loaded.root_text or "", root_path)
        versions = [
            toml_scan.parse(text, path).get("version", 1) for path, text in loaded.imported.items()
        ]
        return bool(root) and any(version > root.get("version", 1) for version in versions)

    def _lacks(self, files: Mapping[str, str], found: Found, dump: str) -> tuple[str, ...]:
        wanted = self._wanted()
        low_level = deciding_runtime(
            self._files(files, found.started_with),
            wanted,
            containerd_version=found.version,
            dump_text=dump,
        )
        return handler_problems(effective(dump), wanted, low_level=low_level)

    def _dead(self, found: Found, dump: str) -> str:
        """By the process itself, where it was asked at the socket that it has."""
        if found.cri is None or found.cri.socket != (self.socket or address(dump)):
            return ""
        return found.cri.dead("containerd")

    def _read(self, found: Found, files: Mapping[str, str]) -> bool:
        if self.restart == "none" or found.active not in RUNNING:
            return True
        if found.owed:
            return False
        if self.absent or found.active != "active":
            return True
        if found.cri is not None and found.cri.outcome == "ok" and found.cri.handlers:
            return not found.cri.lacks(self.handler) or self.handler not in named(found.dump)
        if found.cri is not None and found.cri.outcome == "unserved":
            return not found.newer
        return found.served or not any(self.handler in files.get(path, "") for path in found.newer)

    def _edit(self, observed: Observed) -> Edit:
        return plain_files(self._edited(observed), observed.links)

    def _edited(self, observed: Observed) -> Edit:
        files = self._files(observed.files, observed.root_path)
        if self.absent:
            return plan_removal(
                files,
                self._wanted(),
                originals=observed.originals,
                containerd_version=observed.version,
            )
        if not observed.program:
            return Edit({}, ("containerd is not installed here: nothing to do",))
        if observed.problem:
            raise ProbeError(observed.problem)
        if observed.disabled:
            return Edit({}, (_NO_CRI.format(name=observed.disabled, root=observed.root_path),))
        edit = plan_edit(
            files, self._wanted(), containerd_version=observed.version, dump_text=observed.dump
        )
        # Who adds a comment does not ask for a restart.
        return Edit({}, edit.notes) if not observed.lacks and self._idle(edit, observed) else edit

    def _idle(self, edit: Edit, observed: Observed) -> bool:
        pattern = marks.import_pattern(self._drop_in(observed.root_path))
        return all(
            text is not None
            and (now := observed.files.get(path)) is not None
            and marks.same(now, text, path, pattern=pattern, name=self.handler)
            for path, text in edit.files.items()
        )

    def _restarts(self, observed: Observed) -> bool:
        runs = observed.active in RUNNING or not observed.running
        return self.restart == "systemd" and bool(observed.program) and runs

    # --- the contract ----------------------------------------------------------------------

    def desired(self, observed: Observed) -> Observed:
        try:
            edit = self._edit(observed)
        except GpustateError:
            return observed
        files = dict(observed.files)
        for path, text in edit.files.items():
            if text is None:
                files.pop(path, None)
            else:
                files[path] = text
        settled = replace(
            observed, lacks=(), read=True, running=True, trapped=False, owed=False, dead=""
        )
        return replace(settled, digest=digest(files), files=files, kept=())

    def refuse(self, observed: Observed) -> str | None:
        if not self.absent and (unknown := no_service(observed, self.unit, UNIT)) is not None:
            return unknown
        if (mute := silent(observed, self.unit, self.restart)) is not None:
            return mute
        if self.config_path not in (None, observed.started_with):
            return (
                f"{self.unit} reads {observed.started_with}, the policy has {self.config_path}; "
                "remove config_path from the policy, or change the unit"
            )
        if not posixpath.isabs(observed.started_with or "/"):
            return f"{self.unit} names its file {observed.started_with!r}: write an absolute path there"
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError) as error:
            return and_kept(str(error), observed.originals)
        if observed.dead and (reason := self._beyond_repair(observed, edit)):
            return and_kept(reason, observed.originals)
        if observed.lacks and not edit.files and not self.absent:
            return (
                f"the files match the policy, but containerd reports: {'; '.join(observed.lacks)}; "
                "see containerd config dump"
            )
        return None

    def _beyond_repair(self, observed: Observed, edit: Edit) -> str:
        """Why what is to be done here does not bring a dead CRI back; empty where it may."""
        if not observed.read or self.absent:
            return ""
        if edit.files and (now := effective(observed.dump)).default_runtime not in now.runtimes:
            return ""  # a default runtime that is not there comes with the edit
        return f"{observed.dead}; fix that in {observed.root_path} first, and restart {self.unit}"

    def plan(self, observed: Observed) -> Plan:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError):
            return Plan()
        restarts = self._restarts(observed)
        cost = Disruption.RESTART if restarts else Disruption.NONE
        changes = [
            Change(
                "files", masked(observed.files.get(path)), masked(text), cost, edit.why, path=path
            )
            for path, text in edit.files.items()
        ]
        if observed.kept:
            changes.append(Change("kept", list(observed.kept), []))
        if observed.lacks:
            changes.append(Change("lacks", list(observed.lacks), [], cost))
        if not observed.read:
            why = "its new configuration is not loaded yet"
            changes.append(Change("read", False, True, Disruption.RESTART, why))
        if not observed.running:
            changes.append(Change("running", False, True, why=f"{self.unit} should be running"))
        notes = [*edit.notes, *([observed.dead] if observed.dead else [])]
        if edit.files and not restarts and observed.program:
            notes.append(f"{self.unit} is not restarted: it reads the files when it starts")
        return Plan(tuple(changes), tuple(notes))

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "running" in plan.fields:
            yield from start(self.unit, observed.active, changes=len(plan.fields) > 1)
        if plan.fields & {"files", "read"}:
            yield from self._write(observed, plan)
        if "kept" in plan.fields:
            yield from (ops.ForgetOriginal(path) for path in observed.kept)

    def _write(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        edit = self._edit(observed) if "files" in plan.fields else Edit({})
        if not self.absent and edit.files:
            yield require(self.binary)
        if not observed.program:
            yield from self._writes(edit, observed)
            return
        daemon = self._target(observed).daemon()
        yield daemon.remember(edit.files, unread=not observed.read and not observed.owed)
        yield from self._writes(edit, observed)
        ours = (observed.root_path, self._drop_in(observed.root_path))
        paths = tuple(dict.fromkeys((*edit.files, *ours)))
        yield daemon.prove(paths, present=not self.absent, compare=not observed.trapped)
        if self._restarts(observed):
            yield daemon.restart(paths, present=not self.absent)
        else:
            yield daemon.settle(present=not self.absent)

    def _writes(self, edit: Edit, observed: Observed) -> Iterator[Step]:
        # The drop-in before the import of it.
        yield from writes(dict(reversed(list(edit.files.items()))), observed.originals)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent and self.restart == "systemd" and observed.program:
            yield self._target(observed).daemon().first_start()

    def verify(self, observed: Observed) -> Plan:
        return or_refusal(self.plan(observed), self.refuse(observed))

    def _target(self, observed: Observed) -> scripts.Target:
        try:
            now = effective(observed.dump)
            own_default = self.default or now.default_runtime == self.handler
            own_runc = "runc" not in now.runtimes
        except ProbeError:
            own_default, own_runc = True, False
        return scripts.Target(
            program=observed.program,
            version=observed.version,
            root_path=observed.root_path,
            socket=self.socket or address(observed.dump),
            handler=self.handler,
            binary=self.binary,
            own_default=own_default,
            own_runc=own_runc,
            unit=self.unit,
        )
