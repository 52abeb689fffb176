# shellcheck shell=sh
# Prints what is loaded and built of a module. @UNDER@, @EITHER@ and @DKMS@ are its names, @SYMBOLS@
# and @CAUSE@ regular expressions: @EITHER@ and @DKMS@ are patterns. Expects ko.
versions() { # module
  command -v modprobe >/dev/null || return 1
  modprobe --dump-modversions "$1" 2>/dev/null | grep -wE '@SYMBOLS@' |
    while read -r line; do printf 'symbol=%s\n' "$line"; done
}
run=
[ -n "${GPUSTATE_IMAGE-}" ] || run="${KERNEL_RELEASE-$(uname -r)}"
if [ -n "$run" ] && [ -d "$SYS/module/@UNDER@" ]; then
  version=
  source_version=
  { read -r version <"$SYS/module/@UNDER@/version"; } 2>/dev/null
  { read -r source_version <"$SYS/module/@UNDER@/srcversion"; } 2>/dev/null
  printf 'loaded=%s|%s\n' "$version" "$source_version"
fi
seen=
for image in /boot/vmlinuz-* /boot/vmlinux-* "$run"; do
  kernel=${image#/boot/vmlinu[xz]-}
  case $kernel in '' | *\** | *rescue* | *.old | *.bak | *.dpkg-* | *.rpm* | *.gz) continue ;; esac
  case " $seen " in *" $kernel "*) continue ;; esac
  [ -e "/lib/modules/$kernel/modules.dep" ] || continue
  seen="$seen $kernel"
  headers=
  [ -e "/lib/modules/$kernel/build/Makefile" ] && headers=1
  running=
  [ "$kernel" = "$run" ] && running=1
  ko "$kernel" '@EITHER@' || :
  [ -e "$module_file" ] || module_file=
  printf 'kernel=%s|%s|%s|%s' "$kernel" "$running" "$headers" "$module_file"
  [ -z "$module_file" ] || about "$module_file" '|%s'
  printf '\n'
  # shellcheck disable=SC2157 # @SYMBOLS@ may be empty
  if [ -n "$running" ] && [ -n "$module_file" ] && [ -n "@SYMBOLS@" ]; then
    kept 'symbols-@UNDER@' "$(stat -L -c '%n %s %y %z %i' "$module_file")" versions "$module_file"
  fi
done
for f in /usr/src/@DKMS@-[0-9]*/dkms.conf; do
  [ -e "$f" ] && f=${f%/dkms.conf} && echo "source=${f##*/@DKMS@-}"
done
for f in /var/lib/dkms/@DKMS@/*/build/make.log; do
  [ -f "$f" ] || continue
  grep -m 1 -E '@CAUSE@' "$f" | cut -c 1-300 | while IFS= read -r line; do
    printf 'error=%s\n' "$line"
  done
done
:
