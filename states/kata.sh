# shellcheck shell=sh
# Prints what the host offers to virtual machines: kvm=1, groups=1, tdx=, snp=, driver=loaded,
# containerd=1. Reads SYS.
[ -z "${GPUSTATE_IMAGE-}" ] || exit 0
[ -c /dev/kvm ] && echo kvm=1
for group in "$SYS"/kernel/iommu_groups/*; do
  [ -d "$group" ] && echo groups=1
  break
done
value=
{ read -r value <"$SYS/module/kvm_intel/parameters/tdx"; } 2>/dev/null && echo "tdx=$value"
value=
{ read -r value <"$SYS/module/kvm_amd/parameters/sev_snp"; } 2>/dev/null && echo "snp=$value"
[ -d "$SYS/module/nvidia" ] && echo driver=loaded
command -v containerd >/dev/null && echo containerd=1
:
