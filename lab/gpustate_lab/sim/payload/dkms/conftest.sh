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
# nvidia-peermem: with which RDMA stack, if any. The checksum is what the module will ask the kernel for.
for place in "/usr/src/ofa_kernel/$(uname -m)/$kernel" "/usr/src/ofa_kernel/$kernel" /usr/src/ofa_kernel/default "/lib/modules/$kernel/build"; do
    [ -r "$place/Module.symvers" ] || continue
    sum=$(awk '$2 == "ib_register_peer_memory_client" { print $1; exit }' "$place/Module.symvers")
    if [ -n "$sum" ]; then echo "#define NV_IB_PEER_MEMORY_CRC $sum"; fi
    break
done
