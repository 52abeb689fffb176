# shellcheck shell=sh
# Fails unless the files of @ROWS@, size and name each, are in FOLDER.
cd "$FOLDER" || fail 'nothing was uploaded'
while read -r size name; do
  [ "$(stat -c %s "$name" 2>/dev/null)" = "$size" ] || fail "$name did not arrive; run again"
done <<'END'
@ROWS@
END
sync .
effect uploaded
