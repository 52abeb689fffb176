# shellcheck shell=sh
# Defines odd PATH...: prints odd=PATH|PLACE|KIND|WHAT for what else is where files belong, or where
# a folder above them does, and fails then.
odd() {
  odd=0
  for odd_path; do
    [ ! -f "$odd_path" ] || continue
    odd_at=$odd_path odd_for=file
    if [ ! -e "$odd_path" ] && [ ! -L "$odd_path" ]; then
      case $odd_path in /*) ;; *) continue ;; esac
      odd_for=folder odd_at=${odd_path%/*}
      while [ -n "$odd_at" ] && [ ! -e "$odd_at" ] && [ ! -L "$odd_at" ]; do
        odd_at=${odd_at%/*}
      done
      [ -n "$odd_at" ] && [ ! -d "$odd_at" ] || continue
    fi
    if [ -f "$odd_at" ]; then
      odd_what='a file'
    elif [ -d "$odd_at" ]; then
      odd_what='a folder'
    elif [ -p "$odd_at" ]; then
      odd_what='a named pipe'
    elif [ -S "$odd_at" ]; then
      odd_what='a socket'
    elif [ -e "$odd_at" ]; then
      odd_what='a device'
    else
      odd_what="a symbolic link to $(readlink "$odd_at"), which is not there"
    fi
    printf 'odd=%s|%s|%s|%s\n' "$odd_path" "$odd_at" "$odd_for" "$odd_what"
    odd=1
  done
  return $odd
}
