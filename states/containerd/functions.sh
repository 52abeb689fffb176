# shellcheck shell=sh
# Defines others and serves for containerd, as gpustate.ops.daemons has them. Reads HANDLER, BINARY, OWN_RUNC (runc, where it comes with the handler) and OWN_DEFAULT (a key that may change).
others() { # a dump on standard input, a line for each value that is neither empty nor ours
  t=
  while IFS= read -r l; do
    l=${l#"${l%%[! ]*}"}
    case $l in '['*) t=$l; continue ;; '') continue ;; esac
    case $t in *".runtimes.$HANDLER]" | *".runtimes.$HANDLER."*) continue ;; esac
    case $t in *".runtimes.$OWN_RUNC]" | *".runtimes.$OWN_RUNC."*) continue ;; esac
    case ${l#*= } in '""' | "''" | 0 | 0.0 | false | '[]' | '{}') continue ;; esac
    case $l in
      'imports = '*) [ -z "$t" ] && continue ;;
      'enable_cdi = '* | 'cdi_spec_dirs = '* | "$OWN_DEFAULT = "*) case $t in *cri*) continue ;; esac ;;
    esac
    printf '%s %s\n' "$t" "$l"
  done
}
serves() {
  t=; b=$BINARY n1=${BINARY##*/}
  while IFS= read -r l; do
    l=${l#"${l%%[! ]*}"}
    case $l in '['*) t=$l; continue ;; esac
    case $t in
      *".runtimes.$HANDLER.options]") case $l in
        "BinaryName = \"$b\"" | "BinaryName = '$b'" | "BinaryName = \"$n1\"" | "BinaryName = '$n1'") return 0 ;;
      esac ;;
    esac
  done
  return 1
}
