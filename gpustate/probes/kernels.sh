# shellcheck shell=sh
# Prints a row for each kernel, the lines of modinfo of its nvidia module, and those of GRUB that match @LINES@.
# @NAMES@ are shell patterns. Expects dkms_half, dkms_whole and ko.
run=; [ -n "${GPUSTATE_IMAGE-}" ] || run="${KERNEL_RELEASE-$(uname -r)}"
one() {
  k=$1; i=$2; r=; [ "$k" = "$run" ] && r=1
  m=; [ -d "/lib/modules/$k" ] && m=1
  h=; [ -e "/lib/modules/$k/build/Makefile" ] && h=1
  printf 'kernel|%s|%s|%s|%s|%s\n' "$k" "$i" "$r" "$m" "$h"
  [ ! -e "/lib/modules/$k/modules.dep" ] || grep -qsE '(^|/)video\.ko' "/lib/modules/$k/modules.dep" "/lib/modules/$k/modules.builtin" || echo 'lacks: video'
  ko "$k" @NAMES@ && ! half "$k" "$p" && whole "$k" "$p" || return 0
  # shellcheck disable=SC2154 # wd, wb and we: set by whole
  p=$wd/$wb$we; printf 'module: %s\n' "$p"; about "$p" '%s\n'
  return 0
}
seen=
for i in /boot/vmlinuz-* /boot/vmlinux-*; do
  k=${i#/boot/vmlinu[zx]-}
  case $k in *\**|*rescue*|*.old|*.bak|*.dpkg-*|*.rpm*|*.gz) continue;; esac
  case " $seen " in *" $k "*) continue;; esac
  [ -e "$i" ] || continue
  seen="$seen $k"; one "$k" "$i"
done
if [ -n "${GPUSTATE_IMAGE-}" ]; then
  echo 'no kernel runs'
  for i in /lib/modules/*/modules.order; do
    [ -e "$i" ] || continue; k=${i%/*}; k=${k##*/}
    case " $seen " in *" $k "*) ;; *) one "$k" "/lib/modules/$k/vmlinuz";; esac
  done
else
  case " $seen " in *" $run "*) ;; *) one "$run" '';; esac
fi
echo 'grub='
set -- /boot/grub/grub.cfg /boot/grub2/grub.cfg /boot/grub/grubenv /boot/grub2/grubenv
for f do shift; [ -r "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] || grep -hE '@LINES@' "$@"
