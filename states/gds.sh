# shellcheck shell=sh
# Prints driver=VERSION TYPE, says=VERSION of nvidia-fs, and precompiled=1 for a driver without DKMS
# sources. Reads PROC and SYS.
version=
{ read -r version <"$SYS/module/nvidia/version"; } 2>/dev/null && {
  first_line=
  { read -r first_line <"$PROC/driver/nvidia/version"; } 2>/dev/null
  case $first_line in
    *"Open Kernel Module"*) echo "driver=$version open" ;;
    *) echo "driver=$version proprietary" ;;
  esac
}
sources=
for d in /usr/src/nvidia*-"${version:-none}"; do [ -e "$d/dkms.conf" ] && sources=1; done
[ -z "$version" ] || [ -n "$sources" ] || echo precompiled=1
[ -r "$PROC/driver/nvidia-fs/version" ] && {
  read -r fs_version <"$PROC/driver/nvidia-fs/version"
  echo "says=$fs_version"
}
:
