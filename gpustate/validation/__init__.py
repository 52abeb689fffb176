"""What ``gpustate validate`` adds to the checks of each node: pods with GPUs, and a site's own tests."""
