#!/bin/sh
# Simulated conftest: writes what the kernel "offers". With the fault dkms-build it finds a kernel
# whose interface has changed, and the compiler then ends with a genuine error.
kernel=$1
hardware=/etc/gpustate-lab/hardware.json
echo "/* made by conftest.sh for $kernel */"
if grep -q -e '"dkms-build"' -e "\"dkms-build:$kernel\"" "$hardware" 2>/dev/null; then
    echo 'static inline int nv_pin_user_pages(unsigned long start, unsigned flags, void **pages) { return 0; }'
else
    echo 'static inline int nv_pin_user_pages(unsigned long start, void **pages) { return pages ? (int)start : 0; }'
fi
