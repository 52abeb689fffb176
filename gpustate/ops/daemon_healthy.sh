# shellcheck shell=sh
# Returns 1 unless the service @UNIT@ runs and works as before and @MORE@, sh, succeeds; then
# removes the notes.
# shellcheck disable=SC2154 # notes: set by the caller
systemctl is-active --quiet @UNIT@ || return 1
works_now=$(working) || return 1
{ @MORE@; } || return 1
if [ "$works_now" != "$(cat "$notes/working" 2>/dev/null)" ]; then
  printf '%s\n' "$works_now" | while read -r row; do
    case $row in '' | ok | *' ok') ;; *) exit 1 ;; esac
  done || return 1
fi
rm -rf "$notes"
