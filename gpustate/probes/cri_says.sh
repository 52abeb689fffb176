# shellcheck shell=sh
# Defines cri_says SOCKET: prints the rows of cri_rows.py, with cri_socket first. Reads limit, and
# CRI_ROWS: that program, and its first argument.
cri_says() {
  [ -S "$1" ] || return 0
  echo "cri_socket=$1"
  if cri_program=$(command -v python3) && [ -n "${CRI_ROWS-}" ] && [ -r "${CRI_ROWS%% *}" ] &&
    cri_rows=$(timeout -k 2 $((${limit:-15} + 5)) "$cri_program" -I -S -B $CRI_ROWS "$1" \
      ${limit:-10}) &&
    [ -n "$cri_rows" ]; then
    printf '%s\n' "$cri_rows"
  elif cri_program=$(command -v ctr) &&
    cri_rows=$(timeout -k 2 ${limit:-10} "$cri_program" -a "$1" plugins ls 2>/dev/null); then
    case $cri_rows in
      *.v1*[[:space:]]cri[[:space:]]*)
        printf '%s\n' "$cri_rows" | while read -r plugin_type plugin plugin_state; do
          case "$plugin_type $plugin ${plugin_state##* }" in
            "io.containerd.grpc.v1 cri ok") echo "cri=ok|containerd||" ;;
            "io.containerd.grpc.v1 cri "*)
              echo "cri=unserved|ctr plugins ls: cri ${plugin_state##* }"
              ;;
          esac
        done
        ;;
    esac
  fi
}
