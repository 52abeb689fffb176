# shellcheck shell=sh
# Waits until NVIDIA's validator has found the driver, and exports where it is; "$@" runs after it.
until [ -f /run/nvidia/validations/driver-ready ]; do
  echo waiting for driver-ready
  sleep 5
done
set -a
. /run/nvidia/validations/driver-ready
