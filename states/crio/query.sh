# shellcheck shell=sh
# Prints how CRI-O is started, its files and what it makes of them, as rows. Reads MAIN and FOLDER
# (its own places), UNREAD (a folder that it does not read), DROP_IN (name of gpustate's file),
# SOCKET, OWED and SERVED (notes about it). It comes after unit_command, low_level.sh and the
# functions blob, known, print_blobs, odd and cri_says.
# shellcheck disable=SC2154 # exec_start and its like come from unit_command
set -f
set -- $exec_start
set +f
if [ -n "$main_pid" ] && [ -r "/proc/$main_pid/cmdline" ]; then
  command_line=$(tr '\0' ' ' <"/proc/$main_pid/cmdline")
  set -f
  set -- $command_line
  set +f
fi
program=
main=
folder=
[ $# = 0 ] || {
  program=$1
  shift
}
while [ $# != 0 ]; do
  case $1 in
    -c | --config) main=${2-} ;;
    -c=* | --config=*) main=${1#*=} ;;
    -d | --config-dir) folder=${2-} ;;
    -d=* | --config-dir=*) folder=${1#*=} ;;
  esac
  shift
done
# Of another program -c and -d may mean anything.
case $program in
  */crio) ;;
  *)
    program=$(command -v crio)
    case $main in /*) ;; *) main= ;; esac
    case $folder in /*) ;; *) folder= ;; esac
    ;;
esac
[ -n "$main" ] || main="$MAIN"
[ -n "$folder" ] || folder="$FOLDER"
printf 'main=%s\nfolder=%s\n' "$main" "$folder"
[ -e "$OWED" ] && echo owed=1
[ -e "$G/$SERVED" ] && echo served=1 && started_at=
[ -z "$started_at" ] || started_at=$(date -d "$started_at" +%s)
{
  [ -f "$main" ] && printf '%s\n' "$main"
  [ -d "$folder" ] && find "$folder" ! -name '.gpustate.*' \( -type f -o -type l \) 2>/dev/null
} | {
  set --
  while IFS= read -r f; do [ -f "$f" ] && blob file "$f" "$f" && set -- "$@" "$f"; done
  known "$folder/*"
  print_blobs
  [ $# = 0 ] ||
    stat -c '%Y %n' -- "$@" | while read -r written f; do
      [ -n "$started_at" ] && [ "$written" -gt "$started_at" ] && echo "newer=$f"
    done
}
for f in "$UNREAD"/*; do [ -f "$f" ] && grep -qs nvidia "$f" && echo "unread=$f"; done
[ -x "$program" ] || exit 0
low_level | while IFS= read -r low_level_program; do echo "low=$low_level_program"; done
echo "program=$program"
odd "$main" "$folder/$DROP_IN" || exit 0
version=$(timeout -k 2 20 "$program" --version)
version=${version#* version }
version=${version%%[!0-9.]*}
echo "version=$version"
set --
[ -e "$main" ] && set -- --config "$main"
if output=$(timeout -k 2 20 "$program" "$@" --config-dir "$folder" config 2>/dev/null); then
  printf 'dump=%s \n%s\n' "${#output}" "$output"
else
  output=$(timeout -k 2 20 "$program" "$@" --config-dir "$folder" config 2>&1 >/dev/null)
  output=${output##*
}
  printf 'error=%s \n%s\n' "${#output}" "$output"
fi
[ "${active_state-}" != active ] || [ -n "$hangs" ] || cri_says "$SOCKET"
