# shellcheck shell=sh
# Prints what @NODES@ and @CAPS@ print, sh that reads a, v and c: major numbers of nvidia, nvidia-uvm and nvidia-caps;
# and found=PATH|KIND|MAJOR|MINOR for each of the patterns @GLOBS@ that is there.
# shellcheck disable=SC2034 # a, v and c: read by @NODES@ and @CAPS@
# shellcheck disable=SC2043 # @GLOBS@ may be several patterns
if [ -z "${GPUSTATE_IMAGE-}" ] && [ -r "$PROC/driver/nvidia/version" ] && [ -r "$PROC/devices" ]; then
  a=195; v=; c=; while read -r n m; do
    case "$n $m" in
      'Block devices:') break ;;
      *' nvidia'|*' nvidia-frontend') a=$n ;; *' nvidia-uvm') v=$n ;; *' nvidia-caps') c=$n ;;
    esac
  done <"$PROC/devices"
  @NODES@
  @CAPS@
  set --; for n in @GLOBS@; do if [ -e "$n" ]; then set -- "$@" "$n"; fi; done
  [ $# = 0 ] || stat -L -c 'found=%n|%F|%t|%T' "$@"
fi
