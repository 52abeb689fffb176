"""Register the NVIDIA runtime handler in containerd's configuration, as text to text.

The file is not rewritten, because administrators keep registries, the sandbox image and comments in it, and
losing one of them breaks the node. Foreign lines stay byte for byte, added lines are marked (:mod:`.marks`), and
the effect is checked with containerd's own dump (:mod:`.effective`).

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
    release,
    same_program,
)
from gpustate.formats.containerd.plan import deciding_runtime, is_imported, plan_edit, plan_removal

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
    "release",
    "same_program",
]
