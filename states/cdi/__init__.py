"""The node has one CDI specification of its GPUs, and it is true, now and after every boot.

A container runtime that injects GPUs by CDI believes the specification: when it names a library of
the driver before, or a device node that has moved, containers fail to start, or start without a
GPU. So its content is judged against the loaded driver, not its age.

There is one place, /var/run/cdi/nvidia.yaml, which is on tmpfs: it has to be written again at every
boot. nvidia-container-toolkit 1.18 and later bring nvidia-cdi-refresh.service for that; for earlier
ones this state brings a unit of its own. Hand-written guides put the file into /etc/cdi, where it
survives a reboot and is wrong afterwards: such a copy is removed when nvidia-ctk made it and it
defines the same devices; anything else in /etc/cdi is left alone.

While a GPU is in quarantine, the specification has the others only: what nvidia-ctk writes is cut down by a
program of ours, here and at boot (:mod:`gpustate.nodeside.cdi_without`).

Surprising: nvidia-cdi-refresh.path fires when a driver package is installed, while the old module
is still loaded, and nothing fires when the new one is loaded; nor does it fire on MIG changes.
A change of many packages fires it so often, or its service fails so often with the former driver, that systemd
stops it (unit-start-limit-hit); it is started again here.

Sources:
    NVIDIA/nvidia-container-toolkit: deployments/systemd, cmd/nvidia-ctk/cdi/generate.
    NVIDIA/nvidia-container-toolkit#1828, #1895: stale device numbers and copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.core.file_queries import refuse_odd
from gpustate.formats import cdi
from gpustate.formats.words import listed
from gpustate.ops.access import make_readable
from gpustate.probes import file_owners
from gpustate.probes.excluded_gpus import ExcludedGpusQuery
from gpustate.states.cdi import leave_out, reading
from gpustate.states.cdi.reading import (
    ENV_PATH,
    OUR_UNIT,
    OUR_UNIT_PATH,
    SPEC_FOLDER,
    SPEC_PATH,
    TOOLKIT_UNITS,
    Observed,
)

OUR_UNIT_TEXT = f"""# Written by gpustate (state cdi); changes are undone by the next apply.
[Unit]
Description=Write the CDI specification of the NVIDIA GPUs
ConditionPathExists=/usr/bin/nvidia-ctk
After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service
Before=containerd.service crio.service docker.service kubelet.service
StartLimitIntervalSec=120
StartLimitBurst=5

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStartPre=-/usr/bin/nvidia-smi -L
ExecStartPre=/bin/mkdir -p /var/run/cdi
ExecStart=/usr/bin/nvidia-ctk cdi generate --output={SPEC_PATH}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""


