# shellcheck shell=sh
# Defines blob, print_blobs and known: see daemon_seen.py. @ORIGINALS@ is what other fragments that leave together read too.
# Expects odd.
bf=; blob() {
  printf 'several=%s %s\n' "$1" "$2"; bf="$bf$3
"; [ ! -L "$2" ] || printf 'link=%s|%s\n' "$2" "$(readlink "$2")"
}
print_blobs() {
  [ -n "$bf" ] || return 0
  bi=$IFS; IFS='
'; set -f; set -- $bf; set +f; IFS=$bi; bf=
  echo contents=; stat -L -c %s -- "$@"; cat -- "$@"; echo
}
known() { # patterns of paths: the bytes they had before gpustate first touched them
  bk=@ORIGINALS@; bi=$IFS; IFS='
'; set -f
  for k in $bk; do
    f=${k#*|}; k=${k%%|*}
    for c in "$@"; do
      # shellcheck disable=SC2254 # known takes patterns
      case $f in $c) if [ -e "$k" ]; then blob original "$f" "$k"; else echo "missing=$f"; fi; break ;; esac
    done
  done
  IFS=$bi; set +f
}
