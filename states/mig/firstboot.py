"""What a machine does at its first boot so that its GPUs are divided as the image's policy says.

An image does not know its machine's GPUs, and the machine has no planner. So the layout of every GPU that the
tables know is planned while the image is baked, for a GPU that has no instance yet, and the machine picks
the one of each of its GPUs, by the number of the GPU in PCI order and its PCI device id.

Surprising: the files are written even then by the machine, for they name the addresses of its GPUs; where no
GPU gets MIG mode there are none, as after an apply.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Mapping

from gpustate import Step, ops, shell
from gpustate.errors import RefusedError
from gpustate.mig import plan as planner
from gpustate.mig import saved, tables
from gpustate.mig.config import Config, Entry
from gpustate.mig.layout import GpuLayout, Layout
from gpustate.states.mig import scripts
from gpustate.states.mig.observed import UNIT, UNIT_PATH

#: Stands for a GPU's address in its lines.
_PLACEHOLDER = "0000:00:00.0"


def layout_lines(config: Config) -> Mapping[tuple[str, str], str] | None:
    """The lines of the layout by number of the GPU, ``*`` for any other, and PCI device id.

    ``None`` where that does not say it all: a filter names boards.
    """
    if any(rule.subsystem for entry in config.entries for rule in entry.filters):
        return None
    named = {index for entry in config.entries for index in entry.indices or ()}
    numbers = {**{str(index): index for index in sorted(named)}, "*": max(named, default=-1) + 1}
    lines: dict[tuple[str, str], str] = {}
    for device_id in tables.by_device_id():
        texts: dict[int, str | None] = {}
        for number, index in numbers.items():
            entry = config.entry_for(index, device_id)
            if id(entry) not in texts:
                texts[id(entry)] = "" if entry is None else _lines(entry, device_id)
            text = texts[id(entry)]
            if text is not None:
                lines[number, device_id] = text
    return lines


def _lines(entry: Entry, device_id: str) -> str | None:
    """Those of one GPU, with ``@`` for its address; ``None`` where it cannot be divided so."""
    config = Config("image", (Entry(entry.enabled, entry.devices),))
    blank = Layout(gpus=(GpuLayout(index=0, device_id=device_id, enabled=False),))
    try:
        plan = planner.plan(config, blank)
    except RefusedError:
        return None
    text = saved.after(plan.gpus, {0: _PLACEHOLDER}).removeprefix(saved.HEAD)
    return text.replace(saved.bus_id(_PLACEHOLDER), "@")


def first_boot_steps(
    config: Config, folder: str, restore: str, clients: tuple[str, ...]
) -> Iterator[Step]:
    """Divide the GPUs, and leave behind what divides them at every boot.

    Args:
        config: what is wanted.
        folder: of the state, on the machine.
        restore: text of the program that gives a layout.
        clients: services that may hold GPUs, stopped for it and started again.
    """
    lines = layout_lines(config)
    if lines is None:
        return
    by_lines: dict[str, list[str]] = {}
    for (number, device_id), text in lines.items():
        by_lines.setdefault(text, []).append(f"{number}.{device_id}")
    # A number of its own comes before any other, whatever it gets.
    cases = sorted(
        ((keys, text) for text, keys in by_lines.items()), key=lambda row: "*" in "".join(row[0])
    )
    branches = [
        f"    {'|'.join(key for key in keys if key.startswith('*') is any_number)}) gpu_layout={shlex.quote(text)} ;;"
        for any_number in (False, True)
        for keys, text in cases
        if any(key.startswith("*") is any_number for key in keys)
    ]
    arms = "\n".join(branches)
    layout_of = f"layout_of() {{\n  case $1 in\n{arms}\n    *) return 1 ;;\n  esac\n}}\n"
    divide = shell.load(
        "first_boot",
        "gpustate.states.mig",
        HEAD=saved.HEAD,
        NAME=config.name,
        CLIENTS=" ".join(clients),
        RESTORE=base64.encodebytes(restore.encode()).decode("ascii"),
        UNIT=UNIT,
        UNIT_PATH=UNIT_PATH,
        UNIT_TEXT=scripts.unit_text(folder),
    )
    text = f"D={shlex.quote(folder)}\n{scripts.FUNCTIONS}{layout_of}{divide}"
    yield ops.RunLive(text, "apply the MIG layout of this machine", timeout=1800)
    yield scripts.nodes()


__all__ = ["first_boot_steps", "layout_lines"]
