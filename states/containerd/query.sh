# shellcheck shell=sh
# Prints how containerd is started, its files and what it makes of them, as rows. Reads ROOT (the file that it reads
# untold), DROP_IN (gpustate's file below its folder), MORE (that file, where a policy names another), SOCKET (where it
# answers; empty: as its files say), DEFAULT_SOCKET, OWED and SERVED (notes about it). It comes after unit_command, dump.sh and
# the functions blob, known, print_blobs, odd, kept and cri_says.
# shellcheck disable=SC2154 # x, t and hl come from unit_command
r=; p=
set -f; set -- $x; set +f
[ $# = 0 ] || { p=$1; shift; }
while [ $# != 0 ]; do
  case $1 in -c|--config) r=${2-} ;; -c=*|--config=*) r=${1#*=} ;; esac
  shift
done
# Of another program -c may mean anything.
case $p in */containerd) ;; *) p=$(command -v containerd); case $r in /*) ;; *) r= ;; esac ;; esac
[ -n "$r" ] || r=$ROOT
d=${r%/*}; place=$d/conf.d
[ -z "$MORE" ] || place=${MORE%/*}
echo "root=$r"
[ -e "$OWED" ] && echo owed=1
[ -e "$G/$SERVED" ] && echo served=1
[ -z "$t" ] || t=$(date -d "$t" +%s)
seen=; set --; i=
for f in "$r" "$d"/conf.d/*.toml "$d"/config.d/*.toml "$place"/*.toml "$MORE"; do
  [ -f "$f" ] || continue
  case "$seen" in *"|$f|"*) continue ;; esac
  seen="$seen|$f|"
  blob file "$f" "$f"; set -- "$@" "$f"
done
h=; w=$IFS; IFS='
'; set -f; for l in $(stat -c '%Y %s %y %z %i %n' -- "$@" "$p" 2>/dev/null); do
  h="$h$l;" f=${l#* * * * * * * * * }
  [ "$f" = "$p" ] || { [ -n "$t" ] && [ "${l%% *}" -gt "$t" ] && echo "newer=$f"; }
done; IFS=$w; set +f
known "$d/*.toml" "$place/*.toml"
print_blobs
[ -x "$p" ] || exit 0
echo "program=$p"
odd "$r" "${MORE:-$d/$DROP_IN}" || exit 0
# shellcheck disable=SC2034 # dump reads them
ROOT=$r CONTAINERD=$p VERSION=
version() { v=$(timeout -k 2 20 "$p" --version); v=${v#* }; v=${v#* }; v=${v%% *}; VERSION=${v#v}; echo "version=$VERSION"; }
dumped() { version; o=$(dump) && printf 'dump=%s \n%s\n' "${#o}" "$o"; }
# What it merges depends on the program and these files alone, unless a file imports others.
if [ $# != 0 ] && l=$(grep -hs '^[[:space:]]*imports' -- "$@"); then
  while IFS= read -r l; do case $l in *"[]"*|*"[\"$d/conf.d/*.toml\"]"*|*"['$d/conf.d/*.toml']"*) ;; *) i=1 ;; esac; done <<END
$l
END
fi
k=; [ -n "$i" ] || k=$h
kept containerd "$k" dumped || {
  version >/dev/null; o=$(dump 2>&1 >/dev/null); o=${o##*
}; printf 'error=%s \n%s\n' "${#o}" "$o"; }
[ "${ua-}" = active ] && [ -z "$hl" ] || exit 0
s=$SOCKET
[ -n "$s" ] || [ $# = 0 ] || s=$(sed -n '/^[[:space:]]*\[grpc\]/,/^[[:space:]]*\[[^g]/s/^[[:space:]]*address[[:space:]]*=[[:space:]]*["'\'']\([^"'\'']*\).*/\1/p' "$@" | tail -n 1)
cri_says "${s:-$DEFAULT_SOCKET}"
