"""How long steps take where nobody has measured it on the nodes in question. Data, each with its basis. Pure.

What a node's own journal or those of its like say always comes first (:mod:`gpustate.plan.estimate`).
These are for nodes that gpustate has never changed. Each says what it rests on: somebody's
measurements, our own, a limit that somebody set, or nothing but a guess, which is then called one.

Sources:
    Named in each record. ``LAB``: journals of runs on gpustate's lab nodes, Debian 12 in
    systemd-nspawn with simulated GPUs and small packages: no more than a lower bound.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpustate.core.change import Disruption

LAB = "measured on gpustate's lab nodes (simulated GPUs): a lower bound; the rest is a guess"
GUESS = "a guess"
#: Reboots of bare-metal servers, median of 218 to 792 s by generation, 202 to 820 s in all.
METAL = (
    "77 reboots of bare-metal servers without GPUs, as Testing Farm measured them "
    "(gitlab.com/testing-farm/infrastructure, merge request 1526); a virtual machine is faster"
)
#: 60 s of delay and 120 tries, 10 s apart: the longest a driver container may take to start.
OPERATOR = (
    "at most what the GPU Operator's chart gives a driver to be built and loaded "
    "(driver.startupProbe: 60 s + 120 x 10 s); the rest is a guess"
)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration: at best, likely, and at worst within reason."""

    low: float
    likely: float
    high: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, number: float) -> Seconds:
        """So many of them, one after the other."""
        return Seconds(self.low * number, self.likely * number, self.high * number)


ZERO = Seconds(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Default:
    """A duration nobody measured on the nodes in question, and what it rests on."""

    seconds: Seconds
    source: str


_INSTANT = Default(Seconds(0, 0.2, 1), LAB)
REBOOT = Default(Seconds(202, 531, 820), METAL)
#: A driver's modules are compiled for every kernel; the packages are half a gigabyte.
_DRIVER = Default(Seconds(30, 240, 1260), OPERATOR)

#: Steps of the states that have long ones: state, part of the label, default.
_STEPS: Sequence[tuple[str, re.Pattern[str], Default]] = (
    ("driver", re.compile(r"download the driver"), Default(Seconds(1, 60, 600), LAB)),
    ("driver", re.compile(r"install the driver"), _DRIVER),
    ("driver", re.compile(r"build the nvidia module"), _DRIVER),
    ("driver", re.compile(r"load nvidia"), Default(Seconds(1, 15, 60), LAB)),
    ("fabric-manager", re.compile(r"wait until the fabric"), Default(Seconds(1, 20, 300), LAB)),
    ("validator", re.compile(r"walk the chain"), Default(Seconds(2, 20, 120), LAB)),
)

#: Everything else, by the class of the step.
_KINDS = {
    "PutText": _INSTANT,
    "RemoveFile": _INSTANT,
    "RemoveOwn": _INSTANT,
    "RestoreOriginal": _INSTANT,
    "ForgetOriginal": _INSTANT,
    "AptHold": Default(Seconds(0, 1, 5), LAB),
    "AptUpdate": Default(Seconds(1, 5, 60), LAB),
    "AptInstall": Default(Seconds(1, 15, 120), LAB),
    "AptRemove": Default(Seconds(1, 10, 120), LAB),
    "RebuildInitramfs": Default(Seconds(5, 30, 120), GUESS),
    "LoadModules": Default(Seconds(0, 5, 60), LAB),
    "UnloadModules": Default(Seconds(0, 2, 30), LAB),
    "EnableUnit": Default(Seconds(0, 1, 10), LAB),
    "DisableUnit": Default(Seconds(0, 1, 30), LAB),
    "StartUnit": Default(Seconds(0, 2, 30), LAB),
    "RestartUnit": Default(Seconds(1, 3, 60), LAB),
    "DaemonReload": Default(Seconds(0, 1, 5), LAB),
    "Run": Default(Seconds(0, 1, 30), LAB),
    "Reboot": REBOOT,
}

#: What a state takes that is not planned yet, by its name; for the others its worst cost decides.
_STATES = {
    "driver": Default(Seconds(40, 330, 1800), OPERATOR),
    "container-toolkit": Default(Seconds(2, 20, 180), LAB),
    "validator": Default(Seconds(3, 25, 180), LAB),
    "fabric-manager": Default(Seconds(2, 40, 420), LAB),
}
_WORST = {
    Disruption.NONE: Default(Seconds(0, 3, 30), LAB),
    Disruption.RELOAD: Default(Seconds(0, 3, 30), LAB),
    Disruption.RESTART: Default(Seconds(1, 8, 60), LAB),
    Disruption.DRAIN: Default(Seconds(2, 20, 300), GUESS),
    Disruption.RESET: Default(Seconds(5, 40, 300), GUESS),
    Disruption.REBOOT: Default(Seconds(5, 60, 600), GUESS),
}


def of_step(state: str, label: str, kind: str) -> Default:
    """What a step takes when nobody has measured it."""
    for owner, part, default in _STEPS:
        if owner == state and part.search(label):
            return default
    return _KINDS.get(kind, Default(Seconds(0, 2, 60), GUESS))


def of_state(state: str, worst: Disruption) -> Default:
    """What a state takes of which only the worst cost is known; without a reboot."""
    return _STATES.get(state) or _WORST[worst]
