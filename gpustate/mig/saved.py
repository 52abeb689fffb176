"""The layout that a node restores at every boot: a text file readable by sh.

One line per GPU, and one per GPU instance with all arguments of ``nvidia-smi mig``, so that the node needs neither a
planner nor Python::

    gpu 00000000:1B:00.0 on
    instance 00000000:1B:00.0 9 4 3g.40gb 3g.40gb
    instance 00000000:1B:00.0 14 0 2g.20gb 1c.2g.20gb,1c.2g.20gb

An instance has the number of its profile, its first memory slice, the profile's name, and its compute
instances, ``-`` for none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from gpustate.mig.change import Change
from gpustate.mig.config import Config, Entry
from gpustate.mig.geometry import Geometry
from gpustate.mig.layout import GpuLayout
from gpustate.mig.names import device_name
from gpustate.mig.plan import GpuPlan

HEAD = "# Written by gpustate (state mig); changes are undone by the next apply.\n"
_GPU = re.compile(r"gpu ([0-9A-F:.]+) (on|off)")
_INSTANCE = re.compile(r"instance ([0-9A-F:.]+) (\d+) (\d+) (\S+) (\S+)")


def bus_id(address: str) -> str:
    """A PCI address in NVML's form: ``00000000:1B:00.0`` for ``0000:1b:00.0``."""
    domain, _, device = address.partition(":")
    return f"{int(domain, 16):08X}:{device.upper()}"


def after(plans: Sequence[GpuPlan], addresses: Mapping[int, str]) -> str:
    """The file after a plan; GPUs outside of the plan are not in it."""
    lines: list[str] = []
    for plan in plans:
        if plan.entry is None or plan.gpu.enabled is None:
            continue
        address = bus_id(addresses[plan.gpu.index])
        lines.append(f"gpu {address} {'on' if plan.entry.enabled else 'off'}")
        geometry = plan.gpu.profiles()
        if plan.entry.enabled and geometry is not None:
            lines += sorted(_instances(address, plan.change, geometry), key=_start)
    return HEAD + "".join(f"{line}\n" for line in lines)


def current_lines(gpu: GpuLayout, address: str) -> str:
    """The lines of a GPU's current layout."""
    instances = [(i.profile, i.start, [piece.slices for piece in i.compute]) for i in gpu.instances]
    geometry = gpu.profiles()
    lines = [f"gpu {bus_id(address)} {'on' if gpu.enabled else 'off'}"]
    if geometry is not None:
        lines += [_line(bus_id(address), geometry, *instance) for instance in instances]
    return "".join(f"{line}\n" for line in lines)


def _instances(address: str, change: Change, geometry: Geometry) -> Iterator[str]:
    for stay in change.preserved:
        pieces = [piece.slices for piece in stay.compute] + [span.size for span in stay.created]
        yield _line(address, geometry, stay.instance.profile, stay.instance.start, pieces)
    for creation in change.created:
        pieces = [span.size for span in creation.compute]
        yield _line(address, geometry, creation.profile, creation.span.start, pieces)


def _line(address: str, geometry: Geometry, name: str, start: int, pieces: list[int]) -> str:
    profile = geometry.get(name)
    number = profile.smi_id if profile is not None and profile.smi_id is not None else 0
    # Large ones first, because the driver chooses placements in the given order.
    devices = ",".join(device_name(slices, name) for slices in sorted(pieces, reverse=True)) or "-"
    return f"instance {address} {number} {start} {name} {devices}"


def _start(line: str) -> int:
    return int(line.split()[3])


def lines_of(text: str, addresses: Collection[str]) -> str:
    """The lines of some GPUs in a file."""
    buses = [f" {bus_id(address)} " for address in addresses if address]
    return "".join(row for row in text.splitlines(True) if any(bus in row for bus in buses))


def is_whole(text: str) -> bool:
    """Whether a file is complete and valid: every line describes a GPU or instance."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    valid = all(_GPU.fullmatch(line) or _INSTANCE.fullmatch(line) for line in lines)
    return bool(lines) and valid


def is_equivalent(text: str, other_text: str) -> bool:
    """Whether two files give the same modes and devices; placements of their instances may differ."""
    first, second = (
        sorted(_INSTANCE.sub(r"\1 \2 \4 \5", line) for line in lines.splitlines())
        for lines in (text, other_text)
    )
    return first == second


def config(text: str, addresses: Mapping[int, str], name: str) -> Config:
    """Convert a file into a configuration; missing GPUs are left out."""
    numbers = {bus_id(address): index for index, address in addresses.items() if address}
    modes: dict[str, bool] = {}
    devices: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        if match := _GPU.fullmatch(line):
            modes[match[1]] = match[2] == "on"
        elif match := _INSTANCE.fullmatch(line):
            counts = devices.setdefault(match[1], {})
            for device in match[5].split(","):
                if device != "-":
                    counts[device] = counts.get(device, 0) + 1
    entries = [
        Entry(on, devices.get(bus, {}) if on else {}, (numbers[bus],), place=name)
        for bus, on in modes.items()
        if bus in numbers
    ]
    return Config(name, tuple(entries), name)


def device_counts(text: str) -> dict[str, int]:
    """Number of MIG devices of each GPU in a file, by bus id; empty for an incomplete file."""
    counts: dict[str, int] = {}
    for line in text.splitlines() if is_whole(text) else ():
        if match := _INSTANCE.fullmatch(line):
            device_count = sum(device != "-" for device in match[5].split(","))
            counts[match[1]] = counts.get(match[1], 0) + device_count
    return counts
