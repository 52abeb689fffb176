# shellcheck shell=sh
# Leaves in the arguments what nobody outside of them needs; @ROOTS@ are words that have to leave. Reads record.
# shellcheck disable=SC2154 # record: set by the caller
while [ $# -gt 0 ]; do
  rpm -e --test "$@" 2>&1 >/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\).* is needed by (installed) \(.*\)/\1 \2/p' >"$R/needs" || :
  go=; stay=
  for p do
    w=; while read -r c x; do
      if rpm -q --whatprovides --qf '%{NAME}\n' "$c" 2>/dev/null | grep -Fqx "$p"; then w="$w $x"; fi
    done <"$R/needs"
    [ -n "$w" ] || { go="$go $p"; continue; }
    # shellcheck disable=SC2194 # @ROOTS@ are the words to look in
    case " @ROOTS@ " in *" $p "*) fail "error: $p cannot be removed,$w needs it; remove that first" ;; esac
    echo "$p stays:$w needs it"; hand_on "$record" "$p"; stay=1
  done
  [ -n "$stay" ] || break
  set -- $go
done
