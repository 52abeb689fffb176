# shellcheck shell=sh
# Defines cri_says SOCKET: prints the rows of cri_rows.py, with cri_socket first. Reads limit, and CRI_ROWS:
# that program, and its first argument.
cri_says() {
  [ -S "$1" ] || return 0
  echo "cri_socket=$1"
  if cp=$(command -v python3) && [ -n "${CRI_ROWS-}" ] && [ -r "${CRI_ROWS%% *}" ] &&
    cr=$(timeout -k 2 $((${limit:-15} + 5)) "$cp" -I -S -B $CRI_ROWS "$1" ${limit:-10}) && [ -n "$cr" ]; then printf '%s\n' "$cr"
  elif cp=$(command -v ctr) && cr=$(timeout -k 2 ${limit:-10} "$cp" -a "$1" plugins ls 2>/dev/null); then
    case $cr in *.v1*[[:space:]]cri[[:space:]]*) printf '%s\n' "$cr" | while read -r ct ci cs; do
      case "$ct $ci ${cs##* }" in
        "io.containerd.grpc.v1 cri ok") echo "cri=ok|containerd||" ;;
        "io.containerd.grpc.v1 cri "*) echo "cri=unserved|ctr plugins ls: cri ${cs##* }" ;;
      esac
    done ;; esac
  fi
}
