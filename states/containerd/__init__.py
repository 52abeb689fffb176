"""containerd offers the NVIDIA runtime handler, and everything else in its configuration stays.

What to write is worked out in :mod:`gpustate.text.containerd`: a drop-in that is wholly ours where
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

import base64
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gpustate import Change, Disruption, GpustateError, Node, Plan, ProbeError, State, Step, ops
from gpustate.errors import RefusedError
from gpustate.model.programs import HandlerName
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
from gpustate.ops.daemons import RUNTIME, left_kept, require, runtime_from, start, writes
from gpustate.states.containerd import scripts
from gpustate.states.containerd.ask import DROP_IN, AskContainerd, Found
from gpustate.text import toml_scan
from gpustate.text.containerd import (
    Edit,
    Effective,
    Files,
    Handler,
    dump_arguments,
    effective,
    handler_problems,
    is_imported,
    marks,
    plan_edit,
    plan_removal,
)

UNIT = "containerd.service"
_ABSOLUTE = r"^/[A-Za-z0-9_./+@:-]+$"
_PATTERN = re.compile(r"/[A-Za-z0-9_./*?\[\]+@:-]+")
_SECRET = re.compile(r"(?mi)^(\s*(?:password|auth|[a-z_-]*token|authorization)\s*=\s*).*$")


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
    program: str = ""
    active: str = ""
    enabled: str = ""
    halted: str = ""
    starting_s: int = 0
    started_with: str = ""
    owed: bool = False


class ContainerdHandler(State[Observed]):
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

    @property
    def uses(self) -> dict[str, str]:
        return runtime_from(self.binary)

    def refers(self, seen: Observed) -> bool:
        return bool(seen.program)

    def probe(self, node: Node) -> Observed:
        found = node.ask(AskContainerd(self.unit, self.drop_in_path))
        files = dict(found.files)
        try:
            for pattern in _elsewhere(files, found.started_with):
                files |= node.read_texts(pattern)
            trapped = self._trapped(files, found.started_with)
            dump = found.dump
            if trapped and found.program:
                dump = node.shell(_dump_without_imports(found)).stdout
            lacks = self._lacks(effective(dump)) if found.program and not self.absent else ()
            problem = _unreadable(files)
        except GpustateError as error:
            trapped, dump, lacks, problem = False, found.dump, (), str(error)
            if not dump and found.error:
                problem = (
                    f"containerd cannot read its configuration: {found.error}; repair it first"
                )
        seen = Observed(
            digest=digest(files),
            lacks=lacks,
            read=self._read(found, files),
            running=self.absent or not stopped(found, self.restart),
            version=found.version,
            root_path=found.started_with,
            files=files,
            originals=found.originals,
            links=found.links,
            dump=dump,
            trapped=trapped,
            problem=problem,
            program=found.program,
            active=found.active,
            enabled=found.enabled,
            halted=found.halted,
            starting_s=found.starting_s,
            started_with=found.started_with,
            owed=found.owed,
        )
        return replace(seen, kept=self._kept(seen))

    def _kept(self, seen: Observed) -> tuple[str, ...]:
        try:
            return left_kept(self._edit(seen).files, seen.originals) if self.absent else ()
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
        for entry in _imports(files, root_path):
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

    def _lacks(self, now: Effective) -> tuple[str, ...]:
        """The handler's settings come from one of the others; it is not known from which."""
        models = [name for name in now.runtimes if not name.startswith("nvidia")] or ["runc"]
        models = [name for name in models if name != self.handler] or ["runc"]
        found = [handler_problems(now, self._wanted(), low_level=name) for name in models]
        return min(found, key=len)

    def _read(self, found: Found, files: Mapping[str, str]) -> bool:
        if self.restart == "none" or found.active not in RUNNING:
            return True
        if found.owed:
            return False
        if self.absent or found.served or found.active != "active":
            return True
        return not any(self.handler in files.get(path, "") for path in found.newer)

    def _edit(self, seen: Observed) -> Edit:
        return plain_files(self._edited(seen), seen.links)

    def _edited(self, seen: Observed) -> Edit:
        files = self._files(seen.files, seen.root_path)
        if self.absent:
            return plan_removal(files, self._wanted(), originals=seen.originals)
        if not seen.program:
            return Edit({}, ("containerd is not installed here: nothing to do",))
        if seen.problem:
            raise ProbeError(seen.problem)
        edit = plan_edit(
            files, self._wanted(), containerd_version=seen.version, dump_text=seen.dump
        )
        # Who adds a comment does not ask for a restart.
        return Edit({}, edit.notes) if not seen.lacks and self._idle(edit, seen) else edit

    def _idle(self, edit: Edit, seen: Observed) -> bool:
        pattern = marks.import_pattern(self._drop_in(seen.root_path))
        return all(
            text is not None
            and (now := seen.files.get(path)) is not None
            and marks.same(now, text, path, pattern=pattern, name=self.handler)
            for path, text in edit.files.items()
        )

    def _restarts(self, seen: Observed) -> bool:
        runs = seen.active in RUNNING or not seen.running
        return self.restart == "systemd" and bool(seen.program) and runs

    # --- the contract ----------------------------------------------------------------------

    def desired(self, seen: Observed) -> Observed:
        try:
            edit = self._edit(seen)
        except GpustateError:
            return seen
        files = dict(seen.files)
        for path, text in edit.files.items():
            if text is None:
                files.pop(path, None)
            else:
                files[path] = text
        settled = replace(seen, lacks=(), read=True, running=True, trapped=False, owed=False)
        return replace(settled, digest=digest(files), files=files, kept=())

    def refuse(self, seen: Observed) -> str | None:
        if not self.absent and (unknown := no_service(seen, self.unit, UNIT)) is not None:
            return unknown
        if (mute := silent(seen, self.unit, self.restart)) is not None:
            return mute
        if self.config_path not in (None, seen.started_with):
            return (
                f"{self.unit} reads {seen.started_with}, the policy says {self.config_path}: "
                "take config_path out of the policy, or change the unit"
            )
        if not posixpath.isabs(seen.started_with or "/"):
            return f"{self.unit} names its file {seen.started_with!r}: write an absolute path there"
        try:
            edit = self._edit(seen)
        except (ProbeError, RefusedError) as error:
            return and_kept(str(error), seen.originals)
        if seen.lacks and not edit.files and not self.absent:
            return (
                f"the files are as they should be, and containerd says: {'; '.join(seen.lacks)}; "
                "see containerd config dump"
            )
        return None

    def plan(self, seen: Observed) -> Plan:
        try:
            edit = self._edit(seen)
        except (ProbeError, RefusedError):
            return Plan()
        restarts = self._restarts(seen)
        cost = Disruption.RESTART if restarts else Disruption.NONE
        changes = [
            Change("files", _masked(seen.files.get(path)), _masked(text), cost, edit.why, path=path)
            for path, text in edit.files.items()
        ]
        if seen.kept:
            changes.append(Change("kept", list(seen.kept), []))
        if seen.lacks:
            changes.append(Change("lacks", list(seen.lacks), [], cost))
        if not seen.read:
            why = "it has yet to read its configuration"
            changes.append(Change("read", False, True, Disruption.RESTART, why))
        if not seen.running:
            changes.append(Change("running", False, True, why=f"{self.unit} is to run"))
        notes = list(edit.notes)
        if edit.files and not restarts and seen.program:
            notes.append(f"{self.unit} is not restarted: it reads the files when it starts")
        return Plan(tuple(changes), tuple(notes))

    def apply(self, seen: Observed, plan: Plan) -> Iterator[Step]:
        if "running" in plan.fields:
            yield from start(self.unit, seen.active, changes=len(plan.fields) > 1)
        if plan.fields & {"files", "read"}:
            yield from self._write(seen, plan)
        if "kept" in plan.fields:
            yield from (ops.ForgetOriginal(path) for path in seen.kept)

    def _write(self, seen: Observed, plan: Plan) -> Iterator[Step]:
        edit = self._edit(seen) if "files" in plan.fields else Edit({})
        if not self.absent and edit.files:
            yield require(self.binary)
        if not seen.program:
            yield from self._writes(edit, seen)
            return
        daemon = self._target(seen).daemon()
        yield daemon.remember(edit.files, unread=not seen.read and not seen.owed)
        yield from self._writes(edit, seen)
        ours = (seen.root_path, self._drop_in(seen.root_path))
        paths = tuple(dict.fromkeys((*edit.files, *ours)))
        yield daemon.prove(paths, present=not self.absent, compare=not seen.trapped)
        if self._restarts(seen):
            yield daemon.restart(paths, present=not self.absent)
        else:
            yield daemon.settle(present=not self.absent)

    def _writes(self, edit: Edit, seen: Observed) -> Iterator[Step]:
        # The drop-in before the import of it.
        yield from writes(dict(reversed(list(edit.files.items()))), seen.originals)

    def first_boot(self, seen: Observed) -> Iterator[Step]:
        if not self.absent and self.restart == "systemd" and seen.program:
            yield self._target(seen).daemon().first_start()

    def verify(self, seen: Observed) -> Plan:
        return or_refusal(self.plan(seen), self.refuse(seen))

    def _target(self, seen: Observed) -> scripts.Target:
        try:
            now = effective(seen.dump)
            address = now.data.get("grpc", {}).get("address", "")
            own_default = self.default or now.default_runtime == self.handler
        except ProbeError:
            address, own_default = "", True
        return scripts.Target(
            program=seen.program,
            version=seen.version,
            root_path=seen.root_path,
            socket=self.socket or address or "/run/containerd/containerd.sock",
            handler=self.handler,
            binary=self.binary,
            own_default=own_default,
            unit=self.unit,
        )


