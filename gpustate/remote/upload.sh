# shellcheck shell=sh
# Receives the files of @ROWS@ (number, hash, size, name) in the folder F, and prints what it has
# and lacks, each line with the nonce N. @ROWS@ may be longer than a variable that a program is
# started with.
printf '\n%s begin\n' $N
exec 3<&0
say() { printf '%s %s\n' $N "$*"; }
# shellcheck disable=SC2174 # the folders above are as umask has them
mkdir -p -m 0755 "$F" && cd "$F" || {
  say full "$F"
  exit 1
}
need=0
rows() {
  cat <<'END'
@ROWS@
END
}
while read -r number sha size name; do
  [ "$(stat -c %s "$name")" != "$size" ] || continue
  have=$(stat -c %s "$name.part") || have=0
  [ "$have" -le "$size" ] || {
    rm -f "$name.part"
    have=0
  }
  need=$((need + size - have))
  say have $number $have
done <<END
$(rows)
END
room=$(($(df -Pk . | awk 'NR == 2 { print $4 }') * 1024))
[ "$room" -gt "$((need + 67108864))" ] || {
  say room $need $room
  exit 1
}
say go
while read -r number sha size name; do
  [ "$(stat -c %s "$name")" != "$size" ] || continue
  # shellcheck disable=SC2174 # the folders above are as umask has them
  case $name in */*) mkdir -p -m 0755 "${name%/*}" ;; esac
  have=$(stat -c %s "$name.part") || have=0
  head -c $((size - have)) <&3 >>"$name.part" || {
    say full $name
    exit 1
  }
  [ "$(stat -c %s "$name.part")" = "$size" ] || {
    say cut $name
    exit 1
  }
  if [ "$(sha256sum <"$name.part" | cut -c 1-64)" = "$sha" ]; then
    chmod 0644 "$name.part" && sync "$name.part" && mv -fT "$name.part" "$name"
    say ok $number
  else
    rm -f "$name.part"
    say bad $number
  fi
done <<END
$(rows)
END
say end
