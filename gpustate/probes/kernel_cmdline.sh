# shellcheck shell=sh
# Prints the arguments of the running kernel and of the menu, and who writes them. @PENDING@ and
# @DROP@ are paths.
[ -n "${GPUSTATE_IMAGE-}" ] || {
  line=
  { IFS= read -r line <"$PROC/cmdline"; } 2>/dev/null
  printf 'running=%s\n' "$line"
}
writer=
command -v update-grub >/dev/null && [ -e /etc/default/grub ] && writer=grub
[ -n "$writer" ] || { command -v grubby >/dev/null && writer=grubby; }
[ -n "$writer" ] || { [ -e /etc/kernel/cmdline ] && writer=/etc/kernel/cmdline; }
printf 'way=%s\n' "$writer"
[ -e @PENDING@ ] && echo pending=1
vendor=
while IFS=: read -r key value; do
  case $key in vendor_id*)
    vendor=${value# }
    break
    ;;
  esac
done </proc/cpuinfo
printf 'cpu=%s\n' "$vendor"
[ -e @DROP@ ] && {
  echo 'drop='
  while IFS= read -r line || [ -n "$line" ]; do printf '|%s\n' "$line"; done <@DROP@
}
[ -r /boot/grub/grub.cfg ] && grep -E '^[[:space:]]*linux(16|efi)?[[:space:]]' /boot/grub/grub.cfg
:
