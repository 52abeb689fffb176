"""Bundles: every package that some nodes need, in one file that needs no network.

A bundle is a folder or a tar file. It holds a manifest (:mod:`~gpustate.bundle.manifest`), the public
key that signs it, and, for each distribution and architecture, flat repositories that apt reads by
``file:``. What is in it comes from :mod:`~gpustate.bundle.closure`, from where by
:mod:`~gpustate.bundle.upstream`.
"""
