# shellcheck shell=sh
# Prints what is wrong with the service @UNIT@, which @WHAT@ says in words, with the line of it that
# tells why; then the end of what it said. @TELLING@ is an awk command. Expects unit_says.
unit_says @UNIT@ >"$R/unit.log" || :
reason=$(@TELLING@ <"$R/unit.log") || :
for drop_in in $(systemctl show -p DropInPaths --value @UNIT@ 2>/dev/null); do
  case ${drop_in##*/} in
    gpustate*) ;;
    *)
      grep -qs '^Exec' "$drop_in" && reason="$reason; $drop_in, which is not gpustate's, may be why"
      ;;
  esac
done
printf '%s: %s\n' @WHAT@ "$reason"
tail -n 15 "$R/unit.log"
