"""CRI-O serves the NVIDIA runtime handler, from a drop-in that is wholly ours.

What to write is worked out in :mod:`gpustate.formats.crio`. Here it is brought to a node: ``crio config`` is
asked what it makes of the new file before anything restarts, the service restarts once and only when that
differs from what it runs with, and the old bytes come back when it does not come up.

CRI-O knows CDI on its own, always. So there are two ways to a GPU: a container that names CDI devices
(native), and one that runs under the handler. The third, a hook that CRI-O calls for every container
(``oci-nvidia-hook.json``), injects devices that runc does not know of; the state ``podman`` finds it.

Surprising: CRI-O's own packages keep runc and crun in /usr/libexec/crio, where NVIDIA's runtime does not
look. The handler is then there, and every container of it fails: that is refused, with the setting that
fixes it.

Sources:
    cri-o/cri-o: crio(8), crio.conf(5), crio.conf.d(5), pkg/config. No package of CRI-O was at hand to try
    it with: the tests run a stand-in that reads its files by the rules of that source, and have what the
    source of 1.34 prints.
    NVIDIA/nvidia-container-toolkit: cmd/nvidia-ctk-installer/container/runtime/crio (systemctl restart).
"""

from __future__ import annotations

import posixpath
import shlex
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
from gpustate.core.required_programs import HandlerName
from gpustate.core.state import AnyState
from gpustate.errors import RefusedError
from gpustate.formats import crio
from gpustate.formats.containerd import Edit, Handler
from gpustate.formats.toml_scan import parse
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
    Daemon,
    missing_programs,
    missing_runtime,
    require,
    start,
    writes,
)
from gpustate.states.crio.query import CrioQuery, Found, low_level_function

UNIT = "crio.service"
_NO_LOW_LEVEL = (
    "NVIDIA's runtime finds none of the runtimes it wraps on its PATH: set "
    "nvidia-container-runtime.runtimes in the config of container-toolkit, such as "
    "[/usr/libexec/crio/crun]"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """The files, what CRI-O makes of them, and whether the service has read them.

    Args:
        digest: of main file, drop-ins and their paths.
        files: path to text of these.
        lacks: what the handler lacks in what CRI-O makes of its files.
        read: the service has read what is on disk; true where it does not run.
        version: of the crio program; empty where there is none.
        found: all that the node said.
        problem: why all this cannot be judged.
        dead: why no pod can start with the running process; empty where one can.
        missing_programs: programs of the handler that do not exist.
    """

    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    lacks: tuple[str, ...] = ()
    read: bool = True
    running: bool = True
    version: str = ""
    found: Found = field(default_factory=Found)
    problem: str = ""
    dead: str = ""
    missing_programs: tuple[str, ...] = ()


class CrioHandlerRegistered(State[Observed]):
    """CRI-O serves the NVIDIA runtime handler, and its other settings are what they were.

    On a node without CRI-O there is nothing to do.

    Args:
        handler: its name, which a RuntimeClass refers to.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no handler get this one.
        drop_in_name: name of the file in CRI-O's drop-in folder that is wholly ours.
        unit: CRI-O's service.
        socket: where it answers.
        restart: ``systemd`` restarts the unit when its effective configuration changes and rolls the
            file back when it does not come up, and starts it where it is enabled and stopped; ``none``
            leaves that to somebody else.

    Disruption:
        ``RESTART`` of CRI-O when its effective configuration changes; containers go on.

    Raises:
        RefusedError: a file that is read after ours undoes it, or CRI-O would not start.
        StepFailed: CRI-O cannot read the new file, or does not come up with it.
    """

    name: ClassVar[str] = "crio"
    supported_runtime: ClassVar[str] = "CRI-O"
    needs: ClassVar[tuple[str, ...]] = ("preflight", "container-toolkit")
    worst: ClassVar[Disruption] = Disruption.RESTART
    stable: ClassVar[tuple[str, ...] | None] = ("digest", "lacks", "read", "running", "version")

    handler: HandlerName = "nvidia"
    binary: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@:-]+$")] = RUNTIME
    default: bool = False
    drop_in_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] = (
        crio.DROP_IN_NAME
    )
    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9@_.:-]+\.service$")] = UNIT
    socket: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@:-]+$")] = "/var/run/crio/crio.sock"
    restart: Literal["systemd", "none"] = "systemd"

    def conflicts(
        self, policy: Mapping[str, AnyState], facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        if observed is not None and not self.absent:
            missing, registered = observed.missing_programs, bool(observed.found.program)
            yield from missing_runtime(self.binary, missing, policy, registered=registered)

    def probe(self, node: Node) -> Observed:
        missing = () if self.absent else missing_programs(node, self.binary)
        found = node.query(CrioQuery(self.unit, self.drop_in_name, self.socket))
        lacks: tuple[str, ...] = ()
        problem = ""
        if found.program and not self.absent:
            try:
                lacks = crio.handler_problems(parse(found.dump, "crio config"), self._handler())
            except GpustateError as error:
                problem = str(error)
            if found.error and not found.dump:
                problem = f"CRI-O cannot read its configuration: {found.error}; fix it first"
        files = self._files(found)
        if files.damaged:
            problem, lacks = "", lacks or (f"{files.drop_in_path} is damaged",)
        torn = [path for path, text in found.files.items() if "\ufffd" in text]
        if torn and not (files.ours and torn == [files.drop_in_path]):
            problem = f"{torn[0]} is not UTF-8, which TOML requires; fix it first"
        return Observed(
            digest=digest(found.files),
            files=found.files,
            lacks=lacks,
            read=self._read(found),
            running=self.absent or not stopped(found, self.restart),
            version=found.version,
            found=found,
            problem=problem,
            dead="" if self.absent or found.cri is None else found.cri.dead("CRI-O"),
            missing_programs=missing,
        )

    # --- judging what was seen -------------------------------------------------------------

    def _handler(self) -> Handler:
        return Handler(self.handler, self.binary, self.default)

    def _files(self, found: Found) -> crio.Files:
        order = crio.in_order(list(found.files), found.main_path)
        drop_in = posixpath.join(found.folder, self.drop_in_name)
        texts = {path: found.files[path] for path in order}
        made = drop_in in found.originals and found.originals[drop_in] is None
        return crio.Files(texts, drop_in, found.main_path, made)

    def _read(self, found: Found) -> bool:
        if self.restart == "none" or found.active not in RUNNING:
            return True
        if found.owed:
            return False
        if self.absent or found.active != "active":
            return True
        if (
            found.cri is not None
            and found.cri.handlers
            and f"runtimes.{self.handler}]" in found.dump
        ):
            return not found.cri.lacks(self.handler)
        if found.served:
            return True
        return not any(self.handler in found.files.get(path, "") for path in found.newer)

    def _edit(self, observed: Observed) -> Edit:
        return plain_files(self._edited(observed), observed.found.links)

    def _edited(self, observed: Observed) -> Edit:
        files = self._files(observed.found)
        if self.absent:
            return crio.plan_removal(files, self._handler())
        if not observed.found.program:
            return Edit({}, ("CRI-O is not installed here: nothing to do",))
        if observed.problem:
            raise ProbeError(observed.problem)
        return crio.plan_edit(files, self._handler())

    def _restarts(self, observed: Observed) -> bool:
        runs = observed.found.active in RUNNING or not observed.running
        return self.restart == "systemd" and bool(observed.found.program) and runs

    # --- the contract ----------------------------------------------------------------------

    def desired(self, observed: Observed) -> Observed:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError):
            return observed
        files = {p: t for p, t in {**observed.found.files, **edit.files}.items() if t is not None}
        found = replace(observed.found, files=files, owed=False, newer=())
        settled = replace(observed, lacks=(), read=True, running=True, found=found, dead="")
        return replace(settled, digest=digest(files), files=files)

    def refuse(self, observed: Observed) -> str | None:
        if not self.absent and (unknown := no_service(observed.found, self.unit, UNIT)) is not None:
            return unknown
        if (mute := silent(observed.found, self.unit, self.restart)) is not None:
            return mute
        for path in (observed.found.main_path, observed.found.folder):
            if not path.startswith("/"):
                return f"{self.unit} names {path!r}: write an absolute path there"
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError) as error:
            return and_kept(str(error), observed.found.originals)
        if observed.dead and observed.read and not edit.files:
            return f"{observed.dead}; journalctl -u {self.unit} has more: fix that, and restart it"
        if observed.lacks and not edit.files and not self.absent and observed.found.program:
            return (
                f"the files match the policy, but CRI-O reports: {'; '.join(observed.lacks)}; "
                "see crio config"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError):
            return Plan()
        restarts = self._restarts(observed)
        cost = Disruption.RESTART if restarts else Disruption.NONE
        changes = [
            Change("files", observed.found.files.get(path), text, cost, edit.why, path=path)
            for path, text in edit.files.items()
        ]
        if observed.lacks:
            changes.append(Change("lacks", list(observed.lacks), [], cost))
        if not observed.read:
            why = "its new configuration is not loaded yet"
            changes.append(Change("read", False, True, Disruption.RESTART, why))
        if not observed.running:
            changes.append(Change("running", False, True, why=f"{self.unit} should be running"))
        notes = list(edit.notes)
        if edit.files and not restarts and observed.found.program:
            notes.append(f"{self.unit} is not restarted: it reads the files when it starts")
        if not self.absent and observed.found.program:
            notes += [f"CRI-O does not read {path}: remove it" for path in observed.found.unread]
        return Plan(tuple(changes), tuple(notes))

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "running" in plan.fields:
            yield from start(self.unit, observed.found.active, changes=len(plan.fields) > 1)
        if not plan.fields & {"files", "read"}:
            return
        edit = self._edit(observed) if "files" in plan.fields else Edit({})
        if not self.absent and edit.files:
            yield require(self.binary)
            yield ops.Run(
                f'{low_level_function()}[ -n "$(low_level)" ] || fail {shlex.quote(_NO_LOW_LEVEL)}',
                "check for a low-level runtime to wrap",
                30,
            )
        if not observed.found.program:
            yield from writes(edit.files, observed.found.originals)
            return
        daemon = self._daemon(observed)
        yield daemon.remember(edit.files, unread=not observed.read and not observed.found.owed)
        yield from writes(edit.files, observed.found.originals)
        paths = tuple(dict.fromkeys((*edit.files, self._files(observed.found).drop_in_path)))
        yield daemon.prove(paths, present=not self.absent, compare=True)
        if self._restarts(observed):
            yield daemon.restart(paths, present=not self.absent)
        else:
            yield daemon.settle(present=not self.absent)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent and self.restart == "systemd" and observed.found.program:
            yield self._daemon(observed).first_start()

    def verify(self, observed: Observed) -> Plan:
        return or_refusal(self.plan(observed), self.refuse(observed))

    def _daemon(self, observed: Observed) -> Daemon:
        files = self._files(observed.found)
        texts = files.others() if files.damaged else files.texts
        says = crio.merge(texts) if not observed.problem else {}
        default = says.get("crio", {}).get("runtime", {}).get("default_runtime")
        own = self.default or default == self.handler
        functions = _FUNCTIONS.format(
            program=shlex.quote(observed.found.program),
            main=shlex.quote(observed.found.main_path),
            folder=shlex.quote(observed.found.folder),
            handler=self.handler,
            binary=shlex.quote(self.binary),
            own_default="default_runtime = " if own else "-",
            socket=shlex.quote(self.socket),
        )
        return Daemon("crio", self.unit, functions)


