"""Additional checks of ``gpustate validate``: pods with GPUs, and a site's own tests."""
