# shellcheck shell=sh
# Takes the lock for a person: INFO, RUN and EXPIRES are its files, FORCE is 1 to take it from
# whoever holds it. Prints held and the holder's info, and exits with 8, if it is held.
held() {
  rm -rf "$t"
  printf 'held '
  cat "$G/lock/info"
  exit 8
}
# shellcheck disable=SC2174 # folders above it get theirs by umask
mkdir -p -m 0700 "$G" && t=$(mktemp -d "$G/lock.XXXXXX") || {
  echo "$G cannot be written"
  exit 1
}
printf %s "$INFO" >"$t/info"
printf %s "$RUN" >"$t/run"
printf %s "$EXPIRES" >"$t/expires" || {
  rm -rf "$t"
  echo "the disk of $G is full"
  exit 1
}
if [ -d "$G/lock" ]; then
  [ -z "$FORCE" ] && [ "$(cat "$G/lock/expires")" -gt "$(date +%s)" ] && held
  rm -rf "$G/lock"
fi
mv -T "$t" "$G/lock" || held
