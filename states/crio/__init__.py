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
    cri-o/cri-o: crio(8), crio.conf(5), crio.conf.d(5), pkg/config.
    NVIDIA/nvidia-container-toolkit: cmd/nvidia-ctk-installer/container/runtime/crio (systemctl restart).
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from gpustate import Node, Step, ops, shell
from gpustate.core.parameter_types import AbsolutePath, FileName, ServiceName
from gpustate.formats import crio
from gpustate.formats.containerd import Edit
from gpustate.formats.toml_scan import parse
from gpustate.ops.daemons import Daemon
from gpustate.runtimes.facts import RuntimeObservation
from gpustate.runtimes.state import RuntimeServiceState
from gpustate.states.crio.query import LOW_LEVEL, CrioQuery, Found

_NO_LOW_LEVEL = (
    "NVIDIA's runtime finds none of the runtimes it wraps on its PATH: set "
    "nvidia-container-runtime.runtimes in the config of container-toolkit, such as "
    "[/usr/libexec/crio/crun]"
)


@dataclass(frozen=True, slots=True)
class Observed(RuntimeObservation):
    """CRI-O's files, what it makes of them, and whether the service has read them."""

    found: Found = field(default_factory=Found)


class CrioHandlerRegistered(RuntimeServiceState[Observed]):
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
            file back when it does not come up, and starts it where it is stopped; ``none`` leaves the
            service alone. A disabled one is enabled and started, unless another runtime is enabled or
            runs.

    Disruption:
        ``RESTART`` of CRI-O when its effective configuration changes; containers go on.

    Raises:
        RefusedError: a file that is read after ours undoes it, or CRI-O would not start.
        StepFailed: CRI-O cannot read the new file, or does not come up with it.
    """

    name: ClassVar[str] = "crio"
    supported_runtime: ClassVar[str] = "CRI-O"
    label: ClassVar[str] = "CRI-O"
    matrix_fact: ClassVar[str] = "crio"
    evidence: ClassVar[str] = "crio config"

    drop_in_name: FileName = crio.DROP_IN_NAME
    unit: ServiceName = "crio.service"
    socket: AbsolutePath = "/var/run/crio/crio.sock"

    def read(self, node: Node) -> Found:
        return node.query(CrioQuery(self.unit, self.drop_in_name, self.socket))

    def find_problems(self, observed: Observed) -> tuple[str, ...]:
        return crio.handler_problems(parse(observed.found.dump, "crio config"), self.to_handler())

    def assess(self, observed: Observed) -> tuple[tuple[str, ...], str]:
        missing, problem = super().assess(observed)
        files = self._files(observed.found)
        if any("\ufffd" in text for text in files.foreign().values()):
            return missing, problem
        # Our own file is written again, whatever stands in it.
        if files.damaged:
            return missing or (f"{files.drop_in_path} is damaged",), ""
        if files.managed and problem.startswith(files.drop_in_path):
            problem = ""
        return missing, problem

    def _files(self, facts: Found) -> crio.Files:
        order = crio.in_order(list(facts.files), facts.main_path)
        drop_in = posixpath.join(facts.folder, self.drop_in_name)
        texts = {path: facts.files[path] for path in order}
        created = drop_in in facts.originals and facts.originals[drop_in] is None
        return crio.Files(texts, drop_in, facts.main_path, created)

    def register(self, observed: Observed) -> Edit:
        return crio.plan_edit(self._files(observed.found), self.to_handler())

    def unregister(self, observed: Observed) -> Edit:
        return crio.plan_removal(self._files(observed.found), self.to_handler())

    def lists_handler(self, observed: Observed) -> bool:
        return f"runtimes.{self.handler}]" in observed.found.dump

    def rollback_paths(self, observed: Observed) -> tuple[str, ...]:
        return (self._files(observed.found).drop_in_path,)

    def check_paths(self, observed: Observed) -> str | None:
        for path in (observed.found.main_path, observed.found.folder):
            if not path.startswith("/"):
                return f"{self.unit} names {path!r}: write an absolute path there"
        return None

    def notes(self, observed: Observed, edit: Edit) -> Iterator[str]:
        if not self.absent and observed.found.program:
            yield from (f"CRI-O does not read {path}: remove it" for path in observed.found.unread)

    def prerequisites(self) -> Iterator[Step]:
        yield ops.Run(
            f'{LOW_LEVEL}[ -n "$(low_level)" ] || fail {shlex.quote(_NO_LOW_LEVEL)}',
            "check for a low-level runtime to wrap",
            30,
        )

    def daemon(self, observed: Observed) -> Daemon:
        files = self._files(observed.found)
        texts = files.foreign() if files.damaged else files.texts
        config = crio.merge(texts) if not observed.problem else {}
        default = config.get("crio", {}).get("runtime", {}).get("default_runtime")
        owns_default = self.default or default == self.handler
        functions = shell.load(
            "functions",
            "gpustate.states.crio",
            CRIO=observed.found.program,
            CRIO_MAIN=observed.found.main_path,
            CRIO_FOLDER=observed.found.folder,
            CRIO_SOCKET=self.socket,
            HANDLER=self.handler,
            OWN=" ".join({self.handler, *files.own_runtimes}),
            BINARY=self.binary,
            OWN_DEFAULT="default_runtime = " if owns_default else "-",
        )
        return Daemon("crio", self.unit, functions, self.handler)
