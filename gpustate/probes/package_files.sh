# shellcheck shell=sh
# Defines checked: prints PACKAGE: PATH HOW for each file that is not as its package brought it. @INFO@, @FILES@ and
# @THERE@ are shell patterns, @NAMES@ words: patterns of case cannot be variables.
as_wanted() { grep -qxF -- "$1" /var/lib/dpkg/diversions || grep -qF -- " $1" /var/lib/dpkg/statoverride; } 2>/dev/null
checked() {
  # shellcheck disable=SC2043 # @INFO@ are several patterns
  for m in @INFO@; do
    [ -f "$m" ] || continue
    p=${m##*/}; p=${p%.md5sums}; pf_lost=
    while read -r s f; do
      f=/$f; pf_only=; case $f in @FILES@) ;; @THERE@) pf_only=1 ;; *) continue ;; esac
      h=; if [ ! -e "$f" ]; then h='is missing'; elif [ ! -f "$f" ]; then h='is not a file'
      elif [ ! -s "$f" ] && [ "$s" != d41d8cd98f00b204e9800998ecf8427e ]; then h='is empty'; fi
      case $f in /usr/src/*) [ -z "$h" ] || [ -n "$pf_lost" ] || as_wanted "$f" || { pf_lost=1; echo "$p: $f $h"; }; continue ;; esac
      if [ -z "$h$pf_only" ]; then
        # shellcheck disable=SC2046 # split into words on purpose
        set -- $(md5sum <"$f"); [ "$1" = "$s" ] || h='is not as the package brought it'
        # shellcheck disable=SC2046 # split into words on purpose
        set -- $(stat -L -c %a "$f"); case $f:$1 in */bin/*:*[1357]|*/lib*:*[4567]) ;; *) h="has mode $1" ;; esac
      fi
      [ -z "$h" ] || as_wanted "$f" || echo "$p: $f $h"
      case $pf_only$f in /*.so.*) ;; *) continue ;; esac
      l=${f##*/}; l=${l%%.so.*}.so.1; d=${f%/*}
      case $d in */*-linux-gnu/*) d=${d%%-linux-gnu/*}-linux-gnu; [ -e "$d/$l" ] ;; *) [ "$d/$l" -ef "$f" ] || [ ! -e "$f" ] ;; esac ||
        as_wanted "$d/$l" || echo "$p: $d/$l is not a link to ${f##*/}"
    done <"$m"
  done
  # shellcheck disable=SC2043 # @NAMES@ are several words
  command -v rpm >/dev/null && for p in $(rpm -qa --qf '%{NAME}\n' @NAMES@ 2>/dev/null | sort -u); do
    rpm -V --nodeps --noscripts --nomtime --nouser --nogroup "$p" | while read -r h f g; do
      f=${g:-$f}; case $f in @FILES@) ;; @THERE@) [ "$h" = missing ] || [ ! -s "$f" ] || continue ;; *) continue ;; esac
      case $h in missing) h='is missing' ;; *) h='is not as the package brought it' ;; esac
      echo "$p: $f $h"
    done
  done
  :
}
