# shellcheck shell=sh
# Prints how CRI-O is started, its files and what it makes of them, as rows. Reads MAIN and FOLDER (its own places),
# UNREAD (a folder that it does not read), DROP_IN (name of gpustate's file), SOCKET, OWED and SERVED (notes about it).
# It comes after unit_command, low_level.sh and the functions blob, known, print_blobs, odd and cri_says.
# shellcheck disable=SC2154 # x, t, m and hl come from unit_command
set -f; set -- $x; set +f
if [ -n "$m" ] && [ -r "/proc/$m/cmdline" ]; then
  a=$(tr '\0' ' ' <"/proc/$m/cmdline"); set -f; set -- $a; set +f
fi
p=; c=; d=
[ $# = 0 ] || { p=$1; shift; }
while [ $# != 0 ]; do
  case $1 in
    -c|--config) c=${2-} ;; -c=*|--config=*) c=${1#*=} ;;
    -d|--config-dir) d=${2-} ;; -d=*|--config-dir=*) d=${1#*=} ;;
  esac
  shift
done
# Of another program -c and -d may mean anything.
case $p in */crio) ;; *) p=$(command -v crio); case $c in /*) ;; *) c= ;; esac; case $d in /*) ;; *) d= ;; esac ;; esac
[ -n "$c" ] || c="$MAIN"
[ -n "$d" ] || d="$FOLDER"
printf 'main=%s\nfolder=%s\n' "$c" "$d"
[ -e "$OWED" ] && echo owed=1
[ -e "$G/$SERVED" ] && echo served=1 && t=
[ -z "$t" ] || t=$(date -d "$t" +%s)
{ [ -f "$c" ] && printf '%s\n' "$c"; [ -d "$d" ] && find "$d" ! -name '.gpustate.*' \( -type f -o -type l \) 2>/dev/null; } | {
  set --; while IFS= read -r f; do [ -f "$f" ] && blob file "$f" "$f" && set -- "$@" "$f"; done
  known "$d/*"
  print_blobs
  [ $# = 0 ] || stat -c '%Y %n' -- "$@" | while read -r w f; do [ -n "$t" ] && [ "$w" -gt "$t" ] && echo "newer=$f"; done
}
for f in "$UNREAD"/*; do [ -f "$f" ] && grep -qs nvidia "$f" && echo "unread=$f"; done
[ -x "$p" ] || exit 0
low_level | while IFS= read -r b; do echo "low=$b"; done
echo "program=$p"
odd "$c" "$d/$DROP_IN" || exit 0
v=$(timeout -k 2 20 "$p" --version); v=${v#* version }; v=${v%%[!0-9.]*}
echo "version=$v"
set --; [ -e "$c" ] && set -- --config "$c"
if o=$(timeout -k 2 20 "$p" "$@" --config-dir "$d" config 2>/dev/null); then printf 'dump=%s \n%s\n' "${#o}" "$o"
else o=$(timeout -k 2 20 "$p" "$@" --config-dir "$d" config 2>&1 >/dev/null); o=${o##*
}; printf 'error=%s \n%s\n' "${#o}" "$o"; fi
[ "${ua-}" != active ] || [ -n "$hl" ] || cri_says "$SOCKET"
