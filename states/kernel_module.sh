# shellcheck shell=sh
# Builds what DKMS has for the kernel RELEASE, and looks at whether it has nvidia's module of VERSION then.
# Reads R, CAUSE (pattern of a build error) and STAYS (kernel that boots next); calls sign_nvidia.
k=$RELEASE; v=$VERSION
have() { depmod "$k"; modinfo -k "$k" -F version nvidia 2>/dev/null || modinfo -k "$k" -F version nvidia-current 2>/dev/null || :; }
[ "$(have)" = "$v" ] || dkms autoinstall -k "$k" >"$R/dkms.log" 2>&1 || :
[ "$(have)" = "$v" ] && { sign_nvidia "$k"; effect built; exit 0; }
c=$(grep -hm 1 -E "$CAUSE" /var/lib/dkms/nvidia*/"$v"/build/make.log 2>/dev/null | head -n 1) || :
fail "error: driver $v has no module for kernel $k (${c:-see /var/lib/dkms/nvidia/$v/build/make.log}); the node keeps booting $STAYS"
