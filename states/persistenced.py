"""``nvidia-persistenced`` runs at boot and keeps every GPU in persistence mode.

Without it the driver lets go of a GPU when its last client exits: the next program waits a second
or more for it to come up again, power limits and clocks are forgotten, and a monitoring agent that
polls wakes every GPU each time. The daemon replaces the older ``nvidia-smi -pm 1``, which does not
survive a reboot.

Surprising: the packages differ. NVIDIA's start the daemon in persistence mode. Ubuntu's start it
with ``--no-persistence-mode``, stop it when nothing wants it, and have no ``[Install]``, so that
``systemctl enable`` cannot help: a drop-in replaces the command line, and ``add-wants`` starts it.

Sources:
    nvidia-persistenced(1); NVIDIA driver persistence documentation;
    Ubuntu, nvidia-graphics-drivers: nvidia-persistenced.service.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from gpustate import Disruption, Node, Plan, Step, ops, shell
from gpustate.bases.service import ServiceObservation, ServiceState
from gpustate.core.planned import PlannedObservation
from gpustate.documents import JsonView
from gpustate.formats import systemd
from gpustate.probes.gpu_facts import GpuFacts, NvmlFacts

UNIT = "nvidia-persistenced.service"
UNIT_PATH = f"/lib/systemd/system/{UNIT}"
#: SLES 15 has a /lib of its own beside /usr/lib.
_RPM_UNIT_PATH = f"/usr{UNIT_PATH}"
DROP_IN_PATH = f"/etc/systemd/system/{UNIT}.d/gpustate.conf"
WANTS_PATH = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
PROGRAM_PATH = "/usr/bin/nvidia-persistenced"
_OFF = "--no-persistence-mode"
_UVM = "--uvm-persistence-mode"
_COMMAND = re.compile(r"^ExecStart\s*=\s*(\S.*)$", re.MULTILINE)
_QUERY = "nvidia-smi --query-gpu=pci.bus_id,persistence_mode --format=csv,noheader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(ServiceObservation):
    """The daemon, and what the GPUs say."""

    drop_in_text: str | None
    persistent: dict[str, bool]  # PCI address: persistence mode is on; GPUs that answer only
    unit_text: str | None
    has_gpus: bool  # here and now; an image has none
    undone: str = ""  # a foreign drop-in, read after ours, that starts it with no persistence mode
    idle: str = ""  # why the service runs nothing: a foreign drop-in
    lacks_program: bool = False  # which the unit of the package runs
    confidential: str = ""  # mode of confidential computing, as NVML reports it


class PersistenceModeEnabled(ServiceState[Observed]):
    """Persistence mode is on for every GPU, now and after a reboot.

    Args:
        uvm_persistence: keep the state of nvidia-uvm loaded too. Must be off for GPUs that may ask
            for the recovery action "Drain P2P".

    Disruption:
        ``NONE``: the daemon opens GPUs and disturbs nobody.
    """

    name: ClassVar[str] = "persistenced"
    labels: ClassVar[Mapping[str, str]] = {"persistent": "persistence mode, by GPU"}
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.NONE
    disturbs: ClassVar[str] = ""
    unit: ClassVar[str] = UNIT
    files: ClassVar[Mapping[str, str]] = {"drop_in_text": DROP_IN_PATH}
    reloads: ClassVar[frozenset[str]] = frozenset({"drop_in_text"})

    uvm_persistence: bool = False

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        # No other state of every preset queries NVML.
        mode = planned.current("confidential")
        modes = {"confidential": ("on", "devtools", "ppcie"), "ppcie": ("ppcie",)}
        return {fact: mode in on if mode else None for fact, on in modes.items()}

    def probe(self, node: Node) -> Observed:
        facts, fields = node.facts(), self.read(node)
        unit_text, rpm_unit_text = node.read_text(UNIT_PATH), node.read_text(_RPM_UNIT_PATH)
        # A static unit is not started by itself.
        unit, wants = node.units(UNIT).get(UNIT), node.stats(WANTS_PATH)
        fields["at_boot"] = bool(wants) or bool(unit and unit.unit_file_state == "enabled")
        program = node.stats(PROGRAM_PATH)
        nvml = NvmlFacts() if facts.image else node.query(GpuFacts())
        name = posixpath.basename(DROP_IN_PATH)
        foreign = {path: text for path, text in node.drop_ins(UNIT).items() if path != DROP_IN_PATH}
        before = {path: text for path, text in foreign.items() if posixpath.basename(path) < name}
        path, command = systemd.effective_command(
            {p: foreign[p] for p in foreign if p not in before}
        )
        return Observed(
            **fields,
            # A GPU that does not report its mode is left to other checks.
            persistent={
                gpu.pci: gpu.persistence_mode
                for gpu in nvml.gpus
                if gpu.persistence_mode is not None
            },
            unit_text="\n".join((text, *before.values()))
            if (text := unit_text or rpm_unit_text) is not None
            else None,
            has_gpus=bool(facts.gpus) and not facts.image,
            undone=path if _OFF in command.split() else "",
            idle=systemd.runs_nothing(foreign, UNIT),
            lacks_program=not program and _program(text, foreign) == PROGRAM_PATH,
            confidential=nvml.confidential,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(
                observed,
                drop_in_text=None,
                active=False,
                at_boot=False,
                # Set by hand (nvidia-smi -pm 1) it is not this state's to remove.
                persistent=dict.fromkeys(observed.persistent, False)
                if observed.active
                else observed.persistent,
            )
        return replace(
            observed,
            drop_in_text=drop_in_text(
                observed.unit_text or "", uvm_persistence=self.uvm_persistence
            ),
            # Without GPUs (an image) the daemon has nothing to do and ends at once.
            active=observed.has_gpus or observed.active,
            at_boot=True,
            persistent=dict.fromkeys(observed.persistent, True),
        )

    def pinned(self, observed: Observed) -> JsonView:
        text = f"{observed.unit_text or ''}\n{observed.drop_in_text or ''}"
        return {"uvm_persistence": _UVM in text.split()}

    def as_before(self, wanted: Observed, observed: Observed, before: JsonView) -> Observed:
        active = wanted.active and before["active"]
        modes: Mapping[str, bool] = before["persistent"]
        return replace(
            wanted,
            drop_in_text=None if before["drop_in_text"] is None else wanted.drop_in_text,
            # One that did not run may be unable to: the driver of before may lack what it needs.
            active=active,
            at_boot=before["at_boot"],
            persistent={pci: modes.get(pci, on) for pci, on in wanted.persistent.items()},
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            return None
        if reason := super().refuse(observed):
            return reason
        if observed.unit_text is None:
            return (
                f"nvidia-persistenced is not installed ({UNIT_PATH} is missing): the state driver installs it where a "
                "repository of the node has it; add that state, or choose the repository that the "
                "driver is from in driver-repository"
            )
        if observed.idle:
            return observed.idle
        if observed.lacks_program:
            return (
                f"{PROGRAM_PATH} is missing, which {UNIT} runs; apply the state driver, which "
                "restores missing package files, or reinstall the package"
            )
        if observed.undone:
            return (
                f"{observed.undone} starts nvidia-persistenced with {_OFF} and overrides "
                "gpustate's drop-in; remove that option or the file"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        plan = super().plan(observed)
        if self.absent or self.desired(observed).active:
            return plan
        # The daemon alone sets the mode.
        return replace(plan, changes=tuple(c for c in plan.changes if c.field != "persistent"))

    def start(self, observed: Observed, desired: Observed, moved: frozenset[str]) -> Iterator[Step]:
        if "at_boot" in moved:
            yield from self._enable(observed) if desired.at_boot else self._disable()
        # Disabling stops it.
        restarts = moved & {"drop_in_text", "active", "persistent"} or not desired.at_boot
        if observed.active and not desired.active:
            yield ops.Run(f"systemctl stop {UNIT}\neffect stopped", f"stop {UNIT}", timeout=120)
        elif restarts and desired.active and observed.has_gpus:
            yield ops.RestartUnit(UNIT)

    def remove(self, observed: Observed, moved: frozenset[str]) -> Iterator[Step]:
        yield from self.configure(observed, self.desired(observed), moved)
        if observed.at_boot or observed.active:
            yield from self._disable()

    def _enable(self, observed: Observed) -> Iterator[Step]:
        if re.search(r"^\[Install\]", observed.unit_text or "", re.MULTILINE):
            yield ops.EnableUnit(UNIT, now=False)
        else:
            yield ops.Run(
                f"systemctl add-wants multi-user.target {UNIT}\neffect enabled",
                "enable nvidia-persistenced at boot",
                timeout=60,
            )

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent:
            yield ops.RunLive(_START, "check that every GPU is in persistence mode", 180)

    def _disable(self) -> Iterator[Step]:
        yield ops.DisableUnit(UNIT)
        yield ops.Run(
            f"[ ! -L {WANTS_PATH} ] || {{ rm -f {WANTS_PATH}; systemd_reload; }}\neffect disabled",
            "disable nvidia-persistenced at boot",
            timeout=60,
        )


_START = shell.load("persistenced_start", "gpustate.states", UNIT=UNIT, QUERY=_QUERY)


def _program(unit_text: str | None, drop_ins: Mapping[str, str]) -> str:
    """What the unit runs; empty when nothing says so."""
    commands = _COMMAND.findall("\n".join((unit_text or "", *drop_ins.values())))
    return commands[-1].split()[0].lstrip("-@:+!") if commands else ""


def drop_in_text(unit_text: str, *, uvm_persistence: bool) -> str | None:
    """The drop-in a unit needs, ``None`` when the package's own unit is right as it is."""
    command = _COMMAND.findall(unit_text)
    words = command[-1].split() if command else []
    off = _OFF in words
    stops = re.search(r"^StopWhenUnneeded\s*=\s*(true|yes|1|on)", unit_text, re.MULTILINE | re.I)
    add = uvm_persistence and _UVM not in words
    if not words or not (off or stops or add):
        return None
    options = [word for word in words if word not in (_OFF, "--persistence-mode")]
    options.append("--persistence-mode")
    if add:
        options.append(_UVM)
    lines = ["# Written by gpustate; changes are overwritten."]
    if stops:
        lines += ["[Unit]", "StopWhenUnneeded=false"]
    lines += ["[Service]", "ExecStart=", f"ExecStart={' '.join(options)}"]
    return "\n".join(lines) + "\n"
