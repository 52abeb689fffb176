# shellcheck shell=sh
# Defines others and serves for containerd, as gpustate.ops.daemons has them. Reads HANDLER, BINARY,
# OWN (the runtimes that are gpustate's) and OWN_DEFAULT (a key that may change).
others() { # a dump on standard input, a line for each value that is neither empty nor ours
  table=
  while IFS= read -r line; do
    line=${line#"${line%%[! ]*}"}
    case $line in
      '['*)
        table=$line
        continue
        ;;
      '') continue ;;
    esac
    for own in $OWN; do
      case $table in *".runtimes.$own]" | *".runtimes.$own."*) continue 2 ;; esac
    done
    case ${line#*= } in '""' | "''" | 0 | 0.0 | false | '[]' | '{}') continue ;; esac
    case $line in
      'imports = '*) [ -z "$table" ] && continue ;;
      'enable_cdi = '* | 'cdi_spec_dirs = '* | "$OWN_DEFAULT = "*)
        case $table in *cri*) continue ;; esac
        ;;
    esac
    printf '%s %s\n' "$table" "$line"
  done
}
serves() {
  table=
  binary=$BINARY binary_name=${BINARY##*/}
  while IFS= read -r line; do
    line=${line#"${line%%[! ]*}"}
    case $line in '['*)
      table=$line
      continue
      ;;
    esac
    case $table in
      *".runtimes.$HANDLER.options]")
        case $line in
          "BinaryName = \"$binary\"" | "BinaryName = '$binary'" | \
            "BinaryName = \"$binary_name\"" | "BinaryName = '$binary_name'")
            return 0
            ;;
        esac
        ;;
    esac
  done
  return 1
}
