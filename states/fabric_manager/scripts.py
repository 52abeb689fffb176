"""What the steps of Fabric Manager run on a node, as sh."""

from __future__ import annotations

from gpustate import shell
from gpustate.probes.fabric import COUNT_BRIDGES

UNIT = "nvidia-fabricmanager.service"

#: The driver that an image has; nothing is loaded there.
INSTALLED = shell.load("installed", "gpustate.states.fabric_manager")

SUBNET_MANAGER = shell.load("subnet_manager", "gpustate.states.fabric_manager")

_FABRIC = shell.load("fabric", "gpustate.states.fabric_manager", UNIT=UNIT)


def wait(seconds: int) -> str:
    """Until the fabric is complete on every GPU that has one."""
    return f"{_FABRIC}wait_for_fabric {seconds}\n"


def fix(seconds: int) -> str:
    """The same, but a fabric that does not come up by itself within seconds gets a new manager."""
    return f"{_FABRIC}fix_fabric {seconds}\n"


def first_boot(seconds: int) -> str:
    """A machine that boots the image finds out for itself whether it has switches."""
    start = shell.load("first_boot", "gpustate.states.fabric_manager")
    return f"{COUNT_BRIDGES}{_FABRIC}{start}wait_for_fabric {seconds}\n"
