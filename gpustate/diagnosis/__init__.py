"""The checks from a GPU on PCI to a CUDA kernel in a container: what they read, how they judge, how to fix it."""
