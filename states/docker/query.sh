# shellcheck shell=sh
# Prints whether docker is a snap, and how docker is started, its file and what it runs with, as
# rows. Reads SNAP, SNAP_PROGRAM, CONFIG (the file that it reads untold), OWED, SERVED and OURS
# (notes about it), and CONTAINERD (that containerd is configured). It comes after unit_command and
# the functions blob, known, print_blobs and odd.
# shellcheck disable=SC2154 # exec_start and its like come from unit_command
if [ -d "$SNAP" ] || [ -e "$SNAP_PROGRAM" ]; then echo snap=1; fi
set -f
set -- $exec_start
set +f
if [ -n "$main_pid" ] && [ -r "/proc/$main_pid/cmdline" ]; then
  tr '\0' '\n' <"/proc/$main_pid/cmdline" | while IFS= read -r argument; do
    printf 'arg=%s\n' "$argument"
  done
  argument=$(tr '\0' ' ' <"/proc/$main_pid/cmdline")
  set -f
  set -- $argument
  set +f
else
  for argument in "$@"; do
    case $argument in \$*) ;; *) printf 'arg=%s\n' "$argument" ;; esac
  done
fi
program=
config=
[ $# = 0 ] || {
  program=$1
  shift
}
while [ $# != 0 ]; do
  case $1 in --config-file) config=${2-} ;; --config-file=*) config=${1#*=} ;; esac
  shift
done
case $program in */dockerd) ;; *) program=$(command -v dockerd) ;; esac
[ -n "$config" ] || config=$CONFIG
echo "config=$config"
[ -e "$OWED" ] && echo owed=1
[ -e "$G/$SERVED" ] && echo served=1
[ -e "$G/$CONTAINERD" ] && echo containerd=1
if [ -f "$config" ]; then blob file "$config" "$config"; fi
known "$config"
print_blobs
if [ -r "$G/$OURS" ]; then
  while IFS= read -r key; do echo "ours=$key"; done <"$G/$OURS"
fi
[ -x "$program" ] || exit 0
echo "program=$program"
odd "$config" || exit 0
version=$(timeout -k 2 20 "$program" --version)
version=${version#* version }
version=${version%%,*}
echo "version=$version"
[ -n "$main_pid" ] && [ -z "$hangs" ] && client=$(command -v docker) || exit 0
unset DOCKER_HOST DOCKER_CONTEXT
more=
case $version in
  [0-9].* | 1[0-9].* | 2[0-4].*) ;;
  *) more='{{"\n"}}cdi={{json .CDISpecDirs}}' ;;
esac
format='info={{.DefaultRuntime}} {{.LiveRestoreEnabled}} {{.CgroupDriver}} {{.ContainersRunning}}'
format=$format'{{range $k, $v := .Runtimes}}{{"\n"}}runtime={{$k}} {{$v.Path}}{{end}}'
timeout -k 2 10 "$client" info --format "$format$more" || [ $? != 124 ] || echo mute=1
