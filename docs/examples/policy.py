"""A policy in Python: the whole stack, one state of it only where there is containerd.

The order means nothing. What differs per group or node goes to the inventory::

    gpustate:
      driver: {branch: 570}
"""

from gpustate import Policy, where
from gpustate.states.cdi import CdiSpecification
from gpustate.states.container_toolkit import ContainerToolkit
from gpustate.states.containerd import ContainerdHandler
from gpustate.states.driver import DriverInstalled
from gpustate.states.fabric_manager import FabricManagerRunning
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceMode
from gpustate.states.preflight import NodeFit
from gpustate.states.repository import DriverRepository, ToolkitRepository
from gpustate.states.validator import Validated

policy = Policy(
    NodeFit(),
    NouveauBlacklisted(),
    DriverRepository(),
    DriverInstalled(branch=580, module_type="auto"),
    PersistenceMode(),
    FabricManagerRunning(),
    ToolkitRepository(),
    ContainerToolkit(),
    ContainerdHandler(default=False, only=where.runtime("containerd")),
    CdiSpecification(),
    Validated(),
)
