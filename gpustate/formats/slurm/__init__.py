"""GPUs in Slurm's configuration: lines of ``gres.conf``, features of a node.

Sources:
    Slurm, gres.conf(5) 22.05 and 25.11: File, MultipleFiles, Type, Cores, Links, order of devices;
    slurm.conf(5): NodeName, Gres, Feature; "Generic Resource (GRES) Scheduling", MIG management.
"""

from gpustate.formats.slurm.block import find_block, foreign, place, text_outside
from gpustate.formats.slurm.conf import Row, SlurmConf, gres_fits, is_listed, read
from gpustate.formats.slurm.lines import (
    MigFiles,
    SlurmGpu,
    features,
    gpu_types,
    gres_lines,
    gres_value,
    node_line,
    type_name,
)
from gpustate.formats.slurm.topology import Cpu, core_numbers, expand, links

__all__ = [
    "Cpu",
    "MigFiles",
    "Row",
    "SlurmConf",
    "SlurmGpu",
    "core_numbers",
    "expand",
    "features",
    "find_block",
    "foreign",
    "gpu_types",
    "gres_fits",
    "gres_lines",
    "gres_value",
    "is_listed",
    "links",
    "node_line",
    "place",
    "read",
    "text_outside",
    "type_name",
]
