# shellcheck shell=sh
# Links every device node below /dev/char. Calls nodes.
for f in $(nodes); do
  # shellcheck disable=SC2046 # two numbers
  set -- $(stat -c '%t %T' "$f"); l=/dev/char/$((0x$1)):$((0x$2))
  [ "$(readlink -f "$l" 2>/dev/null)" = "$f" ] && continue
  mkdir -p /dev/char; ln -sfnT "$f" "$l"
done
effect linked
