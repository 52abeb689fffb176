# shellcheck shell=sh
# Prints what the kernel, its modules, DKMS and the logs say of the driver. @LOG@ is a regular
# expression, @MODPROBE@ sh that prints lines of modprobe.d.
# shellcheck disable=SC2034 # version_on_disk: read by hardware.sh
try() { timeout -k 1 ${limit:-2} "$@" </dev/null; }
have() { command -v "$1" >/dev/null; }
kernel=$(uname -r)
version_on_disk=$(try modinfo -F version nvidia)
line=
read -r line <"$PROC/cmdline" && printf 'cmdline=%s\n' "$line"
line=
read -r line <"$PROC/version" && printf 'kernel_build=%s\n' "$line"
printf 'license=%s\n' "$(try modinfo -F license nvidia)"
secure_boot=
for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
  [ -r "$f" ] && case $(od -An -tu1 -j4 -N1 "$f") in *1) secure_boot=1 ;; esac
done
if [ -n "$secure_boot" ]; then
  echo secure_boot=1
  printf 'signer=%s\n' "$(try modinfo -F signer nvidia)"
  while read -r _ _ _ _ _ _ _ type description; do
    [ "$type" = asymmetri ] && printf 'key=%s\n' "$description"
  done <"$PROC/keys"
  have mokutil && try mokutil --list-new | sed -n 's/.*Subject:.*CN *= *\([^,/]*\).*/mok_new=\1/p'
fi
for d in /lib/modules/*; do
  [ -d "$d" ] || continue
  for f in "$d"/updates/dkms/nvidia*.ko* "$d"/extra/nvidia*.ko* "$d"/extra/*/nvidia.ko* \
    "$d"/weak-updates/nvidia*.ko* \
    "$d"/kernel/nvidia-*/nvidia.ko* "$d"/kernel/drivers/video/nvidia.ko*; do
    [ -e "$f" ] && {
      printf 'module_for=%s\n' "${d##*/}"
      break
    }
  done
done
for f in /boot/vmlinuz-*; do
  d=${f##*/vmlinuz-}
  [ -d "/lib/modules/$d" ] && [ "$d" != "$kernel" ] || continue
  grep -qsE '/nvidia(-(current|tesla|legacy)[^/:]*)?\.ko' "/lib/modules/$d/modules.dep" ||
    printf 'bare_kernel=%s\n' "$d"
done
[ -d "/lib/modules/$kernel/build" ] && echo headers=1
for line in gcc cc gcc-9 gcc-10 gcc-11 gcc-12 gcc-13 gcc-14 gcc-15; do
  have $line && printf 'compiler=%s\n' $line
done
have dkms && try dkms status | head -n 60 | sed 's/^/dkms=/'
for f in /var/lib/dkms/nvidia*/*/build/make.log; do
  [ -f "$f" ] && grep -E '@LOG@' "$f" | head -n 40 | sed 's/^/log=/'
done
@MODPROBE@
for f in "$SYS"/bus/pci/drivers/nouveau/0*; do
  [ -e "$f" ] || continue
  image=/boot/initrd.img-$kernel
  [ -e "$image" ] || image=/boot/initramfs-$kernel.img
  [ -e "$image" ] || break
  if have lsinitramfs; then
    try lsinitramfs "$image"
  elif have lsinitrd; then
    try lsinitrd "$image"
  fi |
    grep -q 'nouveau\.ko' && printf 'nouveau_initramfs=%s\n' "$image"
  break
done
have dmesg &&
  try dmesg | grep -E 'NVRM|nvidia|peermem|nouveau|Lockdown' | tail -n 60 | sed 's/^/dmesg=/'
# shellcheck disable=SC2043 # one log, skipped by continue
for f in /var/log/apt/history.log; do
  [ -r "$f" ] && awk 'BEGIN { RS = ""; FS = "\n" } /nvidia|libcuda/ {
      date = command = actions = ""
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^Start-Date: /) date = substr($i, 13)
        if ($i ~ /^Commandline: /) { command = substr($i, 14); gsub(/\|/, "/", command) }
        if ($i ~ /^(Upgrade|Install|Downgrade|Remove|Purge): .*(nvidia|libcuda)/)
          actions = actions substr($i, 1, 200) " "
      }
      if (actions != "") last = date "|" command "|" actions
    }
    END { if (last != "") print "history=" last }' "$f"
done
