"""The program that runs the remaining steps of a bake at the first boot of the image.

The last state of a bake. It collects the ``first_boot`` steps of the other states and compiles them into one
program, like the steps of an apply: POSIX sh with a journal, without network. A unit that is enabled in the
image runs it. The program takes the node's lock, so that an early apply reports that the node is locked.
After a power loss it runs all steps again; every step may run twice. It disables the unit once all steps have
succeeded. Otherwise the unit fails, and runs again at every boot. ``$G/firstboot/result`` has its status.

Surprising: unlike the validator's unit, this one has systemd's default dependencies, so multi-user.target
waits for it. kubelet and slurmd, which join the machine to a cluster, start after it.

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
from gpustate.formats.masking import mask
from gpustate.ops import LIBRARY
from gpustate.plan.make import applicable, must_hold_first

UNIT = "gpustate-firstboot.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
UNIT_LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
_RAN = "# Written by gpustate image bake; changes are undone by the next bake.\n"

_UNIT = (
    _RAN
    + """[Unit]
Description=Finish and validate what gpustate baked into this image
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
    """The first-boot files in the image, observed and desired."""

    work: tuple[str, ...] = ()  # "state: step", in order
    program: str = ""  # digest of all its files; empty without files
    unit: str | None = None
    enabled: bool = False
    result: str = ""  # of an earlier first boot, if the image has booted before
    present: tuple[str, ...] = ()  # paths below the folder
    wanted_work: tuple[str, ...] = ()
    wanted_files: Mapping[str, str] = field(default_factory=dict[str, str])


class FirstBoot(State[Observed]):
    """The image has the program of its first boot, with its unit enabled.

    Created by :func:`first_boot_of` with the other states.

    Disruption:
        ``NONE``: images only.
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
            present=tuple(texts),
            wanted_work=work,
            wanted_files=files,
        )

    @property
    def _folder(self) -> str:
        return f"{self.node.state_folder}/firstboot"

    def desired(self, observed: Observed) -> Observed:
        needed = bool(observed.wanted_files)
        return replace(
            observed,
            work=observed.wanted_work,
            program=_digest(observed.wanted_files),
            unit=shell.fill(_UNIT, FOLDER=self._folder) if needed else None,
            enabled=needed,
            result="",
        )

    def plan(self, observed: Observed) -> Plan:
        return diff(
            observed,
            self.desired(observed),
            paths={"unit": UNIT_PATH},
            why={"work": "runs at the first boot"},
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if "result" in plan.fields:
            yield ops.RemoveFile(f"{self._folder}/result")
        if plan.fields & {"program", "work"}:
            for path in observed.present:
                if path not in observed.wanted_files and not path.endswith("/result"):
                    yield ops.RemoveFile(path)
            for path, text in observed.wanted_files.items():
                yield ops.PutText(path, text, mode=0o755 if path.endswith("/run") else 0o600)
        if "unit" in plan.fields:
            if desired.unit is None:
                yield ops.RemoveFile(UNIT_PATH)
            else:
                yield ops.PutText(UNIT_PATH, desired.unit, mode=0o644)
        if "enabled" in plan.fields:
            folder = UNIT_LINK.rpartition("/")[0]
            make = (
                f"mkdir -p {folder}\nln -sfn {UNIT_PATH} {UNIT_LINK}\nsync {folder}\neffect enabled"
            )
            text = make if desired.enabled else f"rm -f {UNIT_LINK}\neffect disabled"
            yield ops.Run(text, f"{'enable' if desired.enabled else 'disable'} {UNIT}")


def first_boot_of(states: Sequence[AnyState], node: InventoryNode) -> FirstBoot:
    """Return the last state of a bake, which is probed after all others are applied."""
    names = tuple(state.name for state in states)
    body = {"known_after": names, "states": tuple(states), "node": node, "__module__": __name__}
    after_all: type[FirstBoot] = type("FirstBoot", (FirstBoot,), body)
    return after_all()


def compiled(
    steps: Sequence[tuple[AnyState, tuple[Step, ...]]],
    states: Sequence[AnyState],
    node: InventoryNode,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return path and text of the program's files, and the labels of its steps; empty without steps."""
    blocks = tuple(
        ops.Block(state.name, must_hold_first(state, states), s) for state, s in steps if s
    )
    program = ops.compile_program(blocks)
    if not program.steps:
        return {}, ()
    folder = f"{node.state_folder}/firstboot"
    words = {
        "G": shlex.quote(node.state_folder),
        "PROC": shlex.quote(node.proc_root),
        "SYS": shlex.quote(node.sys_root),
        "UNIT": UNIT,
        "LINK": UNIT_LINK,
        "LINK_FOLDER": UNIT_LINK.rpartition("/")[0],
    }
    run, head = shell.fill(_RUN, **words), shell.fill(_PROGRAM, **words)
    labels = [(state, mask(step.label)) for state, step in program.steps]
    work = tuple(f"{state}: {' '.join(label.split())}" for state, label in labels)
    listed = [{"state": state, "label": label} for state, label in labels]
    files = {
        **program.files,
        "library": LIBRARY,
        "labels": "".join(f"{line}\n" for line in work),
        "steps.json": json.dumps(listed) + "\n",
        "run": run,
        # Last: the unit does nothing without it.
        "program": head + program.text,
    }
    return {f"{folder}/{name}": text for name, text in files.items()}, work


def _digest(files: Mapping[str, str]) -> str:
    if not files:
        return ""
    text = json.dumps(sorted(files.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
