"""A policy in Python: the whole stack, with one state only on nodes with containerd.

The order of states does not matter. Put differences of groups and nodes into the inventory::

    gpustate:
      driver: {branch: 570}
"""

from gpustate import Policy, where
from gpustate.states.cdi import CdiSpecificationCurrent
from gpustate.states.container_toolkit import ContainerToolkitInstalled
from gpustate.states.containerd import ContainerdHandlerRegistered
from gpustate.states.driver import DriverInstalled
from gpustate.states.fabric_manager import FabricManagerRunning
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceModeEnabled
from gpustate.states.preflight import PreflightPassed
from gpustate.states.repository import DriverRepository, ToolkitRepository
from gpustate.states.validator import NodeValidated

policy = Policy(
    PreflightPassed(),
    NouveauBlacklisted(),
    DriverRepository(),
    DriverInstalled(branch=580, module_type="auto"),
    PersistenceModeEnabled(),
    FabricManagerRunning(),
    ToolkitRepository(),
    ContainerToolkitInstalled(),
    ContainerdHandlerRegistered(default=False, only=where.runtime("containerd")),
    CdiSpecificationCurrent(),
    NodeValidated(),
)
