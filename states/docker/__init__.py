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

Docker's snap is refused: its confined daemon cannot run a runtime from outside.

Sources:
    moby/moby: daemon/reload_unix.go, daemon/config, cmd/dockerd. Tried with docker 20.10 and 26.1.
    docs.docker.com, "dockerd", "Live restore". The snap's paths and units: listings of public installations.
    NVIDIA/nvidia-container-toolkit, pkg/config/engine/docker.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gpustate import Change, Disruption, Node, Plan, ProbeError, Step, ops, shell
from gpustate.core.parameter_types import ServiceName
from gpustate.errors import RefusedError
from gpustate.formats import docker, jsonedit
from gpustate.formats.containerd import Edit, Handler
from gpustate.ops.daemons import Daemon
from gpustate.runtimes.facts import RuntimeObservation
from gpustate.runtimes.state import RuntimeServiceState
from gpustate.states.docker.query import OURS, DockerQuery, Found


@dataclass(frozen=True, slots=True)
class Observed(RuntimeObservation):
    """docker's file, and whether the daemon runs with what it says of the handler.

    Args:
        ours: keys in it that gpustate has set.
    """

    found: Found = field(default_factory=Found)
    ours: tuple[str, ...] = ()


class DockerRuntimeRegistered(RuntimeServiceState[Observed]):
    """docker offers the NVIDIA runtime, and its other settings are what they were.

    On a node without docker there is nothing to do.

    Args:
        handler: its name, for ``docker run --runtime``.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no runtime get this one.
        enable_cdi: whether docker injects CDI devices, from 25.0 on; ``None`` leaves that as it is.
        unit: docker's service.
        restart: ``systemd`` has the unit read its file when that changes in effect, and rolls the file
            back when it does not come up, and starts the unit where it is stopped; ``none`` leaves the
            service alone. A disabled one is enabled and started, unless its socket or another runtime
            is enabled or runs.

    Disruption:
        ``RELOAD`` when the runtime comes, changes or goes. ``RESTART`` when CDI is switched and
        ``live-restore`` is on or no container runs, ``DRAIN`` when containers would end with it.

    Raises:
        RefusedError: the file cannot be edited without touching what is not ours, or docker would not
            start with it.
        StepFailed: docker cannot read the new file, or does not run with it.
    """

    name: ClassVar[str] = "docker"
    labels: ClassVar[Mapping[str, str]] = {
        **RuntimeServiceState.labels,
        "ours": "settings of gpustate",
    }
    supported_runtime: ClassVar[str] = "Docker"
    worst: ClassVar[Disruption] = Disruption.DRAIN
    label: ClassVar[str] = "docker"
    matrix_fact: ClassVar[str] = "docker"
    file_format: ClassVar[str] = "JSON"

    enable_cdi: bool | None = None
    unit: ServiceName = "docker.service"

    def read(self, node: Node) -> Found:
        return node.query(DockerQuery(self.unit))

    def to_handler(self) -> Handler:
        return Handler(self.handler, self.binary, self.default, self.enable_cdi)

    def irrelevant(self, observed: Observed) -> tuple[str, ...]:
        # Docker itself runs on it, so it is another runtime only by its handler.
        return () if observed.found.containerd else ("containerd.service",)

    # --- judging what was observed ---------------------------------------------------------

    def find_problems(self, observed: Observed) -> tuple[str, ...]:
        observed.found.file().data  # noqa: B018
        return ()

    def register(self, observed: Observed) -> Edit:
        return docker.plan_edit(observed.found.file(), self.to_handler())

    def unregister(self, observed: Observed) -> Edit:
        return docker.plan_removal(observed.found.file(), self.to_handler())

    def is_read(self, observed: Observed) -> bool:
        try:
            self.find_problems(observed)
        except ProbeError:
            return True  # what cannot be read cannot be compared
        return super().is_read(observed)

    def is_loaded(self, observed: Observed) -> bool:
        """Whether the daemon runs with what its file says of what is ours."""
        facts = observed.found
        data = facts.file().data
        if not facts.runtimes:
            return True  # it does not say
        if facts.runtimes.get(self.handler, "") != self._program(data) and not docker.by_flag(
            facts.arguments, self.handler
        ):
            return False
        default = jsonedit.lookup(data, docker.DEFAULT)
        if default is not None and default != facts.default_runtime:
            return False
        cdi = docker.cdi_enabled(data, facts.version)
        return self.enable_cdi is None or facts.cdi in (None, cdi)

    def _program(self, data: Mapping[str, object]) -> str:
        """What the file says that the handler runs."""
        entry = jsonedit.lookup(data, ("runtimes", self.handler))
        return str(entry.get("path", "")) if isinstance(entry, Mapping) else ""

    def _verb(self, observed: Observed, edit: Edit) -> str:
        """What makes docker read its file: a reload, unless CDI is switched or it does not run."""
        facts = observed.found
        if facts.active == "failed":
            return "restart"
        after = jsonedit.parse(_after(observed, edit) or "", facts.config_path)
        before = jsonedit.parse(facts.text or "", facts.config_path)
        holds = [docker.cdi_enabled(data, facts.version) for data in (before, after)]
        reports_cdi = docker.supports_cdi(facts.version) and facts.cdi is not None
        enabled = facts.cdi if reports_cdi else holds[0]
        matters = edit.files or self.enable_cdi is not None
        return "restart" if matters and enabled != holds[1] else "reload"

    def cost(self, observed: Observed, edit: Edit) -> Disruption:
        due = edit.files or not observed.read
        if not due or not self.restarts(observed):
            return Disruption.NONE
        if self._verb(observed, edit) == "reload":
            return Disruption.RELOAD
        ends = observed.found.containers > 0 and not observed.found.live_restore
        return Disruption.DRAIN if ends else Disruption.RESTART

    def explain_unread(self, observed: Observed) -> str:
        if observed.found.active == "active":
            return "its running configuration differs from its file"
        return super().explain_unread(observed)

    def check_paths(self, observed: Observed) -> str | None:
        facts = observed.found
        if facts.mute and facts.active == "active" and self.supervised:
            return (
                f"{self.unit} is active, and docker info did not answer within 10 s; check "
                f"journalctl -u {self.unit}, then restart it"
            )
        if not facts.config_path.startswith("/"):
            return f"{self.unit} names its file {facts.config_path!r}: write an absolute path there"
        return None

    def refuse(self, observed: Observed) -> str | None:
        if self._is_snap(observed) and not self.absent:
            return (
                "docker is a snap here: it is confined, reads /var/snap/docker/current/config/daemon.json, and runs only the "
                "container toolkit that it brings (snap.docker.nvidia-container-toolkit); replace it (snap remove docker, then "
                "install docker.io or docker-ce), or remove the state docker from the policy"
            )
        return super().refuse(observed)

    def edit(self, observed: Observed) -> Edit:
        return Edit({}) if self._is_snap(observed) and not self.absent else super().edit(observed)

    def _is_snap(self, observed: Observed) -> bool:
        return observed.found.snap and not observed.found.program

    def originals(self, observed: Observed) -> Mapping[str, str | None]:
        return observed.found.originals if observed.ours else {}

    def notes(self, observed: Observed, edit: Edit) -> Iterator[str]:
        if self.cost(observed, edit) is Disruption.DRAIN:
            yield (
                f"{observed.found.containers} containers stop with docker; set live-restore to "
                "keep them running"
            )

    # --- the keys that are ours ------------------------------------------------------------

    def _own_keys(self, observed: Observed, text: str | None) -> tuple[str, ...]:
        """The keys that are ours once the file has this text."""
        facts = observed.found
        if self.absent:
            return ()
        if text == facts.text:
            return observed.ours
        path = facts.config_path
        before, after = jsonedit.parse(facts.text or "", path), jsonedit.parse(text or "", path)
        keys = (("runtimes", self.handler), docker.DEFAULT, docker.CDI)
        changed = {k for k in keys if jsonedit.lookup(before, k) != jsonedit.lookup(after, k)}
        stays = {key for key in observed.ours if tuple(key.split(".", 1)) not in changed}
        gained = {".".join(k) for k in changed if jsonedit.lookup(after, k) is not None}
        was = jsonedit.parse(facts.original or "", path)
        given_back = {
            ".".join(k) for k in changed if jsonedit.lookup(after, k) == jsonedit.lookup(was, k)
        }
        return tuple(sorted(stays | (gained - given_back if observed.ours else gained)))

    def _running(self, facts: Found) -> Found:
        """The daemon once it has read its file."""
        try:
            data = facts.file().data
        except ProbeError:
            return facts
        runtimes = {k: v for k, v in facts.runtimes.items() if k != self.handler}
        program = self._program(data) or docker.by_flag(facts.arguments, self.handler)
        default = jsonedit.lookup(data, docker.DEFAULT)
        return replace(
            facts,
            runtimes={**runtimes, self.handler: program} if program else runtimes,
            default_runtime=facts.default_runtime if default is None else str(default),
            cdi=None if facts.cdi is None else docker.cdi_enabled(data, facts.version),
        )

    # --- the contract ----------------------------------------------------------------------

    def probe(self, node: Node) -> Observed:
        observed = super().probe(node)
        return replace(observed, ours=observed.found.ours)

    def desired(self, observed: Observed) -> Observed:
        try:
            keys = self._own_keys(observed, _after(observed, self.edit(observed)))
        except (ProbeError, RefusedError):
            return observed
        desired = super().desired(observed)
        facts = replace(desired.found, ours=keys)
        return replace(desired, found=self._running(facts) if facts.runtimes else facts, ours=keys)

    def plan(self, observed: Observed) -> Plan:
        plan = super().plan(observed)
        keys = self.desired(observed).ours
        if keys == observed.ours:
            return plan
        return replace(
            plan, changes=(*plan.changes, Change("ours", list(observed.ours), list(keys)))
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        keys = self.desired(observed).ours if "ours" in plan.fields else observed.ours
        if keys != observed.ours and not self.absent:
            # Before the file: a kill in between leaves a key named that is not there, which is harmless.
            yield _note(tuple(sorted({*observed.ours, *keys})))
        yield from super().apply(observed, plan)
        if keys != observed.ours:
            yield _note(keys)

    def _interim(self, observed: Observed, edit: Edit) -> str | None:
        """What the file says for one reload; ``None`` where it may say at once what it is to say."""
        facts, path = observed.found, observed.found.config_path
        if not self.restarts(observed) or self._verb(observed, edit) != "reload":
            return None
        before = facts.text
        if not observed.read:
            # The daemon may still have a runtime in mind that the file no longer names.
            runtime = ("runtimes", self.handler)
            before = jsonedit.set_key(before or "", runtime, {"path": "/"}, path)
        return docker.interim(before, _after(observed, edit), path)

    def write_steps(self, observed: Observed, edit: Edit) -> Iterator[Step]:
        interim = self._interim(observed, edit)
        if interim is None:
            yield from super().write_steps(observed, edit)
        else:
            yield ops.PutText(observed.found.config_path, interim)

    def restart_steps(
        self, observed: Observed, edit: Edit, daemon: Daemon, paths: tuple[str, ...]
    ) -> Iterator[Step]:
        after, path = _after(observed, edit), observed.found.config_path
        program = self._program(jsonedit.parse(after or "", path))
        entry = f"{self.handler}={program}" if program else ""
        yield daemon.restart(
            paths,
            present=not self.absent,
            healthy=f"runs_with {shlex.quote(self.handler)} {shlex.quote(entry)}",
            verb=self._verb(observed, edit),
        )
        if self._interim(observed, edit) is not None:
            yield from super().write_steps(observed, edit if edit.files else Edit({path: after}))

    # --- the daemon ------------------------------------------------------------------------

    def rollback_paths(self, observed: Observed) -> tuple[str, ...]:
        return (observed.found.config_path,)

    def compares_dumps(self, observed: Observed) -> bool:
        return False

    def daemon(self, observed: Observed) -> Daemon:
        facts = observed.found
        words = [facts.program, *facts.arguments[1:]]
        if not any(word.partition("=")[0] == "--config-file" for word in words):
            words += ["--config-file", facts.config_path]
        functions = shell.load(
            "functions",
            "gpustate.states.docker",
            DOCKERD=shlex.join(words),
            DOCKER_FILE=facts.config_path,
            DOCKER_VERSION=facts.version,
            UNIT=self.unit,
            BINARY=self.binary,
        )
        return Daemon("docker", self.unit, functions, self.handler)


def _after(observed: Observed, edit: Edit) -> str | None:
    return edit.files.get(observed.found.config_path, observed.found.text)


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
