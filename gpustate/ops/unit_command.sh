# shellcheck shell=sh
# Prints unit=1, active= and enabled= of a service, and sets x, t, m and hl: see daemon_seen.py. @UNIT@ is its name,
# @SHOWN@ what systemctl shows of it, read once for all fragments, @PATIENCE@ seconds.
# shellcheck disable=SC2034 # x, t, m and hl: read by the caller
x=; t=; m=; hl=; ua=; ur=; us=; ue=
if [ -d /run/systemd/system ]; then
  while IFS= read -r l; do
    case $l in
      LoadState=loaded) echo unit=1 ;;
      LoadState=not-found) echo no_unit=1 ;;
      UnitFileState=*) ue=${l#*=} ;;
      ActiveState=*) ua=${l#*=} ;;
      SubState=auto-restart|NRestarts=[1-9]*) ur=1 ;;
      InactiveExitTimestampMonotonic=???????*) us=${l#*=}; us=${us%??????} ;;
      MainPID=[1-9]*) m=${l#*=} ;;
      ExecMainStartTimestamp=?*) t=${l#*=} ;;
      ExecStart=*) l=${l#*argv\[\]=}; x=${l%% ; *} ;;
    esac
  done <<END
@SHOWN@
END
  # What systemd remembers of a unit that was enabled without a reload is what it was before.
  l=; for f in /etc/systemd/system/*.wants/@UNIT@ /etc/systemd/system/*.requires/@UNIT@; do [ ! -L "$f" ] || l=1; done
  case $l$ue in 1disabled) ue=enabled ;; enabled) ue=disabled ;; esac
  [ -z "$ue" ] || echo "enabled=$ue"
  if [ "$ua" = activating ]; then
    read -r l _ </proc/uptime; l=$((${l%.*} - ${us:-${l%.*}}))
    # shellcheck disable=SC2170 # @PATIENCE@ is a number
    if [ -n "$ur" ]; then ua=failed hl=1; elif [ "$l" -ge @PATIENCE@ ]; then hl=1; echo "starting=$l"; fi
  fi
  echo "active=$ua"
elif [ -n "${GPUSTATE_IMAGE-}" ]; then
  for f in /lib/systemd/system/@UNIT@ /usr/lib/systemd/system/@UNIT@ /etc/systemd/system/@UNIT@ \
    /lib/systemd/system/@UNIT@.d/*.conf /usr/lib/systemd/system/@UNIT@.d/*.conf /etc/systemd/system/@UNIT@.d/*.conf; do
    [ -f "$f" ] || continue
    while IFS= read -r l; do case $l in ExecStart=?*) x=${l#*=} ;; esac; done <"$f"
  done
  while :; do case $x in [-@:+!]*) x=${x#?} ;; *) break ;; esac; done
fi
