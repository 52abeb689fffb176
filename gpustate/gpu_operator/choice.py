"""Which components run as NVIDIA's containers: the file ``gpustate.yaml`` in the folder next to a policy.

The Operator's own file stays as it is, and the choice cannot be forgotten on a command line. Without the file,
gpustate does the work of these components on the nodes::

    containers: [driver, toolkit, validator, migManager]   # or: all
    systems: [ubuntu22.04]                                 # of the nodes, for images of drivers

Components wait for one another by files that NVIDIA's validator writes, so some need others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.manifests.settings import System

if TYPE_CHECKING:
    from gpustate.gpu_operator.check import Setting
    from gpustate.gpu_operator.documents import Item

FILE, ALL = "gpustate.yaml", "all"
#: Sections of a ClusterPolicy, each with those that it needs.
NEEDS = {
    "driver": ("toolkit", "validator"),
    "toolkit": ("validator",),
    "validator": (),
    "migManager": ("validator",),
    "vgpuManager": ("validator",),
    "vgpuDeviceManager": ("vgpuManager", "validator"),
    "vfioManager": ("validator",),
}
_SYSTEM = re.compile(r"(?P<name>[a-z][a-z-]*)(?P<version>\d[\w.]*)(/(?P<kernel>[\w.+-]+))?")


@dataclass(frozen=True, slots=True)
class Choice:
    """What the file says.

    Args:
        containers: sections of a ClusterPolicy.
        systems: of the nodes; none: those of Nodes next to the policy.
        place: of the list of containers.
    """

    containers: frozenset[str] = field(default_factory=frozenset[str])
    systems: tuple[System, ...] = ()
    place: str = ""


def read(file: str, item: Item) -> Choice:
    """The choice in a file.

    Raises:
        PolicyError: with its line.
    """
    if not isinstance(item.value, dict):
        raise PolicyError("is not a mapping", place=f"{file}:{item.line}", fix="see containers.md")
    for key, value in item.value.items():
        if key not in ("containers", "systems"):
            raise PolicyError(
                f"unknown key {quote(key)}",
                place=f"{file}:{value.line}",
                fix="wanted containers or systems",
            )
    listed = item.get("containers")
    names = frozenset(_names(file, listed)) if listed is not None else frozenset[str]()
    systems = item.get("systems")
    return Choice(
        names,
        tuple(_systems(file, systems)) if systems is not None else (),
        f"{file}:{(listed or item).line}",
    )


def applied(setting: Setting, choice: Choice) -> Setting:
    """A setting of a component that may run as containers, as it is where that component does not."""
    field = setting.field
    off = field.off
    if off is None or field.container in choice.containers:
        return setting
    plain = replace(field, support=off.support, detail=off.detail, objects=off.objects, off=None)
    return replace(setting, field=plain)


def check(choice: Choice, kind: str) -> None:
    """Refuse a choice that lacks a component which another one needs.

    Raises:
        PolicyError: with the line of the list.
    """
    if kind == "gpucluster":
        return  # its driver needs neither toolkit nor validator
    for name, needed in NEEDS.items():
        missing = [name_needed for name_needed in needed if name_needed not in choice.containers]
        if name in choice.containers and missing:
            raise PolicyError(
                f"{name} as containers needs {' and '.join(missing)} as containers too",
                place=choice.place,
                fix=f"add {', '.join(missing)}, or write {ALL}",
            )


def _names(file: str, listed: Item) -> list[str]:
    if listed.value == ALL:
        return [*NEEDS]
    names = [str(element.value) for element in _list(file, "containers", listed)]
    for name, element in zip(names, listed.value, strict=True):
        if name not in NEEDS:
            raise PolicyError(
                f"containers has {quote(name)}",
                place=f"{file}:{element.line}",
                fix=f"wanted {', '.join(NEEDS)}, or {ALL} alone",
            )
    return names


def _systems(file: str, listed: Item) -> list[System]:
    systems: list[System] = []
    for element in _list(file, "systems", listed):
        match = _SYSTEM.fullmatch(str(element.value))
        if match is None:
            raise PolicyError(
                f"systems has {quote(element.value)}",
                place=f"{file}:{element.line}",
                fix="wanted ID and VERSION_ID of /etc/os-release, such as ubuntu22.04; with precompiled drivers "
                "ubuntu22.04/KERNEL",
            )
        systems.append(System(match["name"], match["version"], match["kernel"] or ""))
    return systems


def _list(file: str, key: str, listed: Item) -> list[Item]:
    if not isinstance(listed.value, list):
        raise PolicyError(f"{key} is not a list", place=f"{file}:{listed.line}")
    return list(listed.value)
