# shellcheck shell=sh
# Defines remembered PATH DIGEST, and keeps in w what a daemon works with and what it makes of its files. Reads w and
# n, and expects the daemon's functions.
# shellcheck disable=SC2154 # w and n: set by the caller
# shellcheck disable=SC2174 # the folders above are made elsewhere
mkdir -p -m 0700 "$w" "$R/pre"
summed() { if [ -e "$1" ]; then sha256sum <"$1" | cut -c1-64; else echo -; fi; }
remembered() { # path, digest of the text it will have: what the daemon has read stays kept
  k=$(sha "$1"); now=$(summed "$1")
  if [ -e "$w/$k.path" ] && [ "$now" != "$(cat "$w/$k.sum")" ] && [ "$now" != "$(summed "$w/$k")" ]; then
    rm -f "$w/$k.path" "$w/$k" # changed by someone else since: that must not be lost
  fi
  printf %s "$2" >"$w/$k.sum"
  d=$(dirname "$1"); [ -d "$d" ] || printf %s "$d" >"$G/$n.folder"
  if [ ! -e "$w/$k.path" ]; then
    rm -f "$w/$k"
    if [ -e "$1" ]; then cp -a "$1" "$w/$k.new"; mv -fT "$w/$k.new" "$w/$k"; fi
    printf %s "$1" >"$w/$k.new"; mv -fT "$w/$k.new" "$w/$k.path"
  fi
}
[ -e "$w/working" ] || { working >"$w/working.new" || :; mv -fT "$w/working.new" "$w/working"; }
[ -e "$w/dump" ] || { dump >"$w/dump.new" 2>/dev/null || : >"$w/dump.new"; mv -fT "$w/dump.new" "$w/dump"; }
