#!/bin/sh
# The start-up probe of the driver container: its modules are loaded and its daemons run. What it
# has beside the driver becomes a file that NVIDIA's validator reads.
set -eu
dir=/run/nvidia/validations
mkdir -p "$dir"
[ -f /sys/module/nvidia/refcnt ] || {
  echo "the module nvidia is not loaded"
  exit 1
}
if [ -f "$dir/.driver-daemons-status" ]; then
  read -r status <"$dir/.driver-daemons-status" || :
  [ "$status" = Ready ] || {
    echo "daemons of the driver: $status"
    exit 1
  }
fi
nvidia-smi
{
  echo "GDRCOPY_ENABLED: ${GDRCOPY_ENABLED:-false}"
  echo "GDS_ENABLED: ${GDS_ENABLED:-false}"
  echo "GPU_DIRECT_RDMA_ENABLED: ${GPU_DIRECT_RDMA_ENABLED:-false}"
} >"$dir/.driver-ctr-ready.tmp"
mv "$dir/.driver-ctr-ready.tmp" "$dir/.driver-ctr-ready"
