# shellcheck shell=sh
# Records the target of the link in RECORD, once. Calls cuda_query.
[ -e "$RECORD" ] && { effect same; exit 0; }
s=$(cuda_query) || { echo none >"$RECORD.new"; mv -f "$RECORD.new" "$RECORD"; effect noted; exit 0; }
m=$(printf '%s\n' "$s" | sed -n 's/^Status: //p'); p=$(printf '%s\n' "$s" | sed -n 's/^Value: //p')
printf '%s %s\n' "$m" "$p" >"$RECORD.new"; sync "$RECORD.new"; mv -f "$RECORD.new" "$RECORD"; effect noted
