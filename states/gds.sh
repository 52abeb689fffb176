# shellcheck shell=sh
# Prints driver=VERSION TYPE, says=VERSION of nvidia-fs, and precompiled=1 for a driver without DKMS
# sources. Reads PROC and SYS.
v=
{ read -r v <"$SYS/module/nvidia/version"; } 2>/dev/null && {
  t=
  { read -r t <"$PROC/driver/nvidia/version"; } 2>/dev/null
  case $t in
    *"Open Kernel Module"*) echo "driver=$v open" ;;
    *) echo "driver=$v proprietary" ;;
  esac
}
n=
for d in /usr/src/nvidia*-"${v:-none}"; do [ -e "$d/dkms.conf" ] && n=1; done
[ -z "$v" ] || [ -n "$n" ] || echo precompiled=1
[ -r "$PROC/driver/nvidia-fs/version" ] && {
  read -r n <"$PROC/driver/nvidia-fs/version"
  echo "says=$n"
}
:
