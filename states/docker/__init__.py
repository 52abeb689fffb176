"""docker offers the NVIDIA runtime, and everything else in its ``daemon.json`` stays.

docker reads one JSON file and merges nothing, so there is no drop-in: keys are set in that file where they
belong, and every other byte stays (:mod:`gpustate.formats.docker`). Other ``features``, which NVIDIA's own
tool loses, are among them.

docker rereads its runtimes on a signal. So a change costs a reload, and no container notices. Only CDI is
looked at once, when the daemon starts: switching it on or off costs a restart, which ends every container
unless ``live-restore`` is on. That is why CDI is left alone unless asked for; NVIDIA's runtime injects
GPUs without it.

Surprising: a daemon that rereads its file leaves alone what the file no longer names, so on removal the
runtime is named away in one reload before the file gets its old bytes back.

Sources:
    moby/moby: daemon/reload_unix.go, daemon/config, cmd/dockerd. Tried with docker 20.10 and 26.1.
    docs.docker.com, "dockerd", "Live restore".
    NVIDIA/nvidia-container-toolkit, pkg/config/engine/docker.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gpustate import (
    Change,
    Conflict,
    Disruption,
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
from gpustate.formats import docker, jsonedit
from gpustate.formats.containerd import Edit, Handler
from gpustate.ops.daemon_seen import (
    RUNNING,
    and_kept,
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
from gpustate.states.docker.query import OURS, DockerQuery, Found

UNIT = "docker.service"
_SECRET = re.compile(r'(?i)("[^"]*(?:password|secret|token|proxy)[^"]*"\s*:\s*)"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Observed:
    """The file, and whether the daemon runs with what it says.

    Args:
        digest: of the file.
        text: the file; ``None`` where there is none.
        ours: keys in it that gpustate has set.
        read: the daemon runs with what the file says of the handler; true where it does not run.
        version: of the daemon; empty where there is none.
        kept: a removal would leave bytes from before it kept.
        found: all that the node said.
        problem: why all this cannot be judged.
        missing_programs: programs of the handler that do not exist.
    """

    digest: str = ""
    text: str | None = None
    ours: tuple[str, ...] = ()
    read: bool = True
    version: str = ""
    running: bool = True
    kept: bool = False
    found: Found = field(default_factory=Found)
    problem: str = ""
    missing_programs: tuple[str, ...] = ()


class DockerRuntimeRegistered(State[Observed]):
    """docker offers the NVIDIA runtime, and its other settings are what they were.

    On a node without docker there is nothing to do.

    Args:
        handler: its name, for ``docker run --runtime``.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no runtime get this one.
        enable_cdi: whether docker injects CDI devices, from 25.0 on; ``None`` leaves that as it is.
        unit: docker's service.
        restart: ``systemd`` has the unit read its file when that changes in effect, and rolls the file
            back when it does not come up, and starts the unit where it is enabled and stopped; ``none``
            leaves that to somebody else.

    Disruption:
        ``RELOAD`` when the runtime comes, changes or goes. ``RESTART`` when CDI is switched and
        ``live-restore`` is on or no container runs, ``DRAIN`` when containers would end with it.

    Raises:
        RefusedError: the file cannot be edited without touching what is not ours, or docker would not
            start with it.
        StepFailed: docker cannot read the new file, or does not run with it.
    """

    name: ClassVar[str] = "docker"
    supported_runtime: ClassVar[str] = "Docker"
    needs: ClassVar[tuple[str, ...]] = ("preflight", "container-toolkit")
    worst: ClassVar[Disruption] = Disruption.DRAIN
    # The file may have passwords of proxies in it, so a saved plan has its digest.
    stable: ClassVar[tuple[str, ...] | None] = ("digest", "read", "running", "version")

    handler: HandlerName = "nvidia"
    binary: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@:-]+$")] = RUNTIME
    default: bool = False
    enable_cdi: bool | None = None
    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9@_.:-]+\.service$")] = UNIT
    restart: Literal["systemd", "none"] = "systemd"

    def conflicts(
        self, policy: Mapping[str, AnyState], facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        if observed is not None and not self.absent:
            missing, registered = observed.missing_programs, bool(observed.found.program)
            yield from missing_runtime(self.binary, missing, policy, registered=registered)

    def probe(self, node: Node) -> Observed:
        missing = () if self.absent else missing_programs(node, self.binary)
        found = node.query(DockerQuery(self.unit))
        problem = ""
        try:
            data = found.file().data
            read = self._read(found, data)
        except ProbeError as error:
            problem, read = str(error), True
        if "\ufffd" in (found.text or ""):
            problem = f"{found.config_path} is not UTF-8, which JSON requires; fix it first"
        observed = Observed(
            digest=hashlib.sha256((found.text or "").encode()).hexdigest()[:16],
            text=found.text,
            ours=found.ours,
            read=read,
            running=self.absent or not stopped(found, self.restart),
            version=found.version,
            found=found,
            problem=problem,
            missing_programs=missing,
        )
        return replace(observed, kept=self._kept(observed))

    def _kept(self, observed: Observed) -> bool:
        try:
            return self.absent and bool(left_kept(self._edit(observed).files, _originals(observed)))
        except (ProbeError, RefusedError):
            return False

    # --- judging what was seen -------------------------------------------------------------

    def _handler(self) -> Handler:
        return Handler(self.handler, self.binary, self.default, self.enable_cdi)

    def _read(self, found: Found, data: Mapping[str, object]) -> bool:
        """Whether the daemon runs with what its file says of what is ours."""
        if self.restart == "none" or found.active not in RUNNING:
            return True
        if found.owed:
            return False
        if not found.runtimes:
            return True  # it does not say
        says = jsonedit.lookup(data, ("runtimes", self.handler))
        program = says.get("path", "") if isinstance(says, Mapping) else ""
        if found.runtimes.get(self.handler, "") != program and not docker.by_flag(
            found.arguments, self.handler
        ):
            return False
        default = jsonedit.lookup(data, docker.DEFAULT)
        if default is not None and default != found.default_runtime:
            return False
        cdi = docker.cdi_enabled(data, found.version)
        return self.enable_cdi is None or found.cdi in (None, cdi)

    def _edit(self, observed: Observed) -> Edit:
        return plain_files(self._edited(observed), observed.found.links)

    def _edited(self, observed: Observed) -> Edit:
        if self.absent:
            return docker.plan_removal(observed.found.file(), self._handler())
        if not observed.found.program:
            return Edit({}, ("docker is not installed here: nothing to do",))
        if observed.problem:
            raise ProbeError(observed.problem)
        return docker.plan_edit(observed.found.file(), self._handler())

    def _restarts(self, observed: Observed) -> bool:
        runs = observed.found.active in RUNNING or not observed.running
        return self.restart == "systemd" and bool(observed.found.program) and runs

    def _verb(self, observed: Observed, edit: Edit) -> str:
        """What makes docker read its file: a reload, unless CDI is switched or it does not run."""
        found = observed.found
        if found.active == "failed":
            return "restart"
        after = jsonedit.parse(self._after(observed, edit) or "", found.config_path)
        before = jsonedit.parse(observed.text or "", found.config_path)
        holds = [docker.cdi_enabled(data, found.version) for data in (before, after)]
        known = docker.supports_cdi(found.version) and found.cdi is not None
        now = found.cdi if known else holds[0]
        matters = edit.files or self.enable_cdi is not None
        return "restart" if matters and now != holds[1] else "reload"

    def _after(self, observed: Observed, edit: Edit) -> str | None:
        return edit.files.get(observed.found.config_path, observed.text)

    def _cost(self, observed: Observed, edit: Edit) -> Disruption:
        if not self._restarts(observed):
            return Disruption.NONE
        if self._verb(observed, edit) == "reload":
            return Disruption.RELOAD
        ends = observed.found.containers > 0 and not observed.found.live_restore
        return Disruption.DRAIN if ends else Disruption.RESTART

    # --- the contract ----------------------------------------------------------------------

    def desired(self, observed: Observed) -> Observed:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError):
            return observed
        text = self._after(observed, edit)
        ours = self._ours(observed, text)
        found = replace(observed.found, text=text, ours=ours, owed=False)
        if observed.found.runtimes and not observed.problem:
            data = jsonedit.parse(text or "", found.config_path)
            found = self._as_said(found, data)
        digest = hashlib.sha256((text or "").encode()).hexdigest()[:16]
        settled = replace(observed, read=True, running=True, found=found)
        return replace(settled, digest=digest, text=text, ours=ours, kept=False)

    def _as_said(self, found: Found, data: Mapping[str, object]) -> Found:
        """The daemon once it has read its file."""
        runtimes = {k: v for k, v in found.runtimes.items() if k != self.handler}
        says = jsonedit.lookup(data, ("runtimes", self.handler))
        program = says.get("path", "") if isinstance(says, Mapping) else ""
        program = program or docker.by_flag(found.arguments, self.handler)
        default = jsonedit.lookup(data, docker.DEFAULT)
        cdi = found.cdi if found.cdi is None else docker.cdi_enabled(data, found.version)
        return replace(
            found,
            runtimes={**runtimes, self.handler: program} if program else runtimes,
            default_runtime=found.default_runtime if default is None else str(default),
            cdi=cdi,
        )

    def _ours(self, observed: Observed, text: str | None) -> tuple[str, ...]:
        """The keys that are ours once the file has this text."""
        if self.absent:
            return ()
        if text == observed.text:
            return observed.ours
        path = observed.found.config_path
        before, after = jsonedit.parse(observed.text or "", path), jsonedit.parse(text or "", path)
        keys = (("runtimes", self.handler), docker.DEFAULT, docker.CDI)
        changed = {k for k in keys if jsonedit.lookup(before, k) != jsonedit.lookup(after, k)}
        stays = {key for key in observed.ours if tuple(key.split(".", 1)) not in changed}
        gained = {".".join(k) for k in changed if jsonedit.lookup(after, k) is not None}
        was = jsonedit.parse(observed.found.original or "", path)
        given_back = {
            ".".join(k) for k in changed if jsonedit.lookup(after, k) == jsonedit.lookup(was, k)
        }
        return tuple(sorted(stays | (gained - given_back if observed.ours else gained)))

    def refuse(self, observed: Observed) -> str | None:
        if not self.absent and (unknown := no_service(observed.found, self.unit, UNIT)) is not None:
            return unknown
        if (mute := silent(observed.found, self.unit, self.restart)) is not None:
            return mute
        if observed.found.mute and observed.found.active == "active" and self.restart == "systemd":
            return (
                f"{self.unit} is active, and docker info did not answer within 10 s; check "
                f"journalctl -u {self.unit}, then restart it"
            )
        if not observed.found.config_path.startswith("/"):
            return f"{self.unit} names its file {observed.found.config_path!r}: write an absolute path there"
        try:
            self._edit(observed)
        except (ProbeError, RefusedError) as error:
            return and_kept(str(error), _originals(observed) if observed.ours else {})
        return None

    def plan(self, observed: Observed) -> Plan:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError):
            return Plan()
        cost = self._cost(observed, edit) if edit.files or not observed.read else Disruption.NONE
        changes = [
            Change("text", _masked(observed.text), _masked(text), cost, edit.why, path=path)
            for path, text in edit.files.items()
        ]
        ours = self._ours(observed, self._after(observed, edit))
        if ours != observed.ours:
            changes.append(Change("ours", list(observed.ours), list(ours)))
        if observed.kept:
            changes.append(Change("kept", True, False))
        if not observed.read:
            changes.append(Change("read", False, True, cost, _unread(observed.found)))
        if not observed.running:
            changes.append(Change("running", False, True, why=f"{self.unit} should be running"))
        notes = list(edit.notes)
        if edit.files and not self._restarts(observed) and observed.found.program:
            notes.append(f"{self.unit} is not restarted: it reads the file when it starts")
        if cost is Disruption.DRAIN:
            notes.append(
                f"{observed.found.containers} containers stop with docker; set live-restore to "
                "keep them running"
            )
        return Plan(tuple(changes), tuple(notes))

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "running" in plan.fields:
            yield from start(self.unit, observed.found.active, changes="text" in plan.fields)
        if not plan.fields - {"running"}:
            return
        edit = self._edit(observed) if "text" in plan.fields else Edit({})
        after = self._after(observed, edit)
        ours = self._ours(observed, after)
        if not self.absent and edit.files:
            yield require(self.binary)
        if "ours" in plan.fields and not self.absent:
            # Before the file: a kill in between leaves a key named that is not there, which is harmless.
            yield _note(tuple(sorted({*observed.ours, *ours})))
        if plan.fields & {"text", "read"}:
            yield from self._read_anew(observed, edit, after)
        if "ours" in plan.fields:
            yield _note(ours)
        if "kept" in plan.fields:
            yield ops.ForgetOriginal(observed.found.config_path)

    def _read_anew(self, observed: Observed, edit: Edit, after: str | None) -> Iterator[Step]:
        path = observed.found.config_path
        if not observed.found.program:
            yield from _write(path, edit, observed)
            return
        daemon = self._daemon(observed)
        verb = self._verb(observed, edit)
        before = (
            observed.text if observed.read else _with_runtime(observed.text, self.handler, path)
        )
        first = docker.interim(before, after, path) if verb == "reload" else None
        running = self._restarts(observed)
        yield daemon.remember(
            dict(edit.files), unread=not observed.read and not observed.found.owed
        )
        if first is not None and running:
            yield ops.PutText(path, first)
        else:
            yield from _write(path, edit, observed)
        yield daemon.prove((path,), present=not self.absent, compare=False)
        if not running:
            yield daemon.settle(present=not self.absent)
            return
        yield daemon.restart(
            (path,), present=not self.absent, healthy=self._healthy(after, path), verb=verb
        )
        if first is not None:
            edit = edit if edit.files else Edit({path: after})
            yield from _write(path, edit, observed)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent and self.restart == "systemd" and observed.found.program:
            yield self._daemon(observed).first_start()

    def verify(self, observed: Observed) -> Plan:
        return or_refusal(self.plan(observed), self.refuse(observed))

    # --- the daemon ------------------------------------------------------------------------

    def _daemon(self, observed: Observed) -> Daemon:
        found = observed.found
        words = [found.program, *found.arguments[1:]]
        if not any(word.partition("=")[0] == "--config-file" for word in words):
            words += ["--config-file", found.config_path]
        functions = _FUNCTIONS.format(
            program=shlex.join(words),
            path=shlex.quote(found.config_path),
            version=shlex.quote(found.version),
            unit=shlex.quote(self.unit),
            binary=shlex.quote(f'"{self.binary}"'),
            name=shlex.quote(f'"{posixpath.basename(self.binary)}"'),
        )
        return Daemon("docker", self.unit, functions)

    def _healthy(self, after: str | None, path: str) -> str:
        """Sh that asks the daemon whether it runs with what the file says."""
        data = jsonedit.parse(after or "", path)
        says = jsonedit.lookup(data, ("runtimes", self.handler))
        program = says.get("path", "") if isinstance(says, Mapping) else ""
        wanted = f"{self.handler}={program}" if program else ""
        return f"runs_with {shlex.quote(self.handler)} {shlex.quote(wanted)}"


def _unread(found: Found) -> str:
    if found.active == "active":
        return "its running configuration differs from its file"
    return "its new configuration is not loaded yet"


def _write(path: str, edit: Edit, observed: Observed) -> Iterator[Step]:
    if path not in edit.files:
        return
    yield from writes({path: edit.files[path]}, _originals(observed) if observed.ours else {})


def _originals(observed: Observed) -> dict[str, str | None]:
    return {observed.found.config_path: observed.found.original} if observed.found.kept else {}


def _with_runtime(text: str | None, name: str, path: str) -> str:
    """The file as the daemon may still have it in mind: with a runtime that it no longer names."""
    return jsonedit.set_key(text or "", ("runtimes", name), {"path": "/"}, path)


def _note(keys: tuple[str, ...]) -> ops.Run:
    """Write down which keys of the file are ours."""
    place = f'"$G/{OURS}"'
    if not keys:
        return ops.Run(
            f'rm -f {place}; sync "$G"', "discard the record of keys set in docker's file", 30
        )
    lines = " ".join(shlex.quote(key) for key in keys)
    text = f"printf '%s\\n' {lines} >{place}.new; sync {place}.new; mv -fT {place}.new {place}; sync \"$G\""
    return ops.Run(text, "record which keys of docker's file are set", 30)


def _masked(text: str | None) -> str | None:
    return None if text is None else _SECRET.sub(r'\1"(secret)"', text)


# Only docker 23 and later can be asked what they make of a file before they run with it.
_FUNCTIONS = r"""
v={version}; f={path}
client() {{ unset DOCKER_HOST DOCKER_CONTEXT; timeout -k 2 10 docker "$@"; }}
old() {{ case $v in 1?.*|20.*|22.*|'') ;; *) return 1 ;; esac; }}
dump() {{
  # A file that is named and not there is an error to it.
  [ -f "$f" ] || {{ echo '{{}}'; return 0; }}
  old || timeout -k 2 20 {program} --validate >/dev/null || return 1
  cat "$f"
}}
# What it said when it was last told to read its file, and could not.
complaint() {{
  old || return 0
  [ $(($(date +%s) - $(stat -c %Y "$w/after"))) -gt 1 ] || {{ echo 'it was told just now'; return 0; }}
  journalctl -u {unit} --since "@$(stat -c %Y "$w/after")" -o cat --no-pager 2>/dev/null |
    grep 'unable to configure the Docker daemon' | tail -n 1 | cut -c 1-300
}}
others() {{ :; }}
serves() {{ grep -qF -e {binary} -e {name}; }}
working() {{ if command -v docker >/dev/null; then client info --format 'docker ok'; else echo 'docker ok'; fi; }}
runs_with() {{ # name, NAME=PROGRAM or nothing
  m=$(complaint); [ -z "$m" ] || {{ echo "$m"; return 1; }}
  command -v docker >/dev/null || return 0
  said=$(client info --format '{{{{range $k, $v := .Runtimes}}}}{{{{$k}}}}={{{{$v.Path}}}}{{{{"\n"}}}}{{{{end}}}}') || return 1
  if [ -n "$2" ]; then printf '%s\n' "$said" | grep -qxF "$2"; else ! printf '%s\n' "$said" | grep -q "^$1="; fi
}}
"""