class CdiSpecificationCurrent(State[Observed]):
    """The CDI specification agrees with the driver and the GPUs, and is written at every boot.

    Disruption:
        ``NONE``: containers that run keep the devices they have; new ones get the right ones.

    Raises:
        RefusedError: something else is where the specification or its folder belongs.
        StepFailed: nvidia-ctk cannot write a specification, for example because the driver's
            libraries and its module differ in version.
    """

    name: ClassVar[str] = "cdi"
    matrix: ClassVar[Mapping[str, object]] = {"cdi": True}
    labels: ClassVar[Mapping[str, str]] = {
        "stale": "outdated entries of the CDI specification",
        "present": "CDI specification exists",
        "access": "files that containers cannot read",
        "leftovers": "old CDI files",
        "refresh": "unit that refreshes the specification",
        "failed": "failed units",
        "dropins": "drop-ins of services",
        "program": "program that refreshes the specification",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight", "driver", "container-toolkit")
    after: ClassVar[tuple[str, ...]] = ("persistenced", "mps")
    known_after: ClassVar[tuple[str, ...]] = ("driver", "container-toolkit", "mig", "quarantine")
    needs_gpu: ClassVar[bool] = True
    worst: ClassVar[Disruption] = Disruption.NONE

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        version = cdi.driver_version(node.read_text("/proc/driver/nvidia/version"))
        env, unit_text = node.read_text(ENV_PATH), node.own_text(OUR_UNIT_PATH)
        keys, specs = reading.split(node.shell(reading.SCRIPT).stdout)
        for row in () if self.absent else keys.get("odd", ()):
            refuse_odd(row)
        statuses = node.units(*TOOLKIT_UNITS, OUR_UNIT)
        units = {u: statuses[u].unit_file_state for u in keys.get("unit", []) if u in statuses}
        world = reading.world(version, keys, node.query(ExcludedGpusQuery()))
        stats = node.stats(SPEC_FOLDER, SPEC_PATH)
        paths = [leave_out.dropin_path(unit) for unit in (TOOLKIT_UNITS[0], OUR_UNIT)]
        dropins = {path: node.own_text(path) for path in paths}
        program = {path: node.own_text(path) for path in leave_out.program()}
        stale, present, copies, foreign = reading.judged(specs, world)
        return Observed(
            stale=stale if facts.systemd else (),
            present=present,
            access=reading.access(stats) if facts.systemd and not self.absent else (),
            leftovers=copies,
            refresh=tuple(unit for unit, state in units.items() if state.startswith("enabled")),
            failed=tuple(
                unit
                for unit in units
                if unit.endswith(".path") and statuses[unit].active_state == "failed"
            ),
            unit_text=unit_text,
            dropins={path: text for path, text in dropins.items() if text is not None},
            program=leave_out.how(program),
            toolkit_units=tuple(unit for unit in TOOLKIT_UNITS if unit in units),
            masked=tuple(unit for unit, state in units.items() if state.startswith("masked")),
            foreign=foreign,
            redirected=reading.redirected(env or ""),
            driver_version=version,
            gpus=len(world.gpus),
            held=tuple(gpu.uuid or f"/dev/nvidia{gpu.minor}" for gpu in world.gpus if gpu.held),
            python="python" in keys,
            proc=keys.get("proc", ["/proc"])[0],
            ctk="ctk" in keys,
            nodeless=tuple(
                f"/dev/nvidia{gpu.minor}"
                for gpu in world.gpus
                if gpu.uuid and f"/dev/nvidia{gpu.minor}" not in world.nodes
            ),
            lost=reading.lost(specs.get(SPEC_PATH, ""), keys),
            image=not facts.systemd,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(
                observed,
                stale=(),
                present=False,
                refresh=(),
                unit_text=None,
                dropins={},
                program=leave_out.NONE,
            )
        own_unit = not observed.toolkit_units
        unit = OUR_UNIT if own_unit else TOOLKIT_UNITS[0]
        return replace(
            observed,
            stale=(),
            access=(),
            present=(observed.present or not observed.image)
            and not (0 < observed.gpus == len(observed.held)),
            dropins=leave_out.dropins(unit, observed.proc) if observed.held else {},
            program=leave_out.MANAGED if observed.held else leave_out.NONE,
            leftovers=(),
            failed=(),
            refresh=(OUR_UNIT,) if own_unit else observed.toolkit_units,
            unit_text=OUR_UNIT_TEXT if own_unit else None,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            return None
        if not observed.ctk:
            return (
                "nvidia-ctk is not installed or not executable; add the state container-toolkit "
                "to the policy"
            )
        if observed.masked:
            unit = observed.masked[0]
            return (
                f"{unit} is masked, so the specification is not written at boot; run: systemctl "
                f"unmask {unit}"
            )
        if observed.redirected:
            return (
                f"{ENV_PATH} sets {observed.redirected}: the specification would be wrong after a "
                "reboot; remove that line"
            )
        if observed.foreign:
            return (
                f"{', '.join(observed.foreign)} defines GPUs of the same names and was not written by nvidia-ctk "
                "alone: remove it, or rename its devices"
            )
        if observed.lost:
            return _first_put_back(observed.lost)
        if observed.held and not observed.python:
            return (
                f"{', '.join(observed.held)} is in quarantine, and removing it from the "
                "specification needs python3, which is missing or incomplete (python3-minimal); "
                "install python3"
            )
        if not observed.image and not (observed.driver_version and observed.gpus):
            return (
                "no GPU to describe: the nvidia module is not loaded or drives no GPU; add the "
                "state driver to the policy, or check nvidia-smi"
            )
        if observed.nodeless and not observed.image:
            return (
                f"{', '.join(observed.nodeless)} is missing, and the specification would omit "
                "that GPU; add the state driver to the policy, which creates the device node"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        return diff(
            observed,
            self.desired(observed),
            why={}
            if self.absent
            else {
                "stale": f"driver {observed.driver_version} is loaded"
                if observed.driver_version
                else "",
                "access": "rootless containers read it as their user",
                "present": "on tmpfs: rewritten at every boot",
                "leftovers": "duplicate left by nvidia-ctk in a second folder, never refreshed",
                "refresh": "writes the specification at boot",
                "failed": "rewrites the specification when the driver's files change; it is started again",
                "dropins": f"{', '.join(observed.held)} is in quarantine"
                if observed.held
                else "no GPU is in quarantine",
            },
            paths={"unit_text": OUR_UNIT_PATH},
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        after = self.desired(observed)
        if "leftovers" in plan.fields:
            for path in observed.leftovers:
                yield ops.RemoveOwn(path)
        yield from self._units(observed, after, plan)
        if plan.fields & {"dropins", "program"}:
            yield from leave_out.steps(observed, after)
        if self.absent:
            if "present" in plan.fields or "stale" in plan.fields:
                yield ops.RemoveOwn(SPEC_PATH)
        elif plan.fields & {"stale", "present"}:
            text = leave_out.write(observed.proc) if observed.held else _GENERATE
            yield ops.Run(text, f"write {SPEC_PATH} with nvidia-ctk", 180)
        if "access" in plan.fields:
            yield make_readable(SPEC_FOLDER, SPEC_PATH)
        watching = " ".join(unit for unit in observed.toolkit_units if unit.endswith(".path"))
        if watching and not (self.absent or observed.image) and plan.fields & _WATCHED:
            # Last, for a change above may start it once more. A service that has failed with the former driver
            # is restarted until its limit, and then systemd stops what watches for it.
            units = " ".join(TOOLKIT_UNITS)
            yield ops.Run(
                f"systemctl stop {TOOLKIT_UNITS[0]}\nsystemctl reset-failed {units} 2>/dev/null || :\nsystemctl start {watching}",
                f"start {watching} again",
            )

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent:
            unless = 'set -- "$PROC"/driver/nvidia/gpus/*; [ -e "$1" ] || { echo "no GPU to describe"; effect same; exit 0; }'
            text = f"{unless}\n{_GENERATE}"
            yield ops.RunLive(text, f"write {SPEC_PATH} with nvidia-ctk", 180)

    def _units(self, observed: Observed, after: Observed, plan: Plan) -> Iterator[Step]:
        units = [unit for unit in observed.refresh if unit not in after.refresh]
        if "refresh" in plan.fields:
            for unit in units:
                yield ops.DisableUnit(unit)
        if "unit_text" in plan.fields:
            yield ops.put_own(OUR_UNIT_PATH, after.unit_text)
        if "refresh" in plan.fields:
            for unit in after.refresh:
                if unit not in observed.refresh:
                    # Starting the service would write the specification a second time.
                    yield ops.EnableUnit(unit, now=unit.endswith(".path") and not observed.image)


def _first_put_back(lost: Mapping[str, str]) -> str:
    path, package = next(iter(lost.items()))
    state = file_owners.state_of(package, path)
    by_hand = (
        f"install {package} again (apt-get install --reinstall {package}, dnf reinstall {package})"
    )
    return (
        f"{listed([*lost], 1)} of the package {package} "
        "is missing, and a specification written now would omit it; "
        f"{f'apply the state {state} with this one, which restores it, or ' if state else ''}{by_hand}"
    )


#: What differs after a change of the driver, which makes the toolkit's service run again and again.
_WATCHED = frozenset({"stale", "present", "failed"})
_GENERATE = shell.load("generate_cdi", "gpustate.shell", SPEC=SPEC_PATH) + "effect generated\n"

__all__ = ["CdiSpecificationCurrent", "Observed"]