_FUNCTIONS = r"""
dump() {{
  set --; [ -e {main} ] && set -- --config {main}
  timeout -k 2 20 {program} "$@" --config-dir {folder} config
}}
others() {{ # a dump on standard input, a line for each value that is not ours
  t=
  while IFS= read -r l; do
    l=${{l#"${{l%%[! ]*}}"}}
    # What has its default value is a comment; all runtimes are, or none, so ours uncomments the built-in one.
    case $l in '# ['*|'# '*' = '*) l=${{l#'# '}} ;; '# '*\",) l=${{l#'# '}} ;; esac
    case $l in '['[a-z]*) t=$l; continue ;; ''|'#'*|']') continue ;; esac
    case ${{l%%' = '*}} in *[!a-z0-9_]*) case $l in *\",) ;; *) continue ;; esac ;; esac
    case $t in '[crio.runtime.runtimes.{handler}]') continue ;; esac
    case $l in '{own_default}'*) [ "$t" = '[crio.runtime]' ] && continue ;; esac
    printf '%s %s\n' "$t" "$l"
  done
}}
serves() {{
  t=; b={binary}
  while IFS= read -r l; do
    l=${{l#"${{l%%[! ]*}}"}}
    case $l in
      '['*) t=$l ;;
      "runtime_path = \"$b\"") [ "$t" = '[crio.runtime.runtimes.{handler}]' ] && return 0 ;;
    esac
  done
  return 1
}}
working() {{
  [ -S {socket} ] || return 1
  if timeout -k 2 5 {program} status --help >/dev/null 2>&1; then
    timeout -k 2 5 {program} status --socket {socket} info >/dev/null 2>&1 || return 1
  fi
  echo 'crio ok'
}}
"""
