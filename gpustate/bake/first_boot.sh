# shellcheck shell=sh
# Runs what an image has left for its first boot, and keeps the result. @G@ is the state folder,
# @UNIT@, @LINK@ and @LINK_FOLDER@ are the unit and where it is enabled: the program stands alone on
# the machine.
G=@G@
F=$G/firstboot
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 077
[ -e "$F/program" ] || exit 0
result() {
  printf '%s\n' "$1" >"$F/result.new" && sync "$F/result.new" &&
    mv -fT "$F/result.new" "$F/result" && sync "$F"
}
lose() {
  result "failed: $1"
  echo "gpustate: the first boot of this image is not finished: $1" >&2
  exit 1
}
# One that was cut off holds nobody.
case $(cat "$G/lock/run" 2>/dev/null) in firstboot-*) rm -rf "$G/lock" ;; esac
tries=0
while [ -d "$G/lock" ] && [ "$(cat "$G/lock/expires" 2>/dev/null || echo 0)" -gt "$(date +%s)" ]; do
  tries=$((tries + 1))
  [ $tries -lt 900 ] ||
    lose "the node is locked: $(cat "$G/lock/info"); systemctl restart @UNIT@ when it is free"
  sleep 1
done
rm -rf "$G/lock"
now=$(date +%s)
RUN=firstboot-$(date -u +%Y%m%d-%H%M%S)-$$
R=$G/runs/$RUN
mkdir -p "$G/runs" && rm -rf "$R.new" && mkdir "$R.new" "$R.new/lock" &&
  cp "$F/library" "$F/program" "$F"/step.* "$F/steps.json" "$R.new/" &&
  printf '{"expires": %s, "holder": "its first boot", "pid": 0, "plan": "", ' \
    $((now + 3600)) >"$R.new/lock/info" &&
  printf '"reason": "apply", "run": "%s", "since": %s}' "$RUN" "$now" >>"$R.new/lock/info" &&
  printf %s "$RUN" >"$R.new/lock/run" && printf %s $((now + 3600)) >"$R.new/lock/expires" &&
  sync "$R.new"/* && mv -T "$R.new" "$R" && sync "$G/runs" &&
  mv -T "$R/lock" "$G/lock" || lose "the disk of $G is full, or cannot be written"
ls -1t "$G/runs" | tail -n +11 | while read -r d; do [ "$d" = "$RUN" ] || rm -rf "$G/runs/$d"; done
result running
sh "$R/program" "$RUN"
failed_step=$(sed -n '/"rc":[1-9]/{s/.*"i":\([0-9]*\),.*/\1/p;q}' "$R/journal")
if [ -n "$failed_step" ]; then
  message=$(grep -m 1 -iE 'fail|error|cannot' "$R/out.$failed_step" ||
    tail -n 1 "$R/out.$failed_step")
  lose "$(sed -n "${failed_step}p" "$F/labels"): $(printf %.400s "$message")"
fi
tail -n 1 "$R/journal" | grep -q '"e":"end","stopped":0' || lose "it was ended before it was done"
result "done"
rm -f @LINK@
sync @LINK_FOLDER@
echo "gpustate: the first boot of this image is finished"
