"""Programs that run on nodes, with nothing but the standard library of Python 3.9 and later.

They are shipped to nodes and not imported on the controller. On a node they keep their package paths, together
with a few pure modules of ``gpustate.formats`` and ``gpustate.diagnosis``, so that the same code runs on both
sides.
"""
