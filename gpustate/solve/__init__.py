"""Lock files: the driver set that the state of each node chooses (:mod:`~gpustate.solve.request`), kept until an update. Pure.

A chosen set is compared with the locked one (:mod:`~gpustate.solve.keeping`) and written (:mod:`~gpustate.solve.lock`).
"""
