# shellcheck shell=sh
# Prints what is wrong with the service @UNIT@, which @WHAT@ says in words, with the line of it that tells why; then the
# end of what it said. @TELLING@ is an awk command. Expects unit_says.
unit_says @UNIT@ >"$R/unit.log" || :
y=$(@TELLING@ <"$R/unit.log") || :
for d in $(systemctl show -p DropInPaths --value @UNIT@ 2>/dev/null); do
  case ${d##*/} in gpustate*) ;; *) grep -qs '^Exec' "$d" && y="$y; $d, which is not gpustate's, may be why" ;; esac
done
printf '%s: %s\n' @WHAT@ "$y"
tail -n 15 "$R/unit.log"
