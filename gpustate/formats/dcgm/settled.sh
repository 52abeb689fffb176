# shellcheck shell=sh
# Waits up to 20 s for an exporter that has just been started. @UNIT@ is its service, @ASK@ what
# asks it for its metrics: sh that cannot be a variable.
[ -d /run/systemd/system ] || exit 0
read -r now _ </proc/uptime
at=$now
# What has run for long enough is seen without a program: its first process' state, and
# when it began, in hundredths of a second.
for cgroups in /sys/fs/cgroup /sys/fs/cgroup/systemd; do
  pid=
  stat=
  {
    read -r pid <"$cgroups/system.slice/@UNIT@/cgroup.procs" && read -r stat <"/proc/$pid/stat"
  } 2>/dev/null ||
    continue
  set -- ${stat##*) }
  [ $((${now%.*} - ${20:-0} / 100)) -lt 20 ] || exit 0
done
while [ $((${at%.*} - ${now%.*})) -lt 20 ]; do
  state=
  since=0
  tries=0
  engine=
  up=0
  block=
  while IFS='=' read -r key value; do
    case $block$key in
      '') block=2 ;;
      SubState) state=$value ;;
      StateChangeTimestampMonotonic) since=$((value / 1000000)) ;;
      NRestarts) tries=$value ;;
      2SubState) engine=$value ;;
      2StateChangeTimestampMonotonic) up=$((value / 1000000)) ;;
    esac
  done <<END
$(timeout -k 2 10 systemctl show -p SubState -p StateChangeTimestampMonotonic -p NRestarts @UNIT@ \
    nvidia-dcgm.service 2>/dev/null)
END
  case $state in
    running)
      [ $((${now%.*} - since)) -lt 20 ] || break
      { @ASK@; } | grep -q '^DCGM_' && break
      ;;
    # One that ended again and again, or whose host engine has been there for long, will not stay
    # this time either.
    auto-restart | start*)
      [ "${tries:-0}" -lt 5 ] || break
      case $engine in start*) ;; running) [ $((${at%.*} - up)) -lt 20 ] || break ;; *) break ;; esac
      ;;
    *) break ;;
  esac
  sleep 1
  read -r at _ </proc/uptime
done
:
