# shellcheck shell=sh
# Defines checked: prints PACKAGE: PATH HOW for each file that is not as its package brought it.
# @INFO@, @FILES@ and @THERE@ are shell patterns, @NAMES@ words: patterns of case cannot be
# variables.
as_wanted() {
  grep -qxF -- "$1" /var/lib/dpkg/diversions || grep -qF -- " $1" /var/lib/dpkg/statoverride
} 2>/dev/null
checked() {
  # shellcheck disable=SC2043 # @INFO@ are several patterns
  for sums in @INFO@; do
    [ -f "$sums" ] || continue
    package=${sums##*/}
    package=${package%.md5sums}
    pf_lost=
    while read -r digest f; do
      f=/$f
      pf_only=
      case $f in @FILES@) ;; @THERE@) pf_only=1 ;; *) continue ;; esac
      damage=
      if [ ! -e "$f" ]; then
        damage='is missing'
      elif [ ! -f "$f" ]; then
        damage='is not a file'
      elif [ ! -s "$f" ] && [ "$digest" != d41d8cd98f00b204e9800998ecf8427e ]; then
        damage='is empty'
      fi
      case $f in /usr/src/*)
        [ -z "$damage" ] || [ -n "$pf_lost" ] || as_wanted "$f" || {
          pf_lost=1
          echo "$package: $f $damage"
        }
        continue
        ;;
      esac
      if [ -z "$damage$pf_only" ]; then
        # shellcheck disable=SC2046 # split into words on purpose
        set -- $(md5sum <"$f")
        [ "$1" = "$digest" ] || damage='is not as the package brought it'
        # shellcheck disable=SC2046 # split into words on purpose
        set -- $(stat -L -c %a "$f")
        case $f:$1 in */bin/*:*[1357] | */lib*:*[4567]) ;; *) damage="has mode $1" ;; esac
      fi
      [ -z "$damage" ] || as_wanted "$f" || echo "$package: $f $damage"
      case $pf_only$f in /*.so.*) ;; *) continue ;; esac
      link=${f##*/}
      link=${link%%.so.*}.so.1
      folder=${f%/*}
      case $folder in
        */*-linux-gnu/*)
          folder=${folder%%-linux-gnu/*}-linux-gnu
          [ -e "$folder/$link" ]
          ;;
        *) [ "$folder/$link" -ef "$f" ] || [ ! -e "$f" ] ;;
      esac ||
        as_wanted "$folder/$link" || echo "$package: $folder/$link is not a link to ${f##*/}"
    done <"$sums"
  done
  # shellcheck disable=SC2043 # @NAMES@ are several words
  command -v rpm >/dev/null && for package in $(rpm -qa --qf '%{NAME}\n' @NAMES@ 2>/dev/null |
    sort -u); do
    rpm -V --nodeps --noscripts --nomtime --nouser --nogroup "$package" |
      while read -r damage f last_word; do
        f=${last_word:-$f}
        case $f in
          @FILES@) ;;
          @THERE@) [ "$damage" = missing ] || [ ! -s "$f" ] || continue ;;
          *) continue ;;
        esac
        case $damage in
          missing) damage='is missing' ;;
          *) damage='is not as the package brought it' ;;
        esac
        echo "$package: $f $damage"
      done
  done
  :
}
