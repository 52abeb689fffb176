"""Every key of the schema with its allowed values, as data.

A kind is a mapping of keys, or the name of a check in :mod:`gpustate.formats.deviceplugin.values`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

MIG_STRATEGIES = ("none", "single", "mixed")
DEVICE_LISTS = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key that holds a value.

    Args:
        kind: ``boolean``, ``text``, ``choice``, ``choices`` (one or a list), ``duration``, ``count``,
            ``channels``, ``resource``, ``devices``, ``name``, or ``patterns``.
        words: the values of a choice.
        ignored: why the plugin ignores the key, and what to do instead.
        harmless: values equal to the plugin's behaviour.
    """

    kind: str
    words: tuple[str, ...] = ()
    ignored: str = ""
    harmless: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A key with keys below it; ``listed`` for a non-empty list of such mappings."""

    keys: Mapping[str, Leaf | Branch] = field(default_factory=dict[str, "Leaf | Branch"])
    listed: bool = False
    required: tuple[str, ...] = ()
    nullable: bool = True


_BOOLEAN, _TEXT = Leaf("boolean"), Leaf("text")
_PATTERNS = Leaf("patterns", ignored="the device plugin ignores it; remove it", harmless=(None, []))

_REPLICATED = Branch(
    {
        "renameByDefault": _BOOLEAN,
        "failRequestsGreaterThanOne": _BOOLEAN,
        "resources": Branch(
            {
                "name": Leaf("resource"),
                "replicas": Leaf("count"),
                "devices": Leaf(
                    "devices",
                    ignored="the device plugin ignores it and shares all devices",
                    harmless=("all",),
                ),
                "rename": Leaf(
                    "name", ignored="the device plugin ignores it; set renameByDefault: true"
                ),
            },
            listed=True,
            required=("name", "replicas"),
        ),
    },
    required=("resources",),
    nullable=False,
)

SCHEMA = Branch(
    {
        "version": Leaf("choice", ("v1",)),
        "flags": Branch(
            {
                "migStrategy": Leaf("choice", MIG_STRATEGIES),
                "failOnInitError": _BOOLEAN,
                "mpsRoot": _TEXT,
                "nvidiaDriverRoot": _TEXT,
                "nvidiaDevRoot": _TEXT,
                "gdrcopyEnabled": _BOOLEAN,
                "gdsEnabled": _BOOLEAN,
                "mofedEnabled": _BOOLEAN,
                "useNodeFeatureAPI": _BOOLEAN,
                "deviceDiscoveryStrategy": Leaf("choice", ("auto", "nvml", "tegra")),
                "plugin": Branch(
                    {
                        "passDeviceSpecs": _BOOLEAN,
                        "deviceListStrategy": Leaf("choices", DEVICE_LISTS),
                        "deviceIDStrategy": Leaf("choice", ("uuid", "index")),
                        "cdiAnnotationPrefix": _TEXT,
                        "nvidiaCTKPath": _TEXT,
                        "containerDriverRoot": _TEXT,
                        "sharedDevicesAllocationPolicy": Leaf("choice", ("distributed", "packed")),
                    }
                ),
                "gfd": Branch(
                    {
                        "oneshot": _BOOLEAN,
                        "noTimestamp": _BOOLEAN,
                        "sleepInterval": Leaf("duration"),
                        "outputFile": _TEXT,
                        "machineTypeFile": _TEXT,
                    }
                ),
            }
        ),
        "resources": Branch({"gpus": _PATTERNS, "mig": _PATTERNS}),
        "sharing": Branch({"timeSlicing": _REPLICATED, "mps": replace(_REPLICATED, nullable=True)}),
        "imex": Branch({"channelIDs": Leaf("channels"), "required": _BOOLEAN}),
    }
)


def places(branch: Branch = SCHEMA, path: str = "") -> Iterator[tuple[str, str]]:
    """Every key with the path of its mapping, outermost first."""
    for key in branch.keys:
        yield key, path
    for key, below in branch.keys.items():
        if isinstance(below, Branch):
            yield from places(below, f"{path}.{key}" if path else key)
