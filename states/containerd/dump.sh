# shellcheck shell=sh
# Defines dump: prints containerd's effective configuration. Reads CONTAINERD (its program), VERSION
# and ROOT (its file). What it is asked with is what gpustate.formats.containerd.dump_arguments
# says.
dump() {
  case $VERSION in
    2.0.*) set -- --config "$ROOT" config migrate ;;
    *) set -- --config "$ROOT" config dump ;;
  esac
  case $VERSION in 1.*) [ -e "$ROOT" ] || set -- config default ;; esac
  timeout -k 2 20 "$CONTAINERD" "$@"
}
