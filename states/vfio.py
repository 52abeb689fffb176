"""GPUs are handed to virtual machines: the IOMMU is on, and vfio-pci holds them from boot on.

Three things have to hold together: kernel arguments that turn the IOMMU on, ``driver_override`` of every
chosen device before another driver takes it, and IOMMU groups that hold nothing else with a driver. The first
shows only after a reboot, the second does not survive one: so a small unit writes it at boot, before udev
loads drivers.

Surprising: a device that the NVIDIA driver or a console holds is not taken from it: the write to ``unbind``
waits in the kernel until the last user is gone, for ever if need be. Such a device changes hands at the next
boot, which is planned. And where every GPU is handed over, nvidia.ko finds none and does not load ("No
such device"): a node is for containers or for virtual machines, or its GPUs are divided between both by
address, not by their kind.

Sources:
    :mod:`gpustate.formats.vfio`, :mod:`gpustate.formats.grub`. NVIDIA/cloud-native-docs, gpu-operator-kubevirt.rst
    (kernel arguments); Linux, Documentation/driver-api/vfio.rst (groups); kernel-parameters.txt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from gpustate import Disruption, Node, Plan, State, Step, diff, ops
from gpustate.formats import grub, vfio
from gpustate.ops import cmdline
from gpustate.probes.kernel_cmdline import CommandLineQuery

UNIT = "gpustate-vfio.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
PROGRAM_PATH = "/usr/local/sbin/gpustate-vfio"
UNIT_TEXT = f"""# Written by gpustate (state vfio); changes are undone by the next apply.
[Unit]
Description=Hand PCI devices to vfio-pci
DefaultDependencies=no
Conflicts=shutdown.target
After=systemd-remount-fs.service
Before=systemd-udev-trigger.service systemd-modules-load.service sysinit.target shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh {PROGRAM_PATH}

[Install]
WantedBy=sysinit.target
"""


@dataclass(frozen=True, slots=True)
class Device:
    """One function that is chosen."""

    address: str
    driver: str
    override: str
    best: str  # the driver that it should have
    group: str  # IOMMU group; "" while the IOMMU is off
    console: bool

    @property
    def bound(self) -> bool:
        """Its driver is the one it should have."""
        return self.driver.replace("_", "-") == self.best.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Observed:
    """Kernel arguments, the unit, and the devices."""

    drop_in: str | None = None
    menu_lacks: tuple[str, ...] = ()
    running_lacks: tuple[str, ...] = ()
    pending: bool = False
    program_text: str | None = None
    unit_text: str | None = None
    enabled: bool = False
    bound: dict[str, str] = field(default_factory=dict[str, str])  # address: driver
    overrides: dict[str, str] = field(default_factory=dict[str, str])  # address: driver_override
    devices: tuple[Device, ...] = ()
    others_bound: tuple[str, ...] = ()  # others with a driver in the groups of the devices
    line_problem: str = ""  # why the kernel arguments cannot be set
    module: bool = False  # vfio-pci is in the kernel
    used: bool = False  # a virtual machine holds a device
    cpu: str = ""
    image: bool = False


class VfioBound(State[Observed]):
    """The IOMMU is on, and vfio-pci holds the chosen devices, now and at every boot.

    Args:
        devices: addresses (``0000:1b:00.0``), kinds (``10de:2330``) or ``gpus``; empty: nothing.
        passthrough: also ``iommu=pt``, which spares devices of the host the translation.
        arguments: further kernel arguments that the platform needs.
        reboot_timeout_s: how long the node may take to come back, in seconds.

    Disruption:
        ``REBOOT`` where the kernel lacks an argument or another driver holds a device; otherwise ``NONE``.
    """

    name: ClassVar[str] = "vfio"
    labels: ClassVar[Mapping[str, str]] = {
        "bound": "bound to vfio-pci",
        "overrides": "driver overrides",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    after: ClassVar[tuple[str, ...]] = ("nouveau",)
    before: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.REBOOT

    devices: tuple[str, ...] = Field(default=(), strict=False)
    passthrough: bool = True
    arguments: tuple[str, ...] = Field(default=(), strict=False)
    reboot_timeout_s: Annotated[int, Field(ge=60)] = 900

    @field_validator("devices")
    @classmethod
    def _are_devices(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        for text in devices:
            if not vfio.is_device(text):
                raise ValueError(
                    f"{text!r} is not a PCI device; write 0000:1b:00.0, 10de:2330 (lower case) or "
                    "gpus"
                )
        return tuple(dict.fromkeys(devices))

    @field_validator("arguments")
    @classmethod
    def _are_arguments(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if not grub.is_argument(word):
                raise ValueError(
                    f"{word!r} is not a kernel argument; write each as key or key=value"
                )
        return words

    def _words(self, cpu: str) -> tuple[str, ...]:
        """Kernel arguments. Arm and AMD machines have the IOMMU on by default; AMD's is asked for anyway."""
        first = {"GenuineIntel": ("intel_iommu=on",), "AuthenticAMD": ("amd_iommu=on",)}.get(
            cpu, ()
        )
        return (*first, *(("iommu=pt",) if self.passthrough else ()), *self.arguments)

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        line = node.query(CommandLineQuery(self.name))
        program, unit_text = node.own_text(PROGRAM_PATH), node.own_text(UNIT_PATH)
        unit = node.units(UNIT).get(UNIT)
        looked = node.shell(vfio.query_program(self.devices)).stdout if self.devices else ""
        devices, members = _parse_look(looked)
        words = self._words(line.cpu)
        chosen = {device.address for device in devices}
        return Observed(
            drop_in=line.drop_in,
            menu_lacks=line.menu_lacks(words),
            running_lacks=() if facts.image else line.running_lacks(words),
            pending=line.pending,
            program_text=program,
            unit_text=unit_text,
            enabled=unit is not None and unit.enabled,
            bound={d.address: d.driver for d in devices},
            overrides={d.address: d.override for d in devices if "vfio" in d.override},
            devices=devices,
            others_bound=tuple(f"{a} ({k})" for a, k in members if a not in chosen and k),
            line_problem=line.problem(words),
            module="module=1" in looked.splitlines(),
            used="used=1" in looked.splitlines(),
            cpu=line.cpu,
            image=facts.image,
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(
                observed,
                drop_in=None,
                pending=False,
                program_text=None,
                unit_text=None,
                enabled=False,
                overrides={} if self._is_installed(observed) else observed.overrides,
            )
        if not self.devices:
            return observed
        words = self._words(observed.cpu)
        # Arguments that are set already are foreign; nothing is added then.
        preset = observed.drop_in is None and not observed.menu_lacks and not observed.running_lacks
        text = grub.drop_in_text(self.name, words)
        return replace(
            observed,
            drop_in=None if preset or not words else text,
            menu_lacks=(),
            running_lacks=(),
            pending=False,
            program_text=vfio.boot_program(self.devices),
            unit_text=UNIT_TEXT,
            enabled=True,
            bound={d.address: d.driver if d.bound else d.best for d in observed.devices},
            overrides={d.address: d.best for d in observed.devices},
        )

    def _is_installed(self, observed: Observed) -> bool:
        return observed.program_text is not None or observed.unit_text is not None

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            if observed.overrides and observed.used and self._is_installed(observed):
                return "a virtual machine holds a device; shut it down first"
            return None
        return self._unfit(observed) if self.devices and not observed.image else None

    def _unfit(self, observed: Observed) -> str | None:
        if not observed.devices:
            return f"no PCI device is {' or '.join(self.devices)}; see lspci -nn"
        if not observed.module:
            return (
                "the running kernel has no vfio-pci; install the package with its modules "
                "(linux-modules-extra)"
            )
        if observed.line_problem:
            return observed.line_problem
        consoles = [d.address for d in observed.devices if d.console and not d.bound]
        if consoles:
            return (
                f"{', '.join(consoles)} shows the console of this node; choose another console in "
                "the firmware, or exclude the device"
            )
        if observed.others_bound:
            return (
                f"{', '.join(observed.others_bound)} shares an IOMMU group with a chosen device, and "
                "would lose its driver; add it to devices too, or move the card to another slot"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        boot = not self.absent and self._needs_boot(observed)
        takeover = Disruption.REBOOT if boot else Disruption.NONE
        return diff(
            observed,
            self.desired(observed),
            costs={"running_lacks": Disruption.REBOOT, "bound": takeover, "overrides": takeover},
            why={
                "running_lacks": "a kernel reads its command line when it boots",
                "bound": "bound at boot: its current driver may be in use" if boot else "",
            },
            paths={
                "drop_in": grub.drop_in_path(self.name),
                "program_text": PROGRAM_PATH,
                "unit_text": UNIT_PATH,
            },
            notes=tuple(self._notes(observed)),
        )

    def _needs_boot(self, observed: Observed) -> bool:
        held = any(d.driver and not d.bound for d in observed.devices)
        return bool(held or observed.running_lacks or any(not d.group for d in observed.devices))

    def _notes(self, observed: Observed) -> Iterator[str]:
        if self.absent:
            if observed.drop_in is not None:
                yield "the running kernel keeps its arguments until the next boot"
            return
        if not self.devices:
            yield "no device is set: nothing to do"
        elif vfio.GPUS in self.devices:
            yield (
                "no GPU is left for the host: nvidia.ko will not load here (No such device), so "
                "remove the state driver and the states after it from the policy"
            )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if self.absent:
            yield from self._take_away(observed, plan)
            return
        desired = self.desired(observed)
        if "drop_in" in plan.fields and desired.drop_in is not None:
            yield from cmdline.set_arguments(self.name, self._words(observed.cpu))
        elif plan.fields & {"menu_lacks", "pending"}:
            yield cmdline.write_menu(self.name)
        if "program_text" in plan.fields and desired.program_text is not None:
            yield ops.PutText(PROGRAM_PATH, desired.program_text, mode=0o755)
        if "unit_text" in plan.fields:
            yield ops.PutText(UNIT_PATH, UNIT_TEXT, mode=0o644)
            yield ops.DaemonReload()
        if "enabled" in plan.fields:
            yield ops.EnableUnit(UNIT, now=False)
        if plan.fields & {"running_lacks", "bound", "overrides"}:
            if self._needs_boot(observed):
                words = " ".join(observed.running_lacks)
                why = f"the kernel lacks {words}" if words else "another driver holds a device"
                yield ops.Reboot(why, timeout=self.reboot_timeout_s)
            else:
                yield ops.RunLive(
                    f"SYS=$SYS sh {PROGRAM_PATH} || fail 'see above'; effect bound",
                    "bind the devices to their vfio driver",
                    timeout=120,
                )

    def _take_away(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "enabled" in plan.fields or ("unit_text" in plan.fields and observed.enabled):
            yield ops.DisableUnit(UNIT)
        if "overrides" in plan.fields:
            yield ops.RunLive(
                vfio.release_program(tuple(observed.overrides)) + "effect released",
                "bind the devices to their original drivers",
                timeout=120,
            )
        if "drop_in" in plan.fields:
            yield from cmdline.set_arguments(self.name, None)
        elif "pending" in plan.fields:
            yield cmdline.write_menu(self.name)
        # Last: these files are how the next run knows that the overrides are this state's.
        if "unit_text" in plan.fields:
            yield ops.RemoveOwn(UNIT_PATH)
            yield ops.DaemonReload()
        if "program_text" in plan.fields:
            yield ops.RemoveOwn(PROGRAM_PATH)


def _parse_look(text: str) -> tuple[tuple[Device, ...], tuple[tuple[str, str], ...]]:
    """Chosen devices, and (address, driver) of everything in their IOMMU groups."""
    devices: list[Device] = []
    members: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        parts = value.split("|")
        if key == "device" and len(parts) == 6:
            address, driver, override, best, group, console = parts
            override = "" if override == "(null)" else override
            devices.append(Device(address, driver, override, best, group, console == "1"))
        elif key == "member" and len(parts) == 3:
            members[parts[1]] = parts[2]
    return tuple(devices), tuple(sorted(members.items()))
