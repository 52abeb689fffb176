# shellcheck shell=sh
# Defines remembered PATH DIGEST, and keeps in notes what a daemon works with and what it makes of
# its files. Reads notes (a folder) and daemon (its name), and expects the daemon's functions.
# shellcheck disable=SC2154 # notes and daemon: set by the caller
# shellcheck disable=SC2174 # the folders above are made elsewhere
mkdir -p -m 0700 "$notes" "$R/pre"
summed() { if [ -e "$1" ]; then sha256sum <"$1" | cut -c1-64; else echo -; fi; }
remembered() { # path, digest of the text it will have: what the daemon has read stays kept
  kept_name=$(sha "$1")
  digest_now=$(summed "$1")
  if [ -e "$notes/$kept_name.path" ] && [ "$digest_now" != "$(cat "$notes/$kept_name.sum")" ] &&
    [ "$digest_now" != "$(summed "$notes/$kept_name")" ]; then
    # Changed by someone else since: that must not be lost.
    rm -f "$notes/$kept_name.path" "$notes/$kept_name"
  fi
  printf %s "$2" >"$notes/$kept_name.sum"
  remembered_folder=$(dirname "$1")
  [ -d "$remembered_folder" ] || printf %s "$remembered_folder" >"$G/$daemon.folder"
  if [ ! -e "$notes/$kept_name.path" ]; then
    rm -f "$notes/$kept_name"
    if [ -e "$1" ]; then
      cp -a "$1" "$notes/$kept_name.new"
      mv -fT "$notes/$kept_name.new" "$notes/$kept_name"
    fi
    printf %s "$1" >"$notes/$kept_name.new"
    mv -fT "$notes/$kept_name.new" "$notes/$kept_name.path"
  fi
}
[ -e "$notes/working" ] || {
  working >"$notes/working.new" || :
  mv -fT "$notes/working.new" "$notes/working"
}
[ -e "$notes/dump" ] || {
  dump >"$notes/dump.new" 2>/dev/null || : >"$notes/dump.new"
  mv -fT "$notes/dump.new" "$notes/dump"
}
