"""The resolver for driver sets: one matching set of packages from the repositories, or the smallest conflict. Pure.

indexes (:mod:`~gpustate.solve.packages`) + driver request (:mod:`~gpustate.solve.request`)
    ──▶ :func:`~gpustate.solve.solver.solve` ──▶ a set, or the smallest conflict
    ──▶ the lock file (:mod:`~gpustate.solve.lock`)
"""
