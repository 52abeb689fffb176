# shellcheck shell=sh
# Prints whether docker is a snap, and how docker is started, its file and what it runs with, as rows. Reads SNAP, SNAP_PROGRAM, CONFIG (the file that it reads untold),
# OWED, SERVED and OURS (notes about it). It comes after unit_command and the functions blob, known, print_blobs and odd.
# shellcheck disable=SC2154 # x, m and hl come from unit_command
[ ! -d "$SNAP" ] && [ ! -e "$SNAP_PROGRAM" ] || echo snap=1
set -f; set -- $x; set +f
if [ -n "$m" ] && [ -r "/proc/$m/cmdline" ]; then
  tr '\0' '\n' <"/proc/$m/cmdline" | while IFS= read -r a; do printf 'arg=%s\n' "$a"; done
  a=$(tr '\0' ' ' <"/proc/$m/cmdline"); set -f; set -- $a; set +f
else
  for a in "$@"; do case $a in \$*) ;; *) printf 'arg=%s\n' "$a" ;; esac; done
fi
p=; c=
[ $# = 0 ] || { p=$1; shift; }
while [ $# != 0 ]; do
  case $1 in --config-file) c=${2-} ;; --config-file=*) c=${1#*=} ;; esac
  shift
done
case $p in */dockerd) ;; *) p=$(command -v dockerd) ;; esac
[ -n "$c" ] || c=$CONFIG
echo "config=$c"
[ -e "$OWED" ] && echo owed=1
[ -e "$G/$SERVED" ] && echo served=1
if [ -f "$c" ]; then blob file "$c" "$c"; fi
known "$c"
print_blobs
if [ -r "$G/$OURS" ]; then while IFS= read -r k; do echo "ours=$k"; done <"$G/$OURS"; fi
[ -x "$p" ] || exit 0
echo "program=$p"
odd "$c" || exit 0
v=$(timeout -k 2 20 "$p" --version); v=${v#* version }; v=${v%%,*}
echo "version=$v"
[ -n "$m" ] && [ -z "$hl" ] && d=$(command -v docker) || exit 0
unset DOCKER_HOST DOCKER_CONTEXT
more=; case $v in [0-9].*|1[0-9].*|2[0-4].*) ;; *) more='{{"\n"}}cdi={{json .CDISpecDirs}}' ;; esac
timeout -k 2 10 "$d" info --format 'info={{.DefaultRuntime}} {{.LiveRestoreEnabled}} {{.CgroupDriver}} {{.ContainersRunning}}{{range $k, $v := .Runtimes}}{{"\n"}}runtime={{$k}} {{$v.Path}}{{end}}'"$more" || [ $? != 124 ] || echo mute=1
