"""Queries that several states share, with their parsers: kernels, modules, packages' files, PCI, NVML."""
