# shellcheck shell=sh
# Prints what @NODES@ and @CAPS@ print, sh that reads gpu_major, uvm_major
# and caps_major: numbers of nvidia, nvidia-uvm and nvidia-caps; and found=PATH|KIND|MAJOR|MINOR for
# each of the patterns @GLOBS@ that is there.
# shellcheck disable=SC2034 # the three: read by @NODES@ and @CAPS@
# shellcheck disable=SC2043 # @GLOBS@ may be several patterns
if [ -z "${GPUSTATE_IMAGE-}" ] && [ -r "$PROC/driver/nvidia/version" ] &&
  [ -r "$PROC/devices" ]; then
  gpu_major=195
  uvm_major=
  caps_major=
  while read -r number name; do
    case "$number $name" in
      'Block devices:') break ;;
      *' nvidia' | *' nvidia-frontend') gpu_major=$number ;;
      *' nvidia-uvm') uvm_major=$number ;;
      *' nvidia-caps') caps_major=$number ;;
    esac
  done <"$PROC/devices"
  @NODES@
  @CAPS@
  set --
  for number in @GLOBS@; do
    if [ -e "$number" ]; then set -- "$@" "$number"; fi
  done
  [ $# = 0 ] || stat -L -c 'found=%n|%F|%t|%T' "$@"
fi
