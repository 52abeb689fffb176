# shellcheck shell=sh
# Defines odd PATH...: prints odd=PATH|PLACE|KIND|WHAT for what else is where files belong, or where a folder above
# them does, and fails then.
odd() {
  odd=0
  for q; do
    [ ! -f "$q" ] || continue
    odd_at=$q odd_for=file
    if [ ! -e "$q" ] && [ ! -L "$q" ]; then
      case $q in /*) ;; *) continue ;; esac
      odd_for=folder odd_at=${q%/*}
      while [ -n "$odd_at" ] && [ ! -e "$odd_at" ] && [ ! -L "$odd_at" ]; do odd_at=${odd_at%/*}; done
      [ -n "$odd_at" ] && [ ! -d "$odd_at" ] || continue
    fi
    if [ -f "$odd_at" ]; then o='a file'
    elif [ -d "$odd_at" ]; then o='a folder'
    elif [ -p "$odd_at" ]; then o='a named pipe'
    elif [ -S "$odd_at" ]; then o='a socket'
    elif [ -e "$odd_at" ]; then o='a device'
    else o="a symbolic link to $(readlink "$odd_at"), which is not there"; fi
    printf 'odd=%s|%s|%s|%s\n' "$q" "$odd_at" "$odd_for" "$o"; odd=1
  done
  return $odd
}
