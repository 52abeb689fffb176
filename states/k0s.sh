# shellcheck shell=sh
# Prints which k0s service is here, its files and what its containerd says, as rows. Reads ROOT,
# DROP_IN and MERGED (the files) and SOCKET. @EACH@ is a call of print_unit for each of its units.
# It comes after the functions blob, print_blobs, odd and cri_says.
run=
print_unit() { # unit, what systemd shows of it
  if [ -d /run/systemd/system ]; then
    load_state=
    active_state=
    while IFS= read -r row; do
      case $row in
        LoadState=*) load_state=${row#*=} ;;
        ActiveState=*) active_state=${row#*=} ;;
      esac
    done <<END
$2
END
    [ "$load_state" != loaded ] || {
      echo "unit=$1 $active_state"
      [ "$active_state" != active ] || run=1
    }
  else
    [ ! -e "/etc/systemd/system/$1.service" ] || echo "unit=$1 "
  fi
}
@EACH@
for f in "$ROOT" "$DROP_IN" "$MERGED"; do [ -f "$f" ] && blob file "$f" "$f"; done
print_blobs
odd "$ROOT" "$DROP_IN" || exit 0
[ -z "$run" ] || cri_says "$SOCKET"
