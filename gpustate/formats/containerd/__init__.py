"""Register the NVIDIA runtime handler in containerd's configuration, as text to text.

Why not write the file anew: administrators keep registries, sandbox image and comments in it, and
losing one of them takes the node down. So what is not ours stays byte for byte, what we add says so
(:mod:`.marks`), and what it does is judged by containerd's own dump (:mod:`.effective`).

Sources:
    containerd, docs/man/containerd-config.toml.5.md and docs/cri/config.md.
    NVIDIA/nvidia-container-toolkit, pkg/config/engine/containerd: what ``nvidia-ctk`` writes.
"""

from __future__ import annotations

from gpustate.formats.containerd.effective import (
    Effective,
    EffectiveChange,
    dump_arguments,
    effective,
    effective_change,
    handler_present,
    handler_problems,
)
from gpustate.formats.containerd.model import (
    DROP_IN_PATH,
    ROOT_PATH,
    Edit,
    Files,
    Handler,
    disabled_cri,
    same_program,
)
from gpustate.formats.containerd.plan import (
    deciding_runtime,
    is_imported,
    plan_edit,
    plan_removal,
)

__all__ = [
    "DROP_IN_PATH",
    "ROOT_PATH",
    "Edit",
    "Effective",
    "EffectiveChange",
    "Files",
    "Handler",
    "deciding_runtime",
    "disabled_cri",
    "dump_arguments",
    "effective",
    "effective_change",
    "handler_present",
    "handler_problems",
    "is_imported",
    "plan_edit",
    "plan_removal",
    "same_program",
]
