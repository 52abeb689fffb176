# shellcheck shell=sh
# Begins the program of a run. Reads G, RUN, R, PROC, SYS, LOCK and KEPT_PACKAGES, and KEEP_LOCK
# where the lock outlives the program.
export G RUN R PROC SYS LOCK KEPT_PACKAGES
# Somebody who starts the same run twice gets the one that is there.
if mkdir "$R/begun" 2>/dev/null; then
  printf "%s\n" $$ >"$R/begun/pid"
else
  polls=0
  until [ -s "$R/journal" ] || [ $polls -ge 100 ]; do
    sleep 0.2
    polls=$((polls + 1))
  done
  if [ -s "$R/journal" ] || { read -r pid <"$R/begun/pid" && kill -0 "$pid"; }; then exit 0; fi
fi
printf "%s\n" $$ >"$R/pid.new" && mv "$R/pid.new" "$R/pid"
. "$R/library"
[ ! -s "$J" ] || exit 0
# The start-up of the program is told apart from its end even when it is killed at once.
now
entry '{"e":"start","t":'"$NOW"'}'
