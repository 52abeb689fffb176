"""containerd offers the NVIDIA runtime handler, and everything else in its configuration stays.

What to write is worked out in :mod:`gpustate.formats.containerd`: a drop-in that is wholly ours where
containerd merges key by key, marked lines in the file that has the last word where it does not. Here
it is brought to a node: the containerd binary itself is asked what it makes of the new files before
anything restarts, the service restarts once and only when that differs from what it runs with, and
the old bytes come back when it does not come up, or when its CRI plugin does not.

Surprising: systemd is never told to reload its units. That would make it write the device cgroups
of running containers anew, without the GPUs that a hook has put there.

Sources:
    containerd, docs/man/containerd-config.toml.5.md, docs/cri/config.md.
    NVIDIA/nvidia-container-toolkit#48, discussion #1133: NVML unknown after a daemon-reload.
    NVIDIA/gpu-operator#594: restarts of containerd with unchanged files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gpustate import GpustateError, Node, ProbeError
from gpustate.core.parameter_types import AbsolutePath, ServiceName
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
    release,
)
from gpustate.formats.systemd import Unit
from gpustate.ops.daemons import Daemon
from gpustate.runtimes.facts import RuntimeObservation
from gpustate.runtimes.state import RuntimeServiceState
from gpustate.states.containerd import scripts
from gpustate.states.containerd.query import DROP_IN, ContainerdQuery, Found
from gpustate.states.containerd.reading import (
    address,
    disabled_by,
    dump_without_imports,
    elsewhere,
    imports,
    list_runtimes,
)

_NO_CRI = (
    "containerd does not serve Kubernetes here: disabled_plugins lists {name}, Docker's package "
    "default; nothing to do (to run pods, remove it from {root} and restart containerd)"
)


@dataclass(frozen=True, slots=True)
class Observed(RuntimeObservation):
    """containerd's files, what it makes of them, and whether the service has read them.

    Args:
        root_path: the file it reads.
    """

    found: Found = field(default_factory=Found)
    root_path: str = ""


class ContainerdHandlerRegistered(RuntimeServiceState[Observed]):
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
            files back when it does not come up, and starts it where it is stopped; ``none`` leaves the
            service alone. A disabled one is enabled and started, unless another runtime is enabled or
            runs.

    Disruption:
        ``RESTART`` of containerd when its effective configuration changes; containers go on.

    Raises:
        RefusedError: the files cannot be edited without touching what is not ours, or containerd
            would not do what they say.
        StepFailed: containerd cannot read the new files, or does not come up with them.
    """

    name: ClassVar[str] = "containerd"
    supported_runtime: ClassVar[str] = "containerd 1.6, 1.7 and 2"
    stable: ClassVar[tuple[str, ...] | None] = (
        *("digest", "lacks", "read", "running", "version", "root_path"),
    )
    label: ClassVar[str] = "containerd"
    evidence: ClassVar[str] = "containerd config dump"

    enable_cdi: bool | None = True
    config_path: AbsolutePath | None = None
    drop_in_path: AbsolutePath | None = None
    unit: ServiceName = "containerd.service"
    socket: AbsolutePath | None = None

    def to_handler(self) -> Handler:
        return Handler(self.handler, self.binary, self.default, self.enable_cdi)

    # --- reading the node ------------------------------------------------------------------

    def probe(self, node: Node) -> Observed:
        observed = super().probe(node)
        return replace(observed, root_path=observed.found.started_with)

    def read(self, node: Node) -> Found:
        facts = node.query(ContainerdQuery(self.unit, self.drop_in_path, self.socket))
        files = dict(facts.files)
        try:
            for pattern in elsewhere(files, facts.started_with):
                files |= node.read_texts(pattern)
            facts = replace(facts, files=files)
            if self._is_trapped(facts):
                facts = replace(facts, trapped=True)
        except GpustateError:
            return facts  # find_problems() says why
        if facts.trapped and facts.program:
            return replace(facts, dump=node.shell(dump_without_imports(facts)).stdout)
        return facts

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

    def _is_trapped(self, facts: Found) -> bool:
        loaded = self._files(facts.files, facts.started_with)
        root = toml_scan.parse(loaded.root_text or "", facts.started_with)
        versions = [
            toml_scan.parse(text, path).get("version", 1) for path, text in loaded.imported.items()
        ]
        return bool(root) and any(version > root.get("version", 1) for version in versions)

    # --- judging what was observed ---------------------------------------------------------

    def find_problems(self, observed: Observed) -> tuple[str, ...]:
        facts, handler = observed.found, self.to_handler()
        elsewhere(facts.files, facts.started_with)
        if disabled_by(facts.dump):
            return ()
        low_level = deciding_runtime(
            self._files(facts.files, facts.started_with),
            handler,
            containerd_version=facts.version,
            dump_text=facts.dump,
        )
        return handler_problems(effective(facts.dump), handler, low_level=low_level)

    def is_read(self, observed: Observed) -> bool:
        return bool(disabled_by(observed.found.dump)) or super().is_read(observed)

    def is_needed(self, observed: Observed, units: Mapping[str, Unit]) -> bool:
        # Docker's own default: docker starts it.
        return not disabled_by(observed.found.dump) and super().is_needed(observed, units)

    def irrelevant(self, observed: Observed) -> tuple[str, ...]:
        # Docker runs on containerd, and serves no pods in its place.
        return ("docker.service", "docker.socket") if observed.found.served else ()

    def lists_handler(self, observed: Observed) -> bool:
        return self.handler in list_runtimes(observed.found.dump)

    def dead(self, observed: Observed) -> str:
        """By the process itself, where it was asked at the socket that it has."""
        facts = observed.found
        if facts.cri is None or disabled_by(facts.dump):
            return ""
        same_socket = facts.cri.socket == (self.socket or address(facts.dump))
        return super().dead(observed) if same_socket else ""

    def register(self, observed: Observed) -> Edit:
        facts = observed.found
        if name := disabled_by(facts.dump):
            return Edit({}, (_NO_CRI.format(name=name, root=facts.started_with),))
        files = self._files(facts.files, facts.started_with)
        edit = plan_edit(
            files, self.to_handler(), containerd_version=facts.version, dump_text=facts.dump
        )
        # Who adds a comment does not ask for a restart.
        return Edit({}, edit.notes) if not observed.lacks and self._idle(edit, facts) else edit

    def unregister(self, observed: Observed) -> Edit:
        facts = observed.found
        return plan_removal(
            self._files(facts.files, facts.started_with),
            self.to_handler(),
            originals=facts.originals,
            containerd_version=facts.version,
        )

    def _idle(self, edit: Edit, facts: Found) -> bool:
        pattern = marks.import_pattern(self._drop_in(facts.started_with))
        return all(
            text is not None
            and (current := facts.files.get(path)) is not None
            and marks.same(current, text, path, pattern=pattern, name=self.handler)
            for path, text in edit.files.items()
        )

    def check_paths(self, observed: Observed) -> str | None:
        path = observed.found.started_with
        if self.config_path not in (None, path):
            return (
                f"{self.unit} reads {path}, the policy has {self.config_path}; "
                "remove config_path from the policy, or change the unit"
            )
        if not posixpath.isabs(path or "/"):
            return f"{self.unit} names its file {path!r}: write an absolute path there"
        return None

    def refuse(self, observed: Observed) -> str | None:
        return super().refuse(observed) or self._cgroup_drivers(observed)

    def _cgroup_drivers(self, observed: Observed) -> str | None:
        """Refuse to register a handler that would copy another cgroup driver than the kubelet's.

        From containerd 2.0 on the kubelet takes the runtime's word (KEP-4033).
        """
        facts = observed.found
        kubelet, _, where = facts.kubelet_cgroup.partition("|")
        if self.absent or not kubelet or not facts.dump or release(facts.version) >= (2, 0):
            return None
        cri = effective(facts.dump)
        name = "runc" if cri.default_runtime == self.handler else cri.default_runtime
        options = cri.runtimes.get(name, {}).get("options", {})
        runtime = "systemd" if options.get("SystemdCgroup") is True else "cgroupfs"
        if runtime == kubelet or name not in cri.runtimes or not self.edit(observed).files:
            return None
        table = ".".join((cri.cri_path[0], f'"{cri.cri_path[1]}"', "containerd", "runtimes", name))
        return (
            f"cgroup drivers disagree: kubelet ({where}): {kubelet}, containerd's {name}: {runtime}; set SystemdCgroup = "
            f"{str(kubelet == 'systemd').lower()} in [{table}.options] of {facts.started_with}, then: systemctl restart {self.unit}"
        )

    def explain_dead(self, observed: Observed, edit: Edit) -> str:
        if not observed.read:
            return ""
        facts = observed.found
        if edit.files and (config := effective(facts.dump)).default_runtime not in config.runtimes:
            return ""  # a default runtime that is not there comes with the edit
        return f"{observed.dead}; fix that in {facts.started_with} first, and restart {self.unit}"

    # --- the daemon ------------------------------------------------------------------------

    def rollback_paths(self, observed: Observed) -> tuple[str, ...]:
        root = observed.found.started_with
        return (root, self._drop_in(root))

    def compares_dumps(self, observed: Observed) -> bool:
        return not observed.found.trapped

    def daemon(self, observed: Observed) -> Daemon:
        facts = observed.found
        try:
            config = effective(facts.dump)
            own_default = self.default or config.default_runtime == self.handler
            # containerd 1.x: the built-in runc comes with the handler.
            runc = {"runc"} - config.runtimes.keys()
        except ProbeError:
            own_default, runc = True, set()
        functions = scripts.functions(
            *(facts.program, facts.version, facts.started_with),
            self.socket or address(facts.dump),
            handler=self.handler,
            binary=self.binary,
            own_default=own_default,
            runtimes=sorted(runc | marks.marked_runtimes(facts.files)),
        )
        return Daemon("containerd", self.unit, functions, self.handler)
