# shellcheck shell=sh
# Downloads the packages given as arguments. Ends before anything changes if a package that is not
# part of the driver would be removed, or is held and would get another version, or if a further
# kernel would be installed. Reads R, FORMAT, MEMBERS and ALSO (further packages); calls spares, and
# back, which rolls back and ends.
apt_ready || back
simulate() { apt_whole "$R/said" install -s --allow-downgrades --allow-change-held-packages "$@"; }
# Packages of the driver that were unpacked without what they depend on, and never configured:
# nothing has used them
torn() {
  dpkg-query -W -f '${Config-Version}|'"$FORMAT" | sed -n 's/^|//p' | grep -E "$MEMBERS" |
    sed -nE 's/^([^|]*)\|.*\|.U.?$/\1/p'
}
# What later steps install comes along only if the driver may come with it.
# shellcheck disable=SC2046 # a word of an installation each
[ -s "$R/along" ] && simulate $ALSO "$@" $(cut -d ' ' -f 2 "$R/along") &&
  spares "$R/said" >/dev/null || {
  rm -f "$R/along"
  # apt begins nothing while they are there, and neither completes nor removes them along with the
  # rest.
  simulate "$@" || {
    torn=$(torn)
    [ -n "$torn" ] && dpkg --remove $torn && simulate "$@"
  } || {
    tail -n 25 "$R/said"
    back
  }
  spares "$R/said" || back
}
# shellcheck disable=SC2034 # apt_fetch reads it
MAY_GO=1
along apt_fetch $ALSO "$@" || back
effect fetched
