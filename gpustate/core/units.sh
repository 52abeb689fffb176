# shellcheck shell=sh
# Sets a variable for each of several units to what systemctl shows of it, and UNIT_FILES. @ROWS@
# are pairs of variable and unit, @FILES@ and @SHOW@ calls of systemctl, @VARIABLES@ names, @FILE@ a
# unit of every systemd, and @END@ a control character. Names of variables and calls cannot be
# variables.
if [ -d /run/systemd/system ]; then
  newline='
'
  UNIT_FILES=$(@FILES@ 2>/dev/null)
  listed="$newline$UNIT_FILES$newline"
  shown_units=
  variables=
  case "$listed" in
    *"${newline}@FILE@ "*)
      # shellcheck disable=SC2043 # @ROWS@ are several words
      for row in @ROWS@; do
        unit=${row#* }
        is_listed=
        case $unit in
          *@*) is_listed=1 ;;
          *)
            case "$listed" in
              *"$newline$unit "*) is_listed=1 ;;
              *)
                if [ -d "/sys/fs/cgroup/system.slice/$unit" ] ||
                  [ -d "/sys/fs/cgroup/systemd/system.slice/$unit" ]; then
                  is_listed=1
                fi
                ;;
            esac
            ;;
        esac
        if [ -n "$is_listed" ]; then
          shown_units="$shown_units $unit" variables="$variables ${row% *}"
        else
          eval \
            "${row% *}='Id=$unit${newline}LoadState=not-found${newline}ActiveState=inactive'"
        fi
      done
      set -f
      is_listed=$IFS
      blocks=$(@SHOW@ $shown_units 2>/dev/null | sed 's/^$/@END@/')
      IFS='@END@'
      set -- $blocks
      IFS=$is_listed
      set +f
      for variables in $variables; do
        case ${1-} in
          *=*)
            block=${1#"$newline"}
            block=${block%"$newline"}
            eval "$variables=\$block"
            shift
            ;;
          *)
            unset @VARIABLES@
            break
            ;;
        esac
      done
      set --
      ;;
    *) unset UNIT_FILES ;;
  esac
fi
