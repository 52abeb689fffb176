# shellcheck shell=sh
# Defines dump, others, serves and working for CRI-O, as gpustate.ops.daemons has them. Reads CRIO
# (its program), CRIO_MAIN and CRIO_FOLDER (its places), CRIO_SOCKET, HANDLER, BINARY, OWN (the
# runtimes that are gpustate's) and OWN_DEFAULT (how a row begins that may change).
dump() {
  set --
  [ -e "$CRIO_MAIN" ] && set -- --config "$CRIO_MAIN"
  timeout -k 2 20 "$CRIO" "$@" --config-dir "$CRIO_FOLDER" config
}
others() { # a dump on standard input, a line for each value that is not ours
  table=
  while IFS= read -r line; do
    line=${line#"${line%%[! ]*}"}
    # What has its default value is a comment; all runtimes are, or none, so ours uncomments the
    # built-in one.
    case $line in '# ['* | '# '*' = '*) line=${line#'# '} ;; '# '*\",) line=${line#'# '} ;; esac
    case $line in
      '['[a-z]*)
        table=$line
        continue
        ;;
      '' | '#'* | ']') continue ;;
    esac
    case ${line%%' = '*} in *[!a-z0-9_]*) case $line in *\",) ;; *) continue ;; esac ;; esac
    for own in $OWN; do
      case $table in "[crio.runtime.runtimes.$own]") continue 2 ;; esac
    done
    case $line in "$OWN_DEFAULT"*) [ "$table" = '[crio.runtime]' ] && continue ;; esac
    printf '%s %s\n' "$table" "$line"
  done
}
serves() {
  table=
  binary=$BINARY
  while IFS= read -r line; do
    line=${line#"${line%%[! ]*}"}
    case $line in
      '['*) table=$line ;;
      "runtime_path = \"$binary\"") [ "$table" = "[crio.runtime.runtimes.$HANDLER]" ] && return 0 ;;
    esac
  done
  return 1
}
working() {
  [ -S "$CRIO_SOCKET" ] || return 1
  if timeout -k 2 5 "$CRIO" status --help >/dev/null 2>&1; then
    timeout -k 2 5 "$CRIO" status --socket "$CRIO_SOCKET" info >/dev/null 2>&1 || return 1
  fi
  echo 'crio ok'
}
