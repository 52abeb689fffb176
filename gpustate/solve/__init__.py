"""One concrete driver set out of what repositories offer, and why there is none. Pure.

indexes (:mod:`~gpustate.solve.packages`) + what is wanted (:mod:`~gpustate.solve.problem`)
    ──▶ :func:`~gpustate.solve.solver.solve` ──▶ a set, or the smallest conflict
    ──▶ the lock file (:mod:`~gpustate.solve.lock`)
"""
