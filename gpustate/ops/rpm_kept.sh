# shellcheck shell=sh
# Leaves in the arguments what nobody outside of them needs; @ROOTS@ are words that have to leave.
# Reads record.
# shellcheck disable=SC2154 # record: set by the caller
while [ $# -gt 0 ]; do
  rpm -e --test "$@" 2>&1 >/dev/null |
    sed -n 's/^[[:space:]]*\([^ ]*\).* is needed by (installed) \(.*\)/\1 \2/p' >"$R/needs" || :
  go=
  stay=
  for package; do
    needed_by=
    while read -r capability dependent; do
      if rpm -q --whatprovides --qf '%{NAME}\n' "$capability" 2>/dev/null |
        grep -Fqx "$package"; then
        needed_by="$needed_by $dependent"
      fi
    done <"$R/needs"
    [ -n "$needed_by" ] || {
      go="$go $package"
      continue
    }
    # shellcheck disable=SC2194 # @ROOTS@ are the words to look in
    case " @ROOTS@ " in
      *" $package "*)
        fail "error: $package cannot be removed,$needed_by needs it; remove that first"
        ;;
    esac
    echo "$package stays:$needed_by needs it"
    hand_on "$record" "$package"
    stay=1
  done
  [ -n "$stay" ] || break
  set -- $go
done
