"""k0s' containerd serves the NVIDIA runtime handler, from a drop-in that is wholly ours.

k0s manages its containerd's configuration, merges the CRI plugin's settings of every file in
/etc/k0s/containerd.d into one key by key, and restarts its containerd itself when one of them changes. So
one small file is put there, and what k0s makes of it is waited for in /run/k0s/containerd-cri.toml.

Surprising: none of that happens once the first line of /etc/k0s/containerd.toml, ``# k0s_managed=true``, is
gone. Such a node is refused: its containerd is the administrator's, and the state ``containerd`` is not a help
for it either, since k0s' unit does not name its file.

Sources:
    docs.k0sproject.io "Runtime", k0s managed dynamic runtime configuration (1.27 and later); k0sproject/k0s,
    pkg/component/worker/containerd (``watchDropinConfigs``). No package of k0s was at hand to try it with:
    the tests run a stand-in that merges by that source.
    NVIDIA/gpu-operator#1323: the toolkit's container asks the wrong containerd for its configuration.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

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
from gpustate.core.queries import Answer, Query, ShippedFile
from gpustate.core.required_programs import HandlerName
from gpustate.core.shared_probes import shown
from gpustate.core.state import AnyState
from gpustate.formats.containerd import Handler, effective, handler_problems
from gpustate.formats.containerd.marks import DROP_IN
from gpustate.formats.containerd.place import render_table
from gpustate.formats.toml_scan import parse, render_value
from gpustate.ops.daemon_seen import BLOBS, or_refusal, read_rows
from gpustate.ops.daemons import RUNTIME, missing_programs, missing_runtime, require
from gpustate.probes import cri_queries, cri_status

ROOT_PATH = "/etc/k0s/containerd.toml"
#: Sorted behind what NVIDIA's tools are told to write there.
DROP_IN_PATH = "/etc/k0s/containerd.d/zz-gpustate.toml"
MERGED_PATH = "/run/k0s/containerd-cri.toml"
SOCKET = "/run/k0s/containerd.sock"
UNITS = ("k0sworker", "k0scontroller")

_SCRIPT = rf"""
run=
one() {{ # unit, what systemd shows of it
  if [ -d /run/systemd/system ]; then
    l=; a=; while IFS= read -r r; do case $r in LoadState=*) l=${{r#*=}} ;; ActiveState=*) a=${{r#*=}} ;; esac; done <<END
$2
END
    [ "$l" != loaded ] || {{ echo "unit=$1 $a"; [ "$a" != active ] || run=1; }}
  else
    [ ! -e /etc/systemd/system/$1.service ] || echo "unit=$1 "
  fi
}}
{chr(10).join(f'one {unit} "{shown(f"{unit}.service")}"' for unit in UNITS)}
for f in {ROOT_PATH} {DROP_IN_PATH} {MERGED_PATH}; do [ -f "$f" ] && blob file "$f" "$f"; done
told
odd {ROOT_PATH} {DROP_IN_PATH} || exit 0
[ -z "$run" ] || cri_says {SOCKET}
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The drop-in, and what k0s has made of it.

    Args:
        unit: the service that runs, or the one that is there; empty where there is no k0s.
        active: it runs.
        managed: k0s manages its containerd's configuration.
        text: our drop-in.
        merged: what k0s has merged; ``None`` where it has not run yet.
        lacks: what the handler lacks in that, or in the running process.
        dead: why no pod can start with the running containerd; empty where one can.
        missing_programs: programs of the handler that do not exist.
    """

    unit: str = ""
    active: bool = False
    managed: bool = True
    text: str | None = None
    merged: str | None = None
    lacks: tuple[str, ...] = ()
    dead: str = ""
    missing_programs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What the node says: the files, and the running containerd, which is asked where k0s runs."""

    observed: Observed = field(default_factory=Observed)
    cri: cri_status.CriStatus | None = None


@dataclass(frozen=True, slots=True)
class K0sQuery(Query[Found]):
    """Which k0s service is here, its three files, and what its containerd says."""

    @property
    def ships(self) -> tuple[ShippedFile, ...]:
        """What asks the running process."""
        return cri_queries.SHIPS

    def script(self) -> str:
        return cri_queries.CRI_SAYS + BLOBS + _SCRIPT

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "k0s' files", ("file",))
        units = rows.pairs("unit")
        if not units:
            return Found()
        rows.only_files()
        running = [unit for unit, state in units.items() if state == "active"]
        files = rows.blobs["file"]
        root = files.get(ROOT_PATH)
        observed = Observed(
            unit=(running or list(units))[0],
            active=bool(running),
            managed=root is None or "k0s_managed=true" in "".join(root.splitlines()[:2]),
            text=files.get(DROP_IN_PATH),
            merged=files.get(MERGED_PATH),
        )
        return Found(observed, cri_status.read(rows.keys))

    def placeholder(self) -> Found:
        return Found()


class K0sHandlerRegistered(State[Observed]):
    """k0s' containerd serves the NVIDIA runtime handler, and its other settings are what they were.

    On a node without k0s there is nothing to do.

    Args:
        handler: its name, which a RuntimeClass refers to.
        binary: absolute path of ``nvidia-container-runtime``.
        default: containers that name no handler get this one.

    Disruption:
        ``RESTART``: k0s restarts its containerd when the drop-in changes; containers go on.

    Raises:
        StepFailed: k0s does not take the drop-in up, or its containerd does not come up with it.
    """

    name: ClassVar[str] = "k0s"
    supported_runtime: ClassVar[str] = "k0s"
    needs: ClassVar[tuple[str, ...]] = ("preflight", "container-toolkit")
    worst: ClassVar[Disruption] = Disruption.RESTART
    stable: ClassVar[tuple[str, ...] | None] = ("unit", "active", "managed", "text", "lacks")

    handler: HandlerName = "nvidia"
    binary: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./+@:-]+$")] = RUNTIME
    default: bool = False

    def conflicts(
        self, policy: Mapping[str, AnyState], facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        if observed is not None and not self.absent:
            missing, registered = observed.missing_programs, bool(observed.unit)
            yield from missing_runtime(self.binary, missing, policy, registered=registered)

    def probe(self, node: Node) -> Observed:
        found = node.query(K0sQuery())
        missing = () if self.absent else missing_programs(node, self.binary)
        observed, cri = replace(found.observed, missing_programs=missing), found.cri
        if self.absent or not observed.active or observed.merged is None:
            return observed
        try:
            lacks = handler_problems(effective(observed.merged), self._handler())
        except ProbeError as error:
            lacks = (str(error),)
        if cri is None:
            return replace(observed, lacks=lacks)
        if not lacks and (unserved := cri.lacks(self.handler)):
            lacks = (f"the running containerd has {unserved}",)
        return replace(observed, lacks=lacks, dead=cri.dead("the containerd of k0s"))

    def _handler(self) -> Handler:
        return Handler(self.handler, self.binary, self.default)

    def _text(self, observed: Observed) -> str | None:
        """The drop-in, in the version of what k0s has merged; ``None`` for none."""
        if self.absent:
            ours = (observed.text or DROP_IN).startswith(DROP_IN)
            return None if ours else observed.text
        if not observed.unit:
            return observed.text
        if observed.text is None and observed.merged is not None and not observed.lacks:
            return None  # registered by somebody else with the same effect
        merged: dict[str, Any] = parse(observed.merged or "version = 2\n", MERGED_PATH)
        version = merged.get("version", 2)
        names = {2: "io.containerd.grpc.v1.cri"}
        cri = ("plugins", names.get(version, "io.containerd.cri.v1.runtime"), "containerd")
        model = merged.get("plugins", {}).get(cri[1], {}).get("containerd", {})
        options = model.get("runtimes", {}).get("runc", {}).get("options", {})
        table = {
            "runtime_type": "io.containerd.runc.v2",
            "options": {**options, "BinaryName": self.binary},
        }
        lines = [DROP_IN, f"version = {version}", ""]
        if self.default:
            lines += [f'[plugins."{cri[1]}".containerd]']
            lines += [f"  default_runtime_name = {render_value(self.handler)}", ""]
        lines += render_table((*cri, "runtimes", self.handler), table)
        return "\n".join(lines) + "\n"

    def desired(self, observed: Observed) -> Observed:
        if self.refuse(observed) is not None:
            return observed
        # What k0s makes of it is a fact of its own: its merged file is not changed by us.
        return replace(observed, text=self._text(observed), lacks=(), dead="")

    def refuse(self, observed: Observed) -> str | None:
        if observed.text and observed.text.strip() and not observed.text.startswith(DROP_IN):
            return f"{DROP_IN_PATH} was not written by gpustate; rename it"
        if self.absent or not observed.unit:
            return None
        if not observed.managed:
            return (
                f"{ROOT_PATH} is not managed by k0s, so it reads no drop-ins: remove that file and restart "
                f"{observed.unit}, or register the handler in it yourself"
            )
        try:
            text = self._text(observed)
        except ProbeError as error:
            return str(error)
        if observed.dead and text == observed.text:
            return f"{observed.dead}; see journalctl -u {observed.unit}, fix that and restart it"
        if observed.lacks and text == observed.text:
            return (
                f"{DROP_IN_PATH} matches the policy, but k0s has: {'; '.join(observed.lacks)}; "
                f"see {MERGED_PATH} and journalctl -u {observed.unit}"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        if self.refuse(observed) is not None:
            return Plan()
        text = self._text(observed)
        if text == observed.text:
            none = not observed.unit and not self.absent
            return Plan(notes=("k0s is not installed here: nothing to do",) if none else ())
        cost = Disruption.RESTART if observed.active else Disruption.NONE
        why = "k0s restarts its containerd when it changes" if observed.active else ""
        return Plan((Change("text", observed.text, text, cost, why, path=DROP_IN_PATH),))

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "text" not in plan.fields:
            return
        text = self._text(observed)
        if text is None:
            yield ops.RemoveOwn(DROP_IN_PATH)
        else:
            yield require(self.binary)
            yield ops.PutText(DROP_IN_PATH, text)
        if observed.active:
            yield self._wait(present=text is not None)

    def _wait(self, *, present: bool) -> ops.Run:
        found = f"grep -qF {shlex.quote(self.binary)} {MERGED_PATH}"
        lines = [
            # k0s restarts its containerd when it has merged, and that makes its socket anew.
            f"taken() {{ [ {SOCKET} -nt {MERGED_PATH} ] && {found if present else f'! {found}'}; }}",
            "if wait_for 60 taken; then effect read; exit 0; fi",
        ]
        if present:
            lines.append(f"roll_back {DROP_IN_PATH}")
        lines.append(
            f'fail "k0s did not load {DROP_IN_PATH}; see: journalctl -u k0scontroller -u k0sworker"'
        )
        return ops.Run(
            "\n".join(lines), "wait for k0s to restart its containerd", 120, running=True
        )

    def verify(self, observed: Observed) -> Plan:
        return or_refusal(self.plan(observed), self.refuse(observed))

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """Nothing: k0s reads its drop-ins when the machine starts it."""
        yield from ()
