# shellcheck shell=sh
# Prints how containerd is started, its files and what it makes of them, as rows. Reads ROOT (the
# file that it reads untold), DROP_IN (gpustate's file below its folder), MORE (that file, where a
# policy names another), SOCKET (where it answers; empty: as its files say), DEFAULT_SOCKET, OWED
# and SERVED (notes about it). It comes after unit_command, dump.sh and the functions blob, known,
# print_blobs, odd, kept and cri_says.
# shellcheck disable=SC2154 # exec_start and its like come from unit_command
root=
program=
set -f
set -- $exec_start
set +f
[ $# = 0 ] || {
  program=$1
  shift
}
while [ $# != 0 ]; do
  case $1 in -c | --config) root=${2-} ;; -c=* | --config=*) root=${1#*=} ;; esac
  shift
done
# Of another program -c may mean anything.
case $program in
  */containerd) ;;
  *)
    program=$(command -v containerd)
    case $root in /*) ;; *) root= ;; esac
    ;;
esac
[ -n "$root" ] || root=$ROOT
folder=${root%/*}
place=$folder/conf.d
[ -z "$MORE" ] || place=${MORE%/*}
echo "root=$root"
[ -e "$OWED" ] && echo owed=1
[ -e "$G/$SERVED" ] && echo served=1
[ -z "$started_at" ] || started_at=$(date -d "$started_at" +%s)
seen=
set --
imports=
for f in "$root" "$folder"/conf.d/*.toml "$folder"/config.d/*.toml "$place"/*.toml "$MORE"; do
  [ -f "$f" ] || continue
  case "$seen" in *"|$f|"*) continue ;; esac
  seen="$seen|$f|"
  blob file "$f" "$f"
  set -- "$@" "$f"
done
stamps=
saved_ifs=$IFS
IFS='
'
set -f
for line in $(stat -c '%Y %s %y %z %i %n' -- "$@" "$program" 2>/dev/null); do
  stamps="$stamps$line;" f=${line#* * * * * * * * * }
  [ "$f" = "$program" ] || {
    [ -n "$started_at" ] && [ "${line%% *}" -gt "$started_at" ] && echo "newer=$f"
  }
done
IFS=$saved_ifs
set +f
known "$folder/*.toml" "$place/*.toml"
print_blobs
[ -x "$program" ] || exit 0
echo "program=$program"
odd "$root" "${MORE:-$folder/$DROP_IN}" || exit 0
# shellcheck disable=SC2034 # dump reads them
ROOT=$root CONTAINERD=$program VERSION=
version() {
  version=$(timeout -k 2 20 "$program" --version)
  version=${version#* }
  version=${version#* }
  version=${version%% *}
  VERSION=${version#v}
  echo "version=$VERSION"
}
dumped() {
  version
  output=$(dump) && printf 'dump=%s \n%s\n' "${#output}" "$output"
}
# What it merges depends on the program and these files alone, unless a file imports others.
if [ $# != 0 ] && line=$(grep -hs '^[[:space:]]*imports' -- "$@"); then
  while IFS= read -r line; do
    case $line in
      *"[]"* | *"[\"$folder/conf.d/*.toml\"]"* | *"['$folder/conf.d/*.toml']"*) ;;
      *) imports=1 ;;
    esac
  done <<END
$line
END
fi
stamps_key=
[ -n "$imports" ] || stamps_key=$stamps
kept containerd "$stamps_key" dumped || {
  version >/dev/null
  output=$(dump 2>&1 >/dev/null)
  output=${output##*
}
  printf 'error=%s \n%s\n' "${#output}" "$output"
}
[ "${active_state-}" = active ] && [ -z "$hangs" ] || exit 0
socket=$SOCKET
[ -n "$socket" ] || [ $# = 0 ] ||
  socket=$(sed -n '/^[[:space:]]*\[grpc\]/,/^[[:space:]]*\[[^g]/{
    s/^[[:space:]]*address[[:space:]]*=[[:space:]]*["'\'']\([^"'\'']*\).*/\1/p
  }' "$@" | tail -n 1)
cri_says "${socket:-$DEFAULT_SOCKET}"
