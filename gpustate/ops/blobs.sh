# shellcheck shell=sh
# Defines blob, print_blobs and known: see daemon_seen.py. @ORIGINALS@ is what other fragments that
# leave together read too. Expects odd.
blob_files=
blob() {
  printf 'several=%s %s\n' "$1" "$2"
  blob_files="$blob_files$3
"
  [ ! -L "$2" ] || printf 'link=%s|%s\n' "$2" "$(readlink "$2")"
}
print_blobs() {
  [ -n "$blob_files" ] || return 0
  blob_ifs=$IFS
  IFS='
'
  set -f
  set -- $blob_files
  set +f
  IFS=$blob_ifs
  blob_files=
  echo contents=
  stat -L -c %s -- "$@"
  cat -- "$@"
  echo
}
known() { # patterns of paths: the bytes they had before gpustate first touched them
  known_originals=@ORIGINALS@
  blob_ifs=$IFS
  IFS='
'
  set -f
  for known_copy in $known_originals; do
    known_path=${known_copy#*|}
    known_copy=${known_copy%%|*}
    for known_pattern in "$@"; do
      # shellcheck disable=SC2254 # known takes patterns
      case $known_path in $known_pattern)
        if [ -e "$known_copy" ]; then
          blob original "$known_path" "$known_copy"
        else
          echo "missing=$known_path"
        fi
        break
        ;;
      esac
    done
  done
  IFS=$blob_ifs
  set +f
}
