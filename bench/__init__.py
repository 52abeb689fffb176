"""What an already converged, or a slightly drifted, fleet costs: gpustate beside the others.

See README.md in this folder.
"""
