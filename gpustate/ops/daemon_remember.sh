# shellcheck shell=sh
# Defines remembered PATH DIGEST, and keeps in w what a daemon works with and what it makes of its
# files. Reads w and n, and expects the daemon's functions.
# shellcheck disable=SC2154 # w and n: set by the caller
# shellcheck disable=SC2174 # the folders above are made elsewhere
mkdir -p -m 0700 "$w" "$R/pre"
summed() { if [ -e "$1" ]; then sha256sum <"$1" | cut -c1-64; else echo -; fi; }
remembered() { # path, digest of the text it will have: what the daemon has read stays kept
  remembered_name=$(sha "$1")
  digest_now=$(summed "$1")
  if [ -e "$w/$remembered_name.path" ] && [ "$digest_now" != "$(cat "$w/$remembered_name.sum")" ] &&
    [ "$digest_now" != "$(summed "$w/$remembered_name")" ]; then
    rm -f "$w/$remembered_name.path" \
      "$w/$remembered_name" # changed by someone else since: that must not be lost
  fi
  printf %s "$2" >"$w/$remembered_name.sum"
  remembered_folder=$(dirname "$1")
  [ -d "$remembered_folder" ] || printf %s "$remembered_folder" >"$G/$n.folder"
  if [ ! -e "$w/$remembered_name.path" ]; then
    rm -f "$w/$remembered_name"
    if [ -e "$1" ]; then
      cp -a "$1" "$w/$remembered_name.new"
      mv -fT "$w/$remembered_name.new" "$w/$remembered_name"
    fi
    printf %s "$1" >"$w/$remembered_name.new"
    mv -fT "$w/$remembered_name.new" "$w/$remembered_name.path"
  fi
}
[ -e "$w/working" ] || {
  working >"$w/working.new" || :
  mv -fT "$w/working.new" "$w/working"
}
[ -e "$w/dump" ] || {
  dump >"$w/dump.new" 2>/dev/null || : >"$w/dump.new"
  mv -fT "$w/dump.new" "$w/dump"
}
