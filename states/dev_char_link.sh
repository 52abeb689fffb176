# shellcheck shell=sh
# Links every device node below /dev/char. Calls nodes.
for node in $(nodes); do
  # shellcheck disable=SC2046 # two numbers
  set -- $(stat -c '%t %T' "$node")
  link=/dev/char/$((0x$1)):$((0x$2))
  [ "$(readlink -f "$link" 2>/dev/null)" = "$node" ] && continue
  mkdir -p /dev/char
  ln -sfnT "$node" "$link"
done
effect linked
