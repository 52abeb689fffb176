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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from gpustate import Node, ProbeError, Step, shell
from gpustate.core.queries import Answer
from gpustate.formats.containerd import (
    Edit,
    Files,
    effective,
    handler_problems,
    plan_edit,
    plan_removal,
)
from gpustate.ops.daemon_seen import BLOBS, RUNNING, owed, read_rows, unit_command
from gpustate.ops.daemons import Daemon
from gpustate.runtimes.facts import CriQuery, RuntimeFacts, RuntimeObservation
from gpustate.runtimes.state import RuntimeState, bundled_problems

ARGS = "/var/snap/microk8s/current/args"
TEMPLATE_PATH = f"{ARGS}/containerd-template.toml"
RENDERED_PATH = f"{ARGS}/containerd.toml"
PROGRAM = "/snap/microk8s/current/bin/containerd"
SOCKET = "/var/snap/microk8s/common/run/containerd.sock"
UNIT = "snap.microk8s.daemon-containerd.service"


@dataclass(frozen=True, slots=True)
class Microk8sQuery(CriQuery[RuntimeFacts]):
    """Its template, as ``dump`` what was rendered from it, the version of its containerd, and what that says."""

    def fragment(self) -> str:
        script = shell.load(
            "microk8s",
            "gpustate.states",
            CONTAINERD=PROGRAM,
            TEMPLATE=TEMPLATE_PATH,
            RENDERED=RENDERED_PATH,
            SOCKET=SOCKET,
            OWED=owed("microk8s"),
        )
        return unit_command(UNIT) + BLOBS + script

    def parse(self, answer: Answer) -> RuntimeFacts:
        rows = read_rows(answer.out, "MicroK8s' files", ("file",))
        files = dict(rows.blobs["file"])
        rendered = files.pop(RENDERED_PATH, "")
        program = PROGRAM if TEMPLATE_PATH in files else ""
        # What stops MicroK8s stops more services than this one, so that it alone is not started.
        return RuntimeFacts.read(rows, program=program, enabled="", files=files, dump=rendered)

    def placeholder(self) -> RuntimeFacts:
        return RuntimeFacts()


class Microk8sHandlerRegistered(RuntimeState[RuntimeObservation]):
    """MicroK8s' containerd serves the NVIDIA runtime handler, and its other settings are what they were.

    On a node without MicroK8s there is nothing to do.

    Args:
        handler: its name, which a RuntimeClass refers to.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no handler get this one.
        restart: ``systemd`` restarts its containerd when the template changes and rolls it back when it does
            not come up; ``none`` leaves the service alone.

    Disruption:
        ``RESTART`` of its containerd when the template changes; containers go on.

    Raises:
        StepFailed: containerd does not come up with what is rendered.
    """

    name: ClassVar[str] = "microk8s"
    supported_runtime: ClassVar[str] = "MicroK8s"
    label: ClassVar[str] = "MicroK8s"
    process: ClassVar[str] = "the containerd of MicroK8s"
    evidence: ClassVar[str] = RENDERED_PATH

    restart: Literal["systemd", "none"] = "systemd"

    @property
    def supervised(self) -> bool:
        return self.restart == "systemd"

    def service(self, observed: RuntimeObservation) -> str:
        return UNIT

    def read(self, node: Node) -> RuntimeFacts:
        return node.query(Microk8sQuery())

    def find_problems(self, observed: RuntimeObservation) -> tuple[str, ...]:
        # A template that is right has yet to be rendered.
        return self._rendered(observed) if self.register(observed).files else ()

    def is_loaded(self, observed: RuntimeObservation) -> bool:
        unjudged = self.absent or observed.problem or observed.lacks
        return bool(unjudged) or not self._rendered(observed)

    def _rendered(self, observed: RuntimeObservation) -> tuple[str, ...]:
        """What the handler lacks in what was rendered, or in the running process."""
        facts = observed.found
        if not facts.dump or facts.active not in RUNNING:
            return ()
        try:
            missing = handler_problems(effective(facts.dump, RENDERED_PATH), self.to_handler())
        except ProbeError as error:
            return (str(error),)
        return bundled_problems(facts.cri, self.handler, missing)

    def register(self, observed: RuntimeObservation) -> Edit:
        facts = observed.found
        return plan_edit(
            self._files(facts),
            self.to_handler(),
            containerd_version=facts.version,
            dump_text=facts.dump or facts.files[TEMPLATE_PATH],
            may_import=False,
        )

    def unregister(self, observed: RuntimeObservation) -> Edit:
        facts = observed.found
        if not facts.program:
            return Edit({})
        return plan_removal(self._files(facts), self.to_handler(), originals=facts.originals)

    def _files(self, facts: RuntimeFacts) -> Files:
        text, none = facts.files[TEMPLATE_PATH], f"{ARGS}/no-drop-in.toml"
        return Files(text, root_path=TEMPLATE_PATH, drop_in_path=none)

    def rollback_paths(self, observed: RuntimeObservation) -> tuple[str, ...]:
        return (TEMPLATE_PATH,)

    def compares_dumps(self, observed: RuntimeObservation) -> bool:
        return False

    def restart_steps(
        self, observed: RuntimeObservation, edit: Edit, daemon: Daemon, paths: tuple[str, ...]
    ) -> Iterator[Step]:
        check = f"grep -qF {shlex.quote(self.binary)} {RENDERED_PATH}"
        healthy = "" if self.absent else check
        yield daemon.restart(paths, present=not self.absent, healthy=healthy)

    def first_boot(self, observed: RuntimeObservation) -> Iterator[Step]:
        """Nothing: the template is rendered when the machine starts it."""
        yield from ()

    def daemon(self, observed: RuntimeObservation) -> Daemon:
        functions = (
            f"dump() {{ cat {TEMPLATE_PATH}; }}\nothers() {{ :; }}\n"
            f"serves() {{ grep -qF {shlex.quote(self.binary)}; }}\n"
        )
        program = {"CONTAINERD": PROGRAM, "SOCKET": SOCKET}
        working = shell.load("containerd_working", "gpustate.runtimes", **program)
        return Daemon("microk8s", UNIT, functions + working, self.handler)
