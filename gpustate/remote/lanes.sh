# shellcheck shell=sh
# Prints what @LANE_A@, @LANE_B@ and @REST@ print, sh of fragments: the first two side by side where
# there is a systemd. @NONCE@ names the files, which have no name any more when something is written
# into them.
lane_a() {
  @LANE_A@
}
lane_b() {
  @LANE_B@
}
lanes=
lane_file=/run/@NONCE@
umask 077
if [ -d /run/systemd/system ] && [ -z "${GPUSTATE_IMAGE-}" ] && true >"$lane_file.a" &&
  true >"$lane_file.b"; then
  exec 4>"$lane_file.a" 5<"$lane_file.a" 6>"$lane_file.b" 7<"$lane_file.b"
  rm -f "$lane_file.a" "$lane_file.b"
  umask 022
  lanes=1
  lane_a >&4 &
  lane_b >&6 &
else
  umask 022
  lane_a
  lane_b
fi
@REST@
[ -z "$lanes" ] || {
  wait
  cat <&5
  cat <&7
}
