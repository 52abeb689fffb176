"""GPUs in Slurm's configuration: lines of ``gres.conf``, features of a node.

Sources:
    Slurm, gres.conf(5) 22.05 and 25.11: File, MultipleFiles, Type, Cores, Links, order of devices;
    slurm.conf(5): NodeName, Gres, Feature; "Generic Resource (GRES) Scheduling", MIG management.
"""

from gpustate.formats.slurm.block import device_files, find_block, foreign, place, text_outside
from gpustate.formats.slurm.conf import (
    Row,
    SlurmConf,
    gres_fits,
    hosts,
    instead,
    read,
    replaced,
    with_gpus,
)
from gpustate.formats.slurm.lines import (
    MigFiles,
    SlurmGpu,
    features,
    gpu_types,
    gres_lines,
    gres_value,
    node_line,
    type_name,
    with_features,
)
from gpustate.formats.slurm.topology import Cpu, core_numbers, expand, links

__all__ = [
    "Cpu",
    "MigFiles",
    "Row",
    "SlurmConf",
    "SlurmGpu",
    "core_numbers",
    "device_files",
    "expand",
    "features",
    "find_block",
    "foreign",
    "gpu_types",
    "gres_fits",
    "gres_lines",
    "gres_value",
    "hosts",
    "instead",
    "links",
    "node_line",
    "place",
    "read",
    "replaced",
    "text_outside",
    "type_name",
    "with_features",
    "with_gpus",
]
