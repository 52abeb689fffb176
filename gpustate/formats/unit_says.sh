# shellcheck shell=sh
# Defines unit_says UNIT: prints what it has said since its last start, in its journal and in its file. Reads
# patience, in seconds.
unit_says() {
  timeout -k 1 "${patience:-20}" journalctl -u "$1" -n 80 -o cat --no-pager 2>/dev/null
  uc=$(timeout -k 1 "${patience:-20}" systemctl cat "$1" 2>/dev/null)
  uf=$(printf '%s\n' "$uc" | sed -n 's/^Standard\(Error\|Output\)=\(append\|file\|truncate\)://p' | tail -n 1)
  [ -n "$uf" ] || {
    uc=$(printf '%s\n' "$uc" | sed -n 's/^ExecStart=.* -c \(\/[^ ]*\).*/\1/p' | tail -n 1)
    [ ! -f "$uc" ] || uf=$(sed -n 's/^LOG_FILE_NAME=//p' "$uc" | tail -n 1)
  }
  [ -f "$uf" ] || return 0
  ut=$(timeout -k 1 "${patience:-20}" systemctl show -p ExecMainStartTimestamp --value "$1" 2>/dev/null)
  # One that forks and has never come up has no main process yet.
  [ -n "$ut" ] || ut=$(timeout -k 1 "${patience:-20}" systemctl show -p InactiveExitTimestamp --value "$1" 2>/dev/null)
  [ -z "$ut" ] || [ -z "$(find "$uf" -newermt "$ut" 2>/dev/null)" ] || tail -n 40 -- "$uf"
}
