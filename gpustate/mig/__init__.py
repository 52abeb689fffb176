"""MIG: profiles of GPUs, placements of instances, and the smallest change to a layout.

Pure: tables (:mod:`~gpustate.mig.tables`), readers of mig-parted files (:mod:`~gpustate.mig.config`)
and of layouts (:mod:`~gpustate.mig.layout`), placement search (:mod:`~gpustate.mig.fit`,
:mod:`~gpustate.mig.refute`), the planner (:mod:`~gpustate.mig.change`) and the plan of a node
(:mod:`~gpustate.mig.plan`).
"""

from __future__ import annotations
