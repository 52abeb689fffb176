"""Programs that run on nodes: standard library of Python 3.9 and later, nothing else.

They are files to be shipped, not modules to be imported here. Together with a few pure modules
of ``gpustate.formats`` and ``gpustate.model`` they keep their package paths on the node, below one
folder, so that the same code judges on both sides.
"""
