"""podman gives GPUs by CDI, and by nothing beside it.

podman resolves CDI devices on its own from 4.1 on (``--device nvidia.com/gpu=all``) and reads the
specification that the state ``cdi`` keeps. So nothing is written for it. Two things can still be wrong, and
are looked for: a podman too old to know CDI, and a hook left from before. ``oci-nvidia-hook.json`` in one of
podman's hook folders makes it call NVIDIA's hook for every container that asks for GPUs by environment
variable; with a device of CDI beside it GPUs are injected twice, by rules that disagree, and rootless
containers fail. CRI-O reads the same folders.

A hook that a package owns is not touched. One that nobody owns and that is NVIDIA's is removed, and given
back when this state is removed.

Surprising: podman looks for its CDI folders in containers.conf as well (``cdi_spec_dirs``, from 5.0 on); a
file there that leaves out /var/run/cdi hides every GPU.

Sources:
    oci-hooks(5), containers.conf(5); podman 4.1 release notes.
    NVIDIA/nvidia-container-toolkit#17, install guide "Configuring Podman": CDI instead of the hook.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.core.queries import Answer, Query
from gpustate.errors import ProbeError
from gpustate.formats.toml_scan import parse
from gpustate.ops.daemon_seen import BLOBS, read_rows

#: In podman's order; the one below /run is OpenShift's.
HOOK_FOLDERS = (
    "/usr/share/containers/oci/hooks.d",
    "/etc/containers/oci/hooks.d",
    "/run/containers/oci/hooks.d",
)
CONF_PATHS = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
SPEC_FOLDERS = ("/var/run/cdi", "/run/cdi")
_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Found:
    """podman as the node has it.

    Args:
        version: empty where there is none.
        hooks: path to text of hooks that name NVIDIA.
        owners: path to the package that owns it.
        confs: path to text of its configuration files, in its order.
        originals: path to text of hooks that gpustate has removed.
    """

    version: str = ""
    hooks: Mapping[str, str] = field(default_factory=dict[str, str])
    owners: Mapping[str, str] = field(default_factory=dict[str, str])
    confs: Mapping[str, str] = field(default_factory=dict[str, str])
    originals: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class PodmanQuery(Query[Found]):
    """podman's version, its hooks that name NVIDIA, and its configuration."""

    def script(self) -> str:
        script = shell.load(
            "podman",
            "gpustate.states",
            FOLDERS=" ".join(HOOK_FOLDERS),
            CONFS=" ".join(CONF_PATHS),
            PATTERNS=" ".join(f"{folder}/*" for folder in HOOK_FOLDERS),
        )
        return BLOBS + script

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "podman's hooks", ("hook", "conf"))
        return Found(
            version=rows.last("version"),
            hooks=rows.blobs["hook"],
            owners=rows.pairs("owner"),
            confs=rows.blobs["conf"],
            originals=rows.originals,
        )

    def placeholder(self) -> Found:
        return Found()


@dataclass(frozen=True, slots=True)
class Observed:
    """What stands between podman and the CDI specification.

    Args:
        version: of podman; empty where there is none.
        leftovers: hooks of NVIDIA's that nobody owns.
        kept: hooks that gpustate has removed and can restore.
        owned: hooks of NVIDIA's with the package that owns them.
        hidden: the configuration file that hides the specification; empty where none does.
        problem: why the configuration cannot be judged.
    """

    version: str = ""
    leftovers: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    hidden: str = ""
    problem: str = ""


class PodmanCdiEnabled(State[Observed]):
    """podman finds the GPUs by CDI, and no hook injects them a second time.

    On a node without podman and CRI-O there is nothing to do, unless a hook is left there.

    Disruption:
        ``NONE``: hooks are read when a container is made.
    """

    name: ClassVar[str] = "podman"
    matrix: ClassVar[Mapping[str, object]] = {"podman": "version"}
    labels: ClassVar[Mapping[str, str]] = {
        "leftovers": "old hooks",
        "kept": "files kept from before",
    }
    supported_runtime: ClassVar[str] = "Podman"
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    after: ClassVar[tuple[str, ...]] = ("container-toolkit", "cdi")
    worst: ClassVar[Disruption] = Disruption.NONE

    def probe(self, node: Node) -> Observed:
        facts = node.query(PodmanQuery())
        problem = hidden = ""
        try:
            hidden = _hidden(facts.confs)
        except ProbeError as error:
            problem = str(error)
        hooks = [path for path, text in facts.hooks.items() if _is_nvidias(text)]
        saved = [p for p, text in facts.originals.items() if text is not None and p not in hooks]
        return Observed(
            version=facts.version,
            leftovers=tuple(path for path in hooks if path not in facts.owners),
            kept=tuple(saved),
            owned=tuple(f"{p} of {facts.owners[p]}" for p in hooks if p in facts.owners),
            hidden=hidden,
            problem=problem,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(observed, kept=())
        if not observed.leftovers:
            return observed
        return replace(
            observed, leftovers=(), kept=tuple(sorted({*observed.kept, *observed.leftovers}))
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not observed.version:
            return None
        if observed.problem:
            return observed.problem
        match = _VERSION.match(observed.version)
        if match and (int(match[1]), int(match[2])) < (4, 1):
            return f"podman {observed.version} does not support CDI; upgrade to 4.1 or newer"
        if observed.hidden:
            return (
                f"{observed.hidden} sets cdi_spec_dirs without /var/run/cdi, where the "
                "specification is; add it"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        notes = tuple(
            f"{row} injects GPUs in addition to CDI; remove that package"
            for row in observed.owned
            if not self.absent
        )
        if not observed.version and not observed.leftovers and not self.absent:
            notes += ("podman is not installed here: nothing to do",)
        why = {
            "leftovers": "injects GPUs in addition to CDI",
            "kept": "removal restores the original",
        }
        return diff(observed, self.desired(observed), why=why, notes=notes)

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "leftovers" in plan.fields:
            for path in observed.leftovers:
                yield ops.RemoveFile(path)
        if self.absent and "kept" in plan.fields:
            for path in observed.kept:
                yield ops.RestoreOriginal(path)


def _is_nvidias(text: str) -> bool:
    """Whether a hook calls NVIDIA's program; a file that only mentions it does not."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    hook = data.get("hook") if isinstance(data, dict) else None
    path = hook.get("path") if isinstance(hook, dict) else None
    programs = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
    return isinstance(path, str) and path.rpartition("/")[2] in programs


def _hidden(confs: Mapping[str, str]) -> str:
    """The file whose word on CDI's folders counts, where it leaves out that of the specification."""
    last = ""
    for path, text in confs.items():
        engine = parse(text, path).get("engine", {})
        dirs = engine.get("cdi_spec_dirs") if isinstance(engine, dict) else None
        if isinstance(dirs, list):
            folders = {str(folder).rstrip("/") for folder in dirs}
            last = "" if folders & set(SPEC_FOLDERS) else path
    return last
