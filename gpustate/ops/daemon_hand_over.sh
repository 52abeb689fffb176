# shellcheck shell=sh
# Makes what w keeps what a roll-back of this run restores. Expects daemon_remember.sh.
# shellcheck disable=SC2154 # w: set by the caller
for path_file in "$w"/*.path; do
  [ -e "$path_file" ] || continue
  kept_name=${path_file##*/}
  kept_name=${kept_name%.path}
  path=$(cat "$path_file")
  [ -e "$R/pre/$kept_name.path" ] && continue
  case $(summed "$path") in
    "$(cat "$w/$kept_name.sum")" | "$(summed "$w/$kept_name")") ;;
    *) continue ;;
  esac
  if [ -e "$w/$kept_name" ]; then cp -a "$w/$kept_name" "$R/pre/$kept_name"; fi
  cp "$path_file" "$R/pre/$kept_name.path"
done
effect kept
