"""Offline bundles: every package that air-gapped nodes need, in one file.

A bundle is a folder or a tar file. It holds a manifest (:mod:`~gpustate.bundle.manifest`), the public
key that its indexes are signed with, and local repositories for each distribution and architecture. The packages
are chosen by :mod:`~gpustate.bundle.closure` (apt) and :mod:`~gpustate.bundle.rpmclosure` (dnf, zypper).
"""