def _imports(files: Mapping[str, str], root_path: str) -> list[str]:
    imports = toml_scan.parse(files.get(root_path) or "", root_path).get("imports", [])
    if not isinstance(imports, list) or not all(isinstance(entry, str) for entry in imports):
        raise ProbeError("imports is no list of paths", place=root_path, fix="correct it")
    return imports


def _elsewhere(files: Mapping[str, str], root_path: str) -> list[str]:
    """Imports outside of the folders that are read anyway, as shell patterns."""
    folder = posixpath.dirname(root_path)
    read_anyway = {f"{folder}/conf.d/*.toml", f"{folder}/config.d/*.toml", *files}
    found: list[str] = []
    for entry in _imports(files, root_path):
        full = posixpath.normpath(posixpath.join(folder, entry))
        if full in read_anyway:
            continue
        if not _PATTERN.fullmatch(full):
            raise ProbeError(
                f"cannot follow the import {entry!r}", place=root_path, fix="rename it"
            )
        found.append(full)
    return found


def _dump_without_imports(found: Found) -> str:
    """Ask for a dump of the root file alone: with a newer import there is none, or a wrong one."""
    text = found.files.get(found.started_with, "")
    imports = toml_scan.scan(text).find(("imports",))
    if imports is not None:
        text = text[: imports.start] + text[imports.end :]
    encoded = base64.b64encode(text.encode()).decode()
    words = dump_arguments("/dev/stdin", text, found.version)
    line = " ".join(shlex.quote(word) for word in (found.program, *words))
    return f"printf %s {encoded} | base64 -d | timeout -k 2 20 {line}"


def _unreadable(files: Mapping[str, str]) -> str:
    torn = [path for path, text in files.items() if "\ufffd" in text]
    return f"{torn[0]} is not UTF-8, which TOML has to be; repair it first" if torn else ""


def _masked(text: str | None) -> str | None:
    return None if text is None else _SECRET.sub(r'\1"(secret)"', text)
