# shellcheck shell=sh
# Defines together NAME=VERSION...: prints these, and all that has to come at a version of its own.
needs() { # name=version
  apt-cache show "$1" 2>/dev/null | sed -nE 's/^(Pre-)?Depends: //p' | tr ',' '\n' |
    sed -E 's/^ +//; s/ +$//'
}
together() { # name=version...: these, and all that has to come at a version of its own
  open_words=$*
  all_words=
  while [ -n "$open_words" ]; do
    next_words=
    for word in $open_words; do
      case " $all_words " in *" ${word%%=*}="*) continue ;; esac
      all_words="$all_words $word"
      case $word in *=*) ;; *) continue ;; esac
      next_words="$next_words $(needs "$word" |
        sed -nE 's/^([a-z0-9][a-z0-9.+-]+)(:any)? \(= ([^)]+)\)$/\1=\3/p' |
        tr '\n' ' ')"
      for dependency in $(needs "$word" |
        sed -nE 's/^([a-z0-9][a-z0-9.+-]+)(:any)?( \(>= [^)]+\))?$/\1/p'); do
        apt-cache show "$dependency=${word#*=}" 2>/dev/null | grep -qxF "Version: ${word#*=}" &&
          next_words="$next_words $dependency=${word#*=}"
      done
    done
    open_words=$(echo $next_words)
  done
  echo $all_words
}
