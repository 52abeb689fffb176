# shellcheck shell=sh
# Begins the program of a first boot. @G@, @PROC@ and @SYS@ are folders: the program stands alone on
# the machine.
G=@G@
RUN=$1
R=$G/runs/$RUN
LOCK=$RUN
PROC=@PROC@
SYS=@SYS@
export G RUN R PROC SYS LOCK
printf "%s\n" $$ >"$R/pid.new" && mv "$R/pid.new" "$R/pid"
. "$R/library"
[ ! -s "$J" ] || exit 0
now
entry '{"e":"start","t":'"$NOW"'}'
