# shellcheck shell=sh
# Stores a file that queries need, DIGEST/NAME, if the node lacks it: asks for it behind NONCE, and
# reads its LENGTH compressed bytes from standard input.
if [ ! -s "$SHIPPED/$DIGEST/$NAME" ]; then
  printf '%s need %s\n' "$NONCE" "$DIGEST"
  # shellcheck disable=SC2174 # folders above it get theirs by umask
  if mkdir -p -m 0700 "$G" && mkdir -p -m 0755 "$SHIPPED/$DIGEST" &&
    t=$(mktemp "$SHIPPED/$DIGEST/.new.XXXXXX"); then
    head -c "$LENGTH" | gzip -dc >"$t" && sync "$t" && chmod 0644 "$t" &&
      mv -fT "$t" "$SHIPPED/$DIGEST/$NAME" || rm -f "$t"
  else
    head -c "$LENGTH" >/dev/null
  fi
fi
