# shellcheck shell=sh
# Prints the arguments of the running kernel and of the menu, and who writes them. @PENDING@ and @DROP@ are paths.
[ -n "${GPUSTATE_IMAGE-}" ] || { l=; { IFS= read -r l <"$PROC/cmdline"; } 2>/dev/null; printf 'running=%s\n' "$l"; }
w=; command -v update-grub >/dev/null && [ -e /etc/default/grub ] && w=grub
[ -n "$w" ] || { command -v grubby >/dev/null && w=grubby; }
[ -n "$w" ] || { [ -e /etc/kernel/cmdline ] && w=/etc/kernel/cmdline; }
printf 'way=%s\n' "$w"
[ -e @PENDING@ ] && echo pending=1
v=; while IFS=: read -r n c; do case $n in vendor_id*) v=${c# }; break;; esac; done </proc/cpuinfo
printf 'cpu=%s\n' "$v"
[ -e @DROP@ ] && { echo 'drop='; while IFS= read -r l || [ -n "$l" ]; do printf '|%s\n' "$l"; done <@DROP@; }
[ -r /boot/grub/grub.cfg ] && grep -E '^[[:space:]]*linux(16|efi)?[[:space:]]' /boot/grub/grub.cfg
:
