"""Offline bundles: every package that air-gapped nodes need, in one file.

A bundle is a folder or a tar file. It holds a manifest (:mod:`~gpustate.bundle.manifest`) and local repositories for each
distribution and architecture. The packages are chosen and fetched by the package manager of a node
(:mod:`gpustate.remote.download`).
"""
