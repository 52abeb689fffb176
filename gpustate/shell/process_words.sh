# shellcheck shell=sh
# Defines process_words: it prints words= for the command line of a unit's process, and replaced=1
# where its program is another by now, and sets m, the process. Calls show_unit, which sets SHOWN to
# what systemctl shows of the unit.
process_words() {
  show_unit
  m=0
  while IFS= read -r unit_line; do
    case $unit_line in MainPID=*) m=${unit_line#*=} ;; esac
  done <<END
$SHOWN
END
  case $m in
    '' | 0) ;;
    *)
      [ -r "/proc/$m/cmdline" ] && printf 'words=%s\n' "$(tr '\0' ' ' <"/proc/$m/cmdline")"
      case $(readlink "/proc/$m/exe") in *' (deleted)') echo replaced=1 ;; esac
      ;;
  esac
}
