# shellcheck shell=sh
# Prints what @LANE_A@, @LANE_B@ and @REST@ print, sh of fragments: the first two side by side where there is a systemd.
# @NONCE@ names the files, which have no name any more when something is written into them.
lane_a() {
@LANE_A@
}
lane_b() {
@LANE_B@
}
lanes=; t=/run/@NONCE@; umask 077
if [ -d /run/systemd/system ] && [ -z "${GPUSTATE_IMAGE-}" ] && true >"$t.a" && true >"$t.b"; then
  exec 4>"$t.a" 5<"$t.a" 6>"$t.b" 7<"$t.b"; rm -f "$t.a" "$t.b"; umask 022
  lanes=1; lane_a >&4 & lane_b >&6 &
else umask 022; lane_a; lane_b; fi
@REST@
[ -z "$lanes" ] || { wait; cat <&5; cat <&7; }
