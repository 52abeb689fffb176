"""MicroK8s' containerd serves the NVIDIA runtime handler, from its template.

MicroK8s renders its containerd's configuration from a template at every start, and neither imports a
drop-in nor keeps edits of what it has rendered. So the template gets marked lines of ours, by the editor
that containerd's own file gets them by, and every other byte of it stays; a snap refresh keeps the template.

Surprising: MicroK8s' own GPU add-on makes the handler the default for all containers, and an older
template names one ``nvidia-container-runtime``. Both are left alone: a RuntimeClass asks for ``nvidia``.

Sources:
    canonical/microk8s, microk8s-resources/wrappers/run-containerd-with-args (what is rendered, and when),
    microk8s-resources/default-args/containerd-template.toml. No snap of it was at hand to try it with: the
    tests run a stand-in that renders the template by that source.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gpustate import Change, Conflict, Disruption, Node, NodeFacts, Plan, ProbeError, State, Step
from gpustate.core.queries import Answer, Query, ShippedFile
from gpustate.core.required_programs import HandlerName
from gpustate.core.state import AnyState
from gpustate.errors import RefusedError
from gpustate.formats.containerd import (
    Edit,
    Files,
    Handler,
    effective,
    handler_problems,
    plan_edit,
    plan_removal,
)
from gpustate.ops.daemon_seen import BLOBS, RUNNING, or_refusal, owed, read_rows, unit_command
from gpustate.ops.daemons import RUNTIME, Daemon, missing_programs, missing_runtime, require, writes
from gpustate.probes import cri_queries, cri_status

ARGS = "/var/snap/microk8s/current/args"
TEMPLATE_PATH = f"{ARGS}/containerd-template.toml"
RENDERED_PATH = f"{ARGS}/containerd.toml"
PROGRAM = "/snap/microk8s/current/bin/containerd"
CTR = "/snap/microk8s/current/bin/ctr"
SOCKET = "/var/snap/microk8s/common/run/containerd.sock"
UNIT = "snap.microk8s.daemon-containerd.service"

_SCRIPT = rf"""
[ ! -x {PROGRAM} ] || odd {TEMPLATE_PATH} || exit 0
[ -f {TEMPLATE_PATH} ] || exit 0
blob file {TEMPLATE_PATH} {TEMPLATE_PATH}
[ -f {RENDERED_PATH} ] && blob file {RENDERED_PATH} {RENDERED_PATH}
known {TEMPLATE_PATH}
told
[ -e {owed("microk8s")} ] && echo owed=1
v=$(timeout -k 2 20 {PROGRAM} --version); v=${{v#* }}; v=${{v#* }}; v=${{v%% *}}; echo "version=${{v#v}}"
[ "${{ua-}}" != active ] || [ -n "$hl" ] || cri_says {SOCKET}
"""


@dataclass(frozen=True, slots=True)
class Found:
    """MicroK8s' containerd as the node has it; no files where there is none."""

    active: str = ""
    version: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    originals: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    owed: bool = False
    cri: cri_status.CriStatus | None = None


@dataclass(frozen=True, slots=True)
class Microk8sQuery(Query[Found]):
    """Its template, what was rendered from it, the version of its containerd, and what that says."""

    @property
    def ships(self) -> tuple[ShippedFile, ...]:
        """What asks the running process."""
        return cri_queries.SHIPS

    def script(self) -> str:
        return cri_queries.CRI_SAYS + unit_command(UNIT) + BLOBS + _SCRIPT

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "MicroK8s' files", ("file",))
        rows.only_files()
        active = rows.last("active") if "unit" in rows.keys else ""
        files = rows.blobs["file"]
        owes, cri = "owed" in rows.keys, cri_status.read(rows.keys)
        return Found(active, rows.last("version"), files, rows.originals, owes, cri)

    def placeholder(self) -> Found:
        return Found()


@dataclass(frozen=True, slots=True)
class Observed:
    """The template, and what was made of it.

    Args:
        template: ``None`` where there is no MicroK8s.
        lacks: what the handler lacks in what was rendered, or in the running process.
        read: containerd was started after the template was last changed by us.
        version: of its containerd.
        found: all that the node said.
        dead: why no pod can start with the running process; empty where one can.
        missing_programs: programs of the handler that do not exist.
    """

    template: str | None = None
    lacks: tuple[str, ...] = ()
    read: bool = True
    version: str = ""
    found: Found = field(default_factory=Found)
    dead: str = ""
    missing_programs: tuple[str, ...] = ()


class Microk8sHandlerRegistered(State[Observed]):
    """MicroK8s' containerd serves the NVIDIA runtime handler, and its other settings are what they were.

    On a node without MicroK8s there is nothing to do.

    Args:
        handler: its name, which a RuntimeClass refers to.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no handler get this one.
        restart: ``systemd`` restarts its containerd when the template changes and rolls it back when it does
            not come up; ``none`` leaves that to somebody else.

    Disruption:
        ``RESTART`` of its containerd when the template changes; containers go on.

    Raises:
        StepFailed: containerd does not come up with what is rendered.
    """

    name: ClassVar[str] = "microk8s"
    supported_runtime: ClassVar[str] = "MicroK8s"
    needs: ClassVar[tuple[str, ...]] = ("preflight", "container-toolkit")
    worst: ClassVar[Disruption] = Disruption.RESTART
    stable: ClassVar[tuple[str, ...] | None] = ("template", "lacks", "read", "version")

    handler: HandlerName = "nvidia"
    binary: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@:-]+$")] = RUNTIME
    default: bool = False
    restart: Literal["systemd", "none"] = "systemd"

    def conflicts(
        self, policy: Mapping[str, AnyState], facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        if observed is not None and not self.absent:
            missing, registered = observed.missing_programs, observed.template is not None
            yield from missing_runtime(self.binary, missing, policy, registered=registered)

    def probe(self, node: Node) -> Observed:
        missing = () if self.absent else missing_programs(node, self.binary)
        found = node.query(Microk8sQuery())
        lacks: tuple[str, ...] = ()
        rendered = found.files.get(RENDERED_PATH)
        if rendered is not None and not self.absent and found.active in RUNNING:
            try:
                lacks = handler_problems(effective(rendered), self._handler())
            except ProbeError as error:
                lacks = (str(error),)
        cri = None if self.absent or rendered is None else found.cri
        if cri is not None and not lacks and (unserved := cri.lacks(self.handler)):
            lacks = (f"the running containerd has {unserved}",)
        return Observed(
            template=found.files.get(TEMPLATE_PATH),
            lacks=lacks,
            read=not found.owed,
            version=found.version,
            found=found,
            dead="" if cri is None else cri.dead("the containerd of MicroK8s"),
            missing_programs=missing,
        )

    def _handler(self) -> Handler:
        return Handler(self.handler, self.binary, self.default)

    def _edit(self, observed: Observed) -> Edit:
        if observed.template is None:
            return Edit(
                {}, () if self.absent else ("MicroK8s is not installed here: nothing to do",)
            )
        files = Files(
            observed.template, root_path=TEMPLATE_PATH, drop_in_path=f"{ARGS}/no-drop-in.toml"
        )
        if self.absent:
            return plan_removal(files, self._handler(), originals=observed.found.originals)
        rendered = observed.found.files.get(RENDERED_PATH, observed.template)
        return plan_edit(
            files,
            self._handler(),
            containerd_version=observed.version,
            dump_text=rendered,
            may_import=False,
        )

    def _restarts(self, observed: Observed) -> bool:
        return self.restart == "systemd" and observed.found.active in RUNNING

    def desired(self, observed: Observed) -> Observed:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError):
            return observed
        template = edit.files.get(TEMPLATE_PATH, observed.template)
        files = dict(observed.found.files)
        if template is not None:
            files[TEMPLATE_PATH] = template
        if not self._restarts(observed):
            return replace(observed, template=template, found=replace(observed.found, files=files))
        found = replace(observed.found, files=files, owed=False)
        return replace(observed, template=template, lacks=(), read=True, found=found, dead="")

    def refuse(self, observed: Observed) -> str | None:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError) as error:
            return str(error)
        if observed.dead and observed.read and not edit.files and not observed.lacks:
            return f"{observed.dead}; journalctl -u {UNIT} has more: fix that, and restart it"
        return None

    def plan(self, observed: Observed) -> Plan:
        try:
            edit = self._edit(observed)
        except (ProbeError, RefusedError):
            return Plan()
        cost = Disruption.RESTART if self._restarts(observed) else Disruption.NONE
        changes = [
            Change("template", observed.template, text, cost, edit.why, path=path)
            for path, text in edit.files.items()
        ]
        if observed.lacks and self._restarts(observed):
            changes.append(Change("lacks", list(observed.lacks), [], cost))
        if not observed.read and self._restarts(observed):
            changes.append(Change("read", False, True, cost, "its new template is not loaded yet"))
        return Plan(tuple(changes), edit.notes)

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if not plan:
            return
        edit = self._edit(observed) if "template" in plan.fields else Edit({})
        if not self.absent and edit.files:
            yield require(self.binary)
        daemon = self._daemon()
        yield daemon.remember(edit.files, unread=not edit.files)
        yield from writes(edit.files, observed.found.originals)
        yield daemon.prove((TEMPLATE_PATH,), present=not self.absent, compare=False)
        if self._restarts(observed):
            check = f"grep -qF {shlex.quote(self.binary)} {RENDERED_PATH}"
            healthy = "" if self.absent else check
            yield daemon.restart((TEMPLATE_PATH,), present=not self.absent, healthy=healthy)
        else:
            yield daemon.settle(present=not self.absent)

    def verify(self, observed: Observed) -> Plan:
        return or_refusal(self.plan(observed), self.refuse(observed))

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """Nothing: the template is rendered when the machine starts it."""
        yield from ()

    def _daemon(self) -> Daemon:
        functions = (
            f"dump() {{ cat {TEMPLATE_PATH}; }}\nothers() {{ :; }}\n"
            f"serves() {{ grep -qF {shlex.quote(self.binary)}; }}\n"
            f"working() {{ [ -S {SOCKET} ] || return 1\n"
            f"  [ -x {CTR} ] || {{ echo 'containerd ok'; return; }}\n"
            f"  a=$(timeout -k 2 5 {CTR} -a {SOCKET} plugins ls) || return 1\n"
            "  printf '%s\\n' \"$a\" | while read -r y i s; do\n"
            "    case \"$y $i\" in 'io.containerd.grpc.v1 cri' | 'io.containerd.cri.v1 '*) "
            's=${s% }; echo "$y $i ${s##* }" ;; esac\n'
            "  done; }\n"
        )
        return Daemon("microk8s", UNIT, functions)
