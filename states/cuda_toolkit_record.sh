# shellcheck shell=sh
# Records the target of the link in RECORD, once. Calls cuda_query.
[ -e "$RECORD" ] && {
  effect same
  exit 0
}
alternatives=$(cuda_query) || {
  echo none >"$RECORD.new"
  mv -f "$RECORD.new" "$RECORD"
  effect noted
  exit 0
}
mode=$(printf '%s\n' "$alternatives" | sed -n 's/^Status: //p')
path=$(printf '%s\n' "$alternatives" | sed -n 's/^Value: //p')
printf '%s %s\n' "$mode" "$path" >"$RECORD.new"
sync "$RECORD.new"
mv -f "$RECORD.new" "$RECORD"
effect noted
