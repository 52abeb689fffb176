# shellcheck shell=sh
# Prints running where the subnet manager runs and is the one that is installed. Fabric Manager's
# start script writes its pid; other ways of starting it write it elsewhere, or not.
[ -e /opt/nvidia/nvlsm/sbin/nvlsm ] || exit 0
runs() {
  kill -0 "$1" 2>/dev/null || return 1
  case $(readlink "/proc/$1/exe") in *' (deleted)') return 1 ;; esac
  echo running
  exit 0
}
for pid_file in /run/nvidia-fabricmanager/nvlsm.pid /run/nvlsm.pid; do
  pid=
  { read -r pid <"$pid_file"; } 2>/dev/null && runs "$pid"
done
for f in /proc/[0-9]*/comm; do
  command=
  { read -r command <"$f"; } 2>/dev/null
  [ "$command" != nvlsm ] || [ "$(stat -c %u "$f")" != 0 ] || {
    f=${f#/proc/}
    runs "${f%/comm}"
  }
done
:
