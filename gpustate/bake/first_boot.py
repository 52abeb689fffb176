"""What an image cannot hold is done by its machine at the first boot: a program, a unit, a result.

The last state of a bake. It asks the other states for their ``first_boot`` steps and compiles them
into one program, as the steps of an apply are: POSIX sh with a journal, no network, no Python but
for what a step itself starts. The unit is enabled in the image. It takes the node's lock, so that an
apply that comes early waits or is told; it does everything again when the power was lost in the
middle, for every step is harmless when done twice; it disables itself when every step has worked,
and otherwise fails, at every boot, until one works. ``$G/firstboot/result`` says how it stands.

Surprising: the unit has no default dependencies' wait on multi-user.target turned off, as the
validator's own unit has: what joins the machine to a cluster (kubelet, slurmd) comes after it.

Sources:
    systemd.unit(5), systemd.service(5): oneshot units are "activating" until they end.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gpustate import ops, shell
from gpustate.core.change import Plan
from gpustate.core.facts import NodeView
from gpustate.core.inventory import InventoryNode
from gpustate.core.node import Node
from gpustate.core.state import AnyState, State, diff
from gpustate.core.step import Step
from gpustate.formats.masking import masked
from gpustate.ops import LIBRARY
from gpustate.plan.make import applicable, must_hold_first

UNIT = "gpustate-firstboot.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
UNIT_LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
_RAN = "# Written by gpustate bake; changes are undone by the next bake.\n"

_UNIT = (
    _RAN
    + """[Unit]
Description=Finish and prove what was baked into this image
ConditionPathExists=@FOLDER@/program
After=local-fs.target systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service
After=nvidia-cdi-refresh.service gpustate-cdi-refresh.service containerd.service
Before=gpustate-validate.service kubelet.service k3s.service rke2-server.service slurmd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh @FOLDER@/run
# Every step has a limit of its own.
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
"""
)

_RUN = "#!/bin/sh\n" + _RAN + shell.load("first_boot", "gpustate.bake")

_PROGRAM = shell.load("first_boot_program", "gpustate.bake")


@dataclass(frozen=True, slots=True)
class Observed:
    """What is there for the first boot, and what should be."""

    work: tuple[str, ...] = ()  # "state: step", in order
    program: str = ""  # digest of all its files; empty: there are none
    unit: str | None = None
    enabled: bool = False
    result: str = ""  # of an earlier first boot: an image made from a machine that has booted
    there: tuple[str, ...] = ()  # paths below the folder
    wanted_work: tuple[str, ...] = ()
    wanted_files: Mapping[str, str] = field(default_factory=dict[str, str])


class FirstBoot(State[Observed]):
    """What was left for the first boot is in the image, and its unit is enabled.

    Made by :func:`first_boot_of`, which knows the other states.

    Disruption:
        ``NONE``: it is for images.
    """

    name: ClassVar[str] = "first-boot"
    states: ClassVar[tuple[AnyState, ...]] = ()
    node: ClassVar[InventoryNode] = InventoryNode("image")

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        view = NodeView(self.node.name, self.node.groups, self.node.vars, facts)
        steps: list[tuple[AnyState, tuple[Step, ...]]] = []
        for state in self.states:
            if applicable(state, view) is None:
                steps.append((state, tuple(state.first_boot(state.probe(node)))))
        folder = self._folder
        texts = node.read_texts(f"{folder}/*")
        unit = node.read_text(UNIT_PATH)
        link = node.stats(UNIT_LINK)
        files, work = compiled(steps, self.states, self.node)
        return Observed(
            work=tuple(texts.get(f"{folder}/labels", "").splitlines()),
            program=_digest({p: t for p, t in texts.items() if p != f"{folder}/result"}),
            unit=unit,
            enabled=UNIT_LINK in link,
            result=texts.get(f"{folder}/result", "").strip(),
            there=tuple(texts),
            wanted_work=work,
            wanted_files=files,
        )

    @property
    def _folder(self) -> str:
        return f"{self.node.state_folder}/firstboot"

    def desired(self, observed: Observed) -> Observed:
        some = bool(observed.wanted_files)
        return replace(
            observed,
            work=observed.wanted_work,
            program=_digest(observed.wanted_files),
            unit=_UNIT.replace("@FOLDER@", self._folder) if some else None,
            enabled=some,
            result="",
        )

    def plan(self, observed: Observed) -> Plan:
        return diff(
            observed,
            self.desired(observed),
            paths={"unit": UNIT_PATH},
            why={"work": "the machine does it itself when it first boots"},
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted = self.desired(observed)
        if "result" in plan.fields:
            yield ops.RemoveFile(f"{self._folder}/result")
        if plan.fields & {"program", "work"}:
            for path in observed.there:
                if path not in observed.wanted_files and not path.endswith("/result"):
                    yield ops.RemoveFile(path)
            for path, text in observed.wanted_files.items():
                yield ops.PutText(path, text, mode=0o755 if path.endswith("/run") else 0o600)
        if "unit" in plan.fields:
            if wanted.unit is None:
                yield ops.RemoveFile(UNIT_PATH)
            else:
                yield ops.PutText(UNIT_PATH, wanted.unit, mode=0o644)
        if "enabled" in plan.fields:
            folder = UNIT_LINK.rpartition("/")[0]
            make = (
                f"mkdir -p {folder}\nln -sfn {UNIT_PATH} {UNIT_LINK}\nsync {folder}\neffect enabled"
            )
            text = make if wanted.enabled else f"rm -f {UNIT_LINK}\neffect disabled"
            yield ops.Run(text, f"{'enable' if wanted.enabled else 'disable'} {UNIT}")


def first_boot_of(states: Sequence[AnyState], node: InventoryNode) -> FirstBoot:
    """The state that comes after all others of a bake, and looks behind them."""
    names = tuple(state.name for state in states)
    mine = {"known_after": names, "states": tuple(states), "node": node, "__module__": __name__}
    after_all: type[FirstBoot] = type("FirstBoot", (FirstBoot,), mine)
    return after_all()


def compiled(
    steps: Sequence[tuple[AnyState, tuple[Step, ...]]],
    states: Sequence[AnyState],
    node: InventoryNode,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Path and text of every file of the program, and its steps in words; nothing for no steps."""
    blocks = tuple(
        ops.Block(state.name, must_hold_first(state, states), own) for state, own in steps if own
    )
    program = ops.compile_program(blocks)
    if not program.steps:
        return {}, ()
    folder = f"{node.state_folder}/firstboot"
    words = {
        "@G@": shlex.quote(node.state_folder),
        "@PROC@": shlex.quote(node.proc_root),
        "@SYS@": shlex.quote(node.sys_root),
        "@UNIT@": UNIT,
        "@LINK@": UNIT_LINK,
        "@LINK_FOLDER@": UNIT_LINK.rpartition("/")[0],
    }
    run, head = _RUN, _PROGRAM
    for word, value in words.items():
        run, head = run.replace(word, value), head.replace(word, value)
    labels = [(state, masked(step.label)) for state, step in program.steps]
    work = tuple(f"{state}: {' '.join(label.split())}" for state, label in labels)
    told = [{"state": state, "label": label} for state, label in labels]
    files = {
        **program.files,
        "library": LIBRARY,
        "labels": "".join(f"{line}\n" for line in work),
        "steps.json": json.dumps(told) + "\n",
        "run": run,
        # Last: where it is not, the unit does nothing.
        "program": head + program.text,
    }
    return {f"{folder}/{name}": text for name, text in files.items()}, work


def _digest(files: Mapping[str, str]) -> str:
    if not files:
        return ""
    text = json.dumps(sorted(files.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
