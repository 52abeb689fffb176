# shellcheck shell=sh
# Prints unit=1, active= and enabled= of a service, and sets exec_start, started_at, main_pid and
# hangs: see daemon_seen.py. @UNIT@ is its name, @SHOWN@ what systemctl shows of it, read once for
# all fragments, @PATIENCE@ seconds.
# shellcheck disable=SC2034 # those four: read by the caller
exec_start=
started_at=
main_pid=
hangs=
active_state=
restarting=
started_s=
enabled_state=
if [ -d /run/systemd/system ]; then
  while IFS= read -r line; do
    case $line in
      LoadState=loaded) echo unit=1 ;;
      LoadState=not-found) echo no_unit=1 ;;
      UnitFileState=*) enabled_state=${line#*=} ;;
      ActiveState=*) active_state=${line#*=} ;;
      SubState=auto-restart | NRestarts=[1-9]*) restarting=1 ;;
      InactiveExitTimestampMonotonic=???????*)
        started_s=${line#*=}
        started_s=${started_s%??????}
        ;;
      MainPID=[1-9]*) main_pid=${line#*=} ;;
      ExecMainStartTimestamp=?*) started_at=${line#*=} ;;
      ExecStart=*)
        line=${line#*argv\[\]=}
        exec_start=${line%% ; *}
        ;;
    esac
  done <<END
@SHOWN@
END
  # What systemd remembers of a unit that was enabled without a reload is what it was before.
  line=
  for f in /etc/systemd/system/*.wants/@UNIT@ /etc/systemd/system/*.requires/@UNIT@; do
    [ ! -L "$f" ] || line=1
  done
  case $line$enabled_state in
    1disabled) enabled_state=enabled ;;
    enabled) enabled_state=disabled ;;
  esac
  [ -z "$enabled_state" ] || echo "enabled=$enabled_state"
  if [ "$active_state" = activating ]; then
    read -r line _ </proc/uptime
    line=$((${line%.*} - ${started_s:-${line%.*}}))
    # shellcheck disable=SC2170 # @PATIENCE@ is a number
    if [ -n "$restarting" ]; then
      active_state=failed hangs=1
    elif [ "$line" -ge @PATIENCE@ ]; then
      hangs=1
      echo "starting=$line"
    fi
  fi
  echo "active=$active_state"
elif [ -n "${GPUSTATE_IMAGE-}" ]; then
  for f in /lib/systemd/system/@UNIT@ /usr/lib/systemd/system/@UNIT@ /etc/systemd/system/@UNIT@ \
    /lib/systemd/system/@UNIT@.d/*.conf /usr/lib/systemd/system/@UNIT@.d/*.conf \
    /etc/systemd/system/@UNIT@.d/*.conf; do
    [ -f "$f" ] || continue
    while IFS= read -r line; do
      case $line in ExecStart=?*) exec_start=${line#*=} ;; esac
    done <"$f"
  done
  while :; do
    case $exec_start in [-@:+!]*) exec_start=${exec_start#?} ;; *) break ;; esac
  done
fi
