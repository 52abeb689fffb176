# shellcheck shell=sh
# Purges what the record names and @WANTED@, words; what something else needs stays, and @ROOTS@,
# words too, have to leave. Expects library.sh, packages.sh and hand_on.
# shellcheck disable=SC2154 # record: set by the loader's caller
# shellcheck disable=SC2046 # split into words on purpose
installed_of() {
  dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
    sed -n 's/ installed$//p; s/ half-.*//p; s/ unpacked$//p'
}
set -- @WANTED@
[ ! -e "$record" ] || set -- "$@" $(cat "$record")
[ $# = 0 ] || set -- $(installed_of "$@" | sort -u)
if [ $# -gt 0 ]; then
  printf "%s\n" "$@" | sort -u >"$R/mine"
  also() {
    apt -s purge --allow-change-held-packages "$@" 2>/dev/null |
      sed -nE 's/^(Remv|Purg) ([^ :]*).*/\2/p' | sort -u | comm -23 - "$R/mine"
  }
  if [ -n "$(also "$@")" ]; then
    go=
    for package; do
      needed_by=$(also "$package" | tr "\n" " ")
      [ -n "$needed_by" ] || {
        go="$go $package"
        continue
      }
      # shellcheck disable=SC2194 # @ROOTS@ are the words to look in
      case " @ROOTS@ " in
        *" $package "*)
          fail "error: $package cannot be removed, ${needed_by% } needs it; remove that first"
          ;;
      esac
      echo "$package stays: ${needed_by% } needs it"
      hand_on "$record" "$package"
    done
    set -- $go
  fi
  [ $# = 0 ] || no_links_left apt purge --allow-change-held-packages "$@"
fi
rm -f "$record"
rmdir "${record%/*}" 2>/dev/null || :
effect removed
