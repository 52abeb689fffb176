# shellcheck shell=sh
# Defines unit_says UNIT: prints what it has said since its last start, in its journal and in its
# file. Reads patience, in seconds.
unit_says() {
  timeout -k 1 "${patience:-20}" journalctl -u "$1" -n 80 -o cat --no-pager 2>/dev/null
  unit_text=$(timeout -k 1 "${patience:-20}" systemctl cat "$1" 2>/dev/null)
  unit_output=$(printf '%s\n' "$unit_text" |
    sed -n 's/^Standard\(Error\|Output\)=\(append\|file\|truncate\)://p' |
    tail -n 1)
  [ -n "$unit_output" ] || {
    unit_text=$(printf '%s\n' "$unit_text" | sed -n 's/^ExecStart=.* -c \(\/[^ ]*\).*/\1/p' |
      tail -n 1)
    [ ! -f "$unit_text" ] || unit_output=$(sed -n 's/^LOG_FILE_NAME=//p' "$unit_text" | tail -n 1)
  }
  [ -f "$unit_output" ] || return 0
  unit_start=$(timeout -k 1 "${patience:-20}" systemctl show -p ExecMainStartTimestamp --value \
    "$1" 2>/dev/null)
  # One that forks and has never come up has no main process yet.
  [ -n "$unit_start" ] ||
    unit_start=$(timeout -k 1 "${patience:-20}" systemctl show -p InactiveExitTimestamp --value \
      "$1" 2>/dev/null)
  [ -z "$unit_start" ] || [ -z "$(find "$unit_output" -newermt "$unit_start" 2>/dev/null)" ] ||
    tail -n 40 -- "$unit_output"
}
