# shellcheck shell=sh
# Builds what DKMS has for the kernel RELEASE, and looks at whether it has nvidia's module of
# VERSION then. Reads R, CAUSE (pattern of a build error) and STAYS (kernel that boots next); calls
# sign_nvidia.
kernel=$RELEASE
version=$VERSION
have() {
  depmod "$kernel"
  modinfo -k "$kernel" -F version nvidia 2>/dev/null ||
    modinfo -k "$kernel" -F version nvidia-current 2>/dev/null || :
}
[ "$(have)" = "$version" ] || dkms autoinstall -k "$kernel" >"$R/dkms.log" 2>&1 || :
[ "$(have)" = "$version" ] && {
  sign_nvidia "$kernel"
  effect built
  exit 0
}
cause=$(grep -hm 1 -E "$CAUSE" /var/lib/dkms/nvidia*/"$version"/build/make.log 2>/dev/null |
  head -n 1) || :
log=/var/lib/dkms/nvidia/$version/build/make.log
fail "error: driver $version has no module for kernel $kernel (${cause:-see $log});" \
  "the node keeps booting $STAYS"
