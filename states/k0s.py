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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from gpustate import Node, Step, ops, shell
from gpustate.core.queries import Answer
from gpustate.core.shared_probes import show_unit
from gpustate.documents import Json
from gpustate.errors import RefusedError
from gpustate.formats.containerd import Edit, effective, handler_problems
from gpustate.formats.containerd.marks import DROP_IN
from gpustate.formats.containerd.place import render_table
from gpustate.formats.toml_scan import parse, render_value
from gpustate.ops.daemon_seen import BLOBS, read_rows
from gpustate.runtimes.facts import CriQuery, RuntimeFacts, RuntimeObservation
from gpustate.runtimes.state import RuntimeState, bundled_problems

ROOT_PATH = "/etc/k0s/containerd.toml"
#: Sorted behind what NVIDIA's tools are told to write there.
DROP_IN_PATH = "/etc/k0s/containerd.d/zz-gpustate.toml"
MERGED_PATH = "/run/k0s/containerd-cri.toml"
SOCKET = "/run/k0s/containerd.sock"
UNITS = ("k0sworker", "k0scontroller")


@dataclass(frozen=True, slots=True)
class Found(RuntimeFacts):
    """k0s as the node has it: our drop-in, and as ``dump`` what k0s has merged, empty where it has not run yet.

    Args:
        unit: the service that runs, or the one that is there; empty where there is no k0s.
        managed: k0s manages its containerd's configuration.
    """

    unit: str = ""
    managed: bool = True


@dataclass(frozen=True, slots=True)
class K0sQuery(CriQuery[Found]):
    """Which k0s service is here, its three files, and what its containerd says."""

    def fragment(self) -> str:
        each = "\n".join(f'print_unit {unit} "{show_unit(f"{unit}.service")}"' for unit in UNITS)
        script = shell.load(
            "k0s",
            "gpustate.states",
            ROOT=ROOT_PATH,
            DROP_IN=DROP_IN_PATH,
            MERGED=MERGED_PATH,
            SOCKET=SOCKET,
        )
        return BLOBS + shell.fill(script, EACH=each)

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "k0s' files", ("file",))
        units = rows.pairs("unit")
        if not units:
            return Found()
        running = [unit for unit, state in units.items() if state == "active"]
        files = rows.blobs["file"]
        root = files.get(ROOT_PATH, "k0s_managed=true")
        return Found.read(
            rows,
            program="k0s",
            unit=(running or list(units))[0],
            active="active" if running else "",
            managed="k0s_managed=true" in "".join(root.splitlines()[:2]),
            files={path: text for path, text in files.items() if path == DROP_IN_PATH},
            dump=files.get(MERGED_PATH, ""),
        )

    def placeholder(self) -> Found:
        return Found()


@dataclass(frozen=True, slots=True)
class Observed(RuntimeObservation):
    """The drop-in, and what k0s has made of it."""

    found: Found = field(default_factory=Found)


class K0sHandlerRegistered(RuntimeState[Observed]):
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
    label: ClassVar[str] = "k0s"
    process: ClassVar[str] = "the containerd of k0s"
    evidence: ClassVar[str] = MERGED_PATH

    def read(self, node: Node) -> Found:
        return node.query(K0sQuery())

    def service(self, observed: Observed) -> str:
        return observed.found.unit

    def restarts(self, observed: Observed) -> bool:
        return bool(observed.found.active)

    def find_problems(self, observed: Observed) -> tuple[str, ...]:
        facts = observed.found
        if not facts.active or not facts.dump:
            return ()
        missing = handler_problems(effective(facts.dump, MERGED_PATH), self.to_handler())
        return bundled_problems(facts.cri, self.handler, missing)

    def unregister(self, observed: Observed) -> Edit:
        files = observed.found.files
        _refuse_foreign(files.get(DROP_IN_PATH))
        is_own = files.get(DROP_IN_PATH, "").startswith(DROP_IN)
        return Edit({DROP_IN_PATH: None} if is_own else {})

    def register(self, observed: Observed) -> Edit:
        facts = observed.found
        text = facts.files.get(DROP_IN_PATH)
        _refuse_foreign(text)
        if not facts.managed:
            raise RefusedError(
                f"{ROOT_PATH} is not managed by k0s, so it reads no drop-ins: remove that file and restart "
                f"{facts.unit}, or register the handler in it yourself"
            )
        if text is None and facts.dump and not observed.lacks:
            return Edit({})  # a foreign registration with the same effect
        desired = self._drop_in(facts)
        why = "k0s restarts its containerd when it changes" if facts.active else ""
        return Edit({} if desired == text else {DROP_IN_PATH: desired}, why=why)

    def _drop_in(self, facts: Found) -> str:
        """The drop-in, in the version of what k0s has merged."""
        merged: Json = parse(facts.dump or "version = 2\n", MERGED_PATH)
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

    def apply_edit(self, observed: Observed, edit: Edit) -> Iterator[Step]:
        yield from self.write_steps(observed, edit)
        if self.restarts(observed):
            yield self._wait(present=not self.absent)

    def _wait(self, *, present: bool) -> ops.Run:
        registered = f"grep -qF {shlex.quote(self.binary)} {MERGED_PATH}"
        lines = [
            # k0s restarts its containerd when it has merged, and that makes its socket anew.
            f"taken() {{ [ {SOCKET} -nt {MERGED_PATH} ] && {registered if present else f'! {registered}'}; }}",
            "if wait_for 60 taken; then effect read; exit 0; fi",
        ]
        if present:
            lines.append(f"roll_back {DROP_IN_PATH}")
        lines.append(
            f'fail "k0s did not load {DROP_IN_PATH}; see: journalctl -u k0scontroller -u k0sworker"'
        )
        return ops.RunLive("\n".join(lines), "wait for k0s to restart its containerd", 120)


def _refuse_foreign(text: str | None) -> None:
    if text and text.strip() and not text.startswith(DROP_IN):
        raise RefusedError(f"{DROP_IN_PATH} was not written by gpustate; rename it")
