# shellcheck shell=sh
# Copies the file f to k, and defines set_key NAME VALUE-FOR-SED VALUE, which sets a line of the
# copy, and unset_key NAME.
# shellcheck disable=SC2154 # f: set by the caller
[ -f "$f" ] || fail "$f is missing: the package that brings it is not installed as it should be"
no_link "$f"
k=$R/keys
cat "$f" >"$k"
set_key() { # name, value for sed, value
  if grep -q "^$1=" "$k"; then
    sed "s/^\($1=\)[^\r]*/\1$2/" "$k" >"$k.new"
    mv -f "$k.new" "$k"
    return
  fi
  [ -z "$(tail -c 1 "$k")" ] || echo >>"$k"
  printf '%s=%s\n' "$1" "$3" >>"$k"
}
unset_key() {
  sed "/^$1=/d" "$k" >"$k.new"
  mv -f "$k.new" "$k"
}
