# shellcheck shell=sh
# Prints which of k3s and RKE2 is here, what it has generated and the programs it would find, as rows. Reads SEARCHED
# (folders, best first), PROGRAM and SOCKET. @EACH@ is a call of one for each of their units. It comes after cri_says.
run=
[ -d /run/systemd/system ] || [ -n "${GPUSTATE_IMAGE-}" ] || exit 0
one() { # unit, what systemd shows of it
  u=$1 a=; t=; l=; e=
  if [ -d /run/systemd/system ]; then
    while IFS= read -r r; do
      case $r in LoadState=*) l=${r#*=} ;; ActiveState=*) a=${r#*=} ;; UnitFileState=*) e=${r#*=} ;; ExecMainStartTimestamp=?*) t=$(date -d "${r#*=}" +%s) ;; esac
    done <<END
$2
END
  else
    for f in /etc/systemd/system/$u.service /usr/lib/systemd/system/$u.service /usr/local/lib/systemd/system/$u.service; do [ -e "$f" ] && l=loaded; done
  fi
  [ "$l" = loaded ] || return 0
  echo "unit=$u $a $t"
  # What systemd remembers of a unit that was enabled without a reload is what it was before.
  r=; for f in /etc/systemd/system/*.wants/$u.service; do [ ! -L "$f" ] || r=1; done
  case $r$e in 1disabled) e=enabled ;; enabled) e=disabled ;; esac
  [ -z "$e" ] || echo "enabled=$u $e"
  [ "$a" != active ] || run=1
  n=${u%%-*}; d=
  [ -f "/etc/rancher/$n/config.yaml" ] && d=$(sed -n 's/^data-dir: *//p' "/etc/rancher/$n/config.yaml" | tr -d "\"'" | tail -n 1)
  d=${d:-/var/lib/rancher/$n}/agent/etc/containerd
  echo "folder=$u $d"
  [ -f "$d/config.toml" ] && { printf 'config=%s %s\n' "$(wc -c <"$d/config.toml")" "$u"; cat "$d/config.toml"; echo; }
  for f in "$d"/config.toml.tmpl "$d"/config-v3.toml.tmpl; do
    [ -f "$f" ] || continue
    k=lost; grep -Eqs 'template "base"|ExtraRuntimes|runtimes\.nvidia' "$f" && k=kept
    echo "template=$u $k $f"
  done
}
@EACH@
for d in $SEARCHED; do [ -f "$d/$PROGRAM" ] && echo "program=$d/$PROGRAM $(stat -c %Z "$d/$PROGRAM")"; done
[ -z "$run" ] || cri_says "$SOCKET"
:
