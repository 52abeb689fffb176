# shellcheck shell=sh
# Prints what is loaded and built of a module. @UNDER@, @EITHER@ and @DKMS@ are its names, @SYMBOLS@ and @CAUSE@
# regular expressions: @EITHER@ and @DKMS@ are patterns. Expects ko.
versions() { # module
  command -v modprobe >/dev/null || return 1
  modprobe --dump-modversions "$1" 2>/dev/null | grep -wE '@SYMBOLS@' | while read -r l; do printf 'symbol=%s\n' "$l"; done
}
run=; [ -n "${GPUSTATE_IMAGE-}" ] || run="${KERNEL_RELEASE-$(uname -r)}"
if [ -n "$run" ] && [ -d "$SYS/module/@UNDER@" ]; then
  v=; s=; { read -r v <"$SYS/module/@UNDER@/version"; } 2>/dev/null; { read -r s <"$SYS/module/@UNDER@/srcversion"; } 2>/dev/null
  printf 'loaded=%s|%s\n' "$v" "$s"
fi
seen=
for i in /boot/vmlinuz-* /boot/vmlinux-* "$run"; do
  k=${i#/boot/vmlinu[xz]-}
  case $k in ''|*\**|*rescue*|*.old|*.bak|*.dpkg-*|*.rpm*|*.gz) continue;; esac
  case " $seen " in *" $k "*) continue;; esac
  [ -e "/lib/modules/$k/modules.dep" ] || continue
  seen="$seen $k"; h=; [ -e "/lib/modules/$k/build/Makefile" ] && h=1; r=; [ "$k" = "$run" ] && r=1
  ko "$k" '@EITHER@' || :
  [ -e "$p" ] || p=
  printf 'kernel=%s|%s|%s|%s' "$k" "$r" "$h" "$p"
  [ -z "$p" ] || about "$p" '|%s'
  printf '\n'
  # shellcheck disable=SC2157 # @SYMBOLS@ may be empty
  if [ -n "$r" ] && [ -n "$p" ] && [ -n "@SYMBOLS@" ]; then
    kept 'symbols-@UNDER@' "$(stat -L -c '%n %s %y %z %i' "$p")" versions "$p"
  fi
done
for f in /usr/src/@DKMS@-[0-9]*/dkms.conf; do [ -e "$f" ] && f=${f%/dkms.conf} && echo "source=${f##*/@DKMS@-}"; done
for f in /var/lib/dkms/@DKMS@/*/build/make.log; do
  [ -f "$f" ] || continue; grep -m 1 -E '@CAUSE@' "$f" | cut -c 1-300 | while IFS= read -r l; do printf 'error=%s\n' "$l"; done
done
:
