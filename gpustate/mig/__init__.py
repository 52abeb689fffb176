"""MIG: which profiles a GPU has, where their instances may lie, and the smallest change to a layout.

Pure: tables (:mod:`~gpustate.mig.tables`), readers of mig-parted files (:mod:`~gpustate.mig.config`)
and of layouts (:mod:`~gpustate.mig.layout`), the proof that something fits (:mod:`~gpustate.mig.fit`,
:mod:`~gpustate.mig.refute`), the planner (:mod:`~gpustate.mig.change`) and the plan of a node
(:mod:`~gpustate.mig.plan`).
"""

from __future__ import annotations
