# shellcheck shell=sh
# Makes what w keeps what a roll-back of this run restores. Expects daemon_remember.sh.
# shellcheck disable=SC2154 # w: set by the caller
for q in "$w"/*.path; do
  [ -e "$q" ] || continue
  k=${q##*/}; k=${k%.path}; p=$(cat "$q")
  [ -e "$R/pre/$k.path" ] && continue
  case $(summed "$p") in "$(cat "$w/$k.sum")" | "$(summed "$w/$k")") ;; *) continue ;; esac
  if [ -e "$w/$k" ]; then cp -a "$w/$k" "$R/pre/$k"; fi
  cp "$q" "$R/pre/$k.path"
done
effect kept
