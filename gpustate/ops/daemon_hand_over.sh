# shellcheck shell=sh
# Makes what the notes keep what a roll-back of this run restores. Expects daemon_remember.sh.
# shellcheck disable=SC2154 # notes: set by the caller
for path_file in "$notes"/*.path; do
  [ -e "$path_file" ] || continue
  kept_name=${path_file##*/}
  kept_name=${kept_name%.path}
  path=$(cat "$path_file")
  [ -e "$R/pre/$kept_name.path" ] && continue
  case $(summed "$path") in
    "$(cat "$notes/$kept_name.sum")" | "$(summed "$notes/$kept_name")") ;;
    *) continue ;;
  esac
  if [ -e "$notes/$kept_name" ]; then cp -a "$notes/$kept_name" "$R/pre/$kept_name"; fi
  cp "$path_file" "$R/pre/$kept_name.path"
done
effect kept
