# shellcheck shell=sh
# Defines together NAME=VERSION...: prints these, and all that has to come at a version of its own.
needs() { # name=version
  apt-cache show "$1" 2>/dev/null | sed -nE 's/^(Pre-)?Depends: //p' | tr ',' '\n' | sed -E 's/^ +//; s/ +$//'
}
together() { # name=version...: these, and all that has to come at a version of its own
  t=$*; a=
  while [ -n "$t" ]; do
    n=; for w in $t; do
      case " $a " in *" ${w%%=*}="*) continue;; esac; a="$a $w"
      case $w in *=*) ;; *) continue;; esac
      n="$n $(needs "$w" | sed -nE 's/^([a-z0-9][a-z0-9.+-]+)(:any)? \(= ([^)]+)\)$/\1=\3/p' | tr '\n' ' ')"
      for d in $(needs "$w" | sed -nE 's/^([a-z0-9][a-z0-9.+-]+)(:any)?( \(>= [^)]+\))?$/\1/p'); do
        apt-cache show "$d=${w#*=}" 2>/dev/null | grep -qxF "Version: ${w#*=}" && n="$n $d=${w#*=}"
      done
    done; t=$(echo $n)
  done
  echo $a
}
