# shellcheck shell=sh
# Prints which of k3s and RKE2 is here, what it has generated and the programs it would find, as
# rows. Reads SEARCHED (folders, best first), PROGRAM and SOCKET. @EACH@ is a call of print_unit for
# each of their units. It comes after cri_says.
run=
[ -d /run/systemd/system ] || [ -n "${GPUSTATE_IMAGE-}" ] || exit 0
print_unit() { # unit, what systemd shows of it
  unit=$1 active_state=
  started_at=
  load_state=
  enabled_state=
  if [ -d /run/systemd/system ]; then
    while IFS= read -r row; do
      case $row in
        LoadState=*) load_state=${row#*=} ;;
        ActiveState=*) active_state=${row#*=} ;;
        UnitFileState=*) enabled_state=${row#*=} ;;
        ExecMainStartTimestamp=?*) started_at=$(date -d "${row#*=}" +%s) ;;
      esac
    done <<END
$2
END
  else
    for f in /etc/systemd/system/$unit.service /usr/lib/systemd/system/$unit.service \
      /usr/local/lib/systemd/system/$unit.service; do
      [ -e "$f" ] && load_state=loaded
    done
  fi
  [ "$load_state" = loaded ] || return 0
  echo "unit=$unit $active_state $started_at"
  # What systemd remembers of a unit that was enabled without a reload is what it was before.
  row=
  for f in /etc/systemd/system/*.wants/$unit.service; do [ ! -L "$f" ] || row=1; done
  case $row$enabled_state in
    1disabled) enabled_state=enabled ;;
    enabled) enabled_state=disabled ;;
  esac
  [ -z "$enabled_state" ] || echo "enabled=$unit $enabled_state"
  [ "$active_state" != active ] || run=1
  distribution=${unit%%-*}
  containerd_folder=
  [ -f "/etc/rancher/$distribution/config.yaml" ] &&
    containerd_folder=$(sed -n 's/^data-dir: *//p' "/etc/rancher/$distribution/config.yaml" |
      tr -d "\"'" | tail -n 1)
  containerd_folder=${containerd_folder:-/var/lib/rancher/$distribution}/agent/etc/containerd
  echo "folder=$unit $containerd_folder"
  [ -f "$containerd_folder/config.toml" ] && {
    printf 'config=%s %s\n' "$(wc -c <"$containerd_folder/config.toml")" "$unit"
    cat "$containerd_folder/config.toml"
    echo
  }
  for f in "$containerd_folder"/config.toml.tmpl "$containerd_folder"/config-v3.toml.tmpl; do
    [ -f "$f" ] || continue
    verdict=lost
    grep -Eqs 'template "base"|ExtraRuntimes|runtimes\.nvidia' "$f" && verdict=kept
    echo "template=$unit $verdict $f"
  done
}
@EACH@
for d in $SEARCHED; do
  [ -f "$d/$PROGRAM" ] && echo "program=$d/$PROGRAM $(stat -c %Z "$d/$PROGRAM")"
done
[ -z "$run" ] || cri_says "$SOCKET"
:
