# shellcheck shell=sh
# Downloads the packages given as arguments. Ends before anything changes if a package that is not part of the driver would be
# removed, or is held and would get another version, or if a further kernel would be installed. Reads R; FORMAT and MEMBERS (how dpkg-query prints a package, pattern of the driver's), ALSO (further packages);
# calls back, which rolls back and ends.
foreign() { # Remv, or Inst for what is held and there: packages that are not part of the driver, of apt's simulation
  while read -r w n v _; do
    case $1$w$v in RemvRemv*|RemvPurg*) ;; InstInst"["*) printf '%s\n' "$held" | grep -qxF -e "$n" || continue ;; *) continue ;; esac
    dpkg-query -W -f "$FORMAT" "$n" | grep -qE "$MEMBERS" || echo "$n"
  done; }
apt_ready || back
simulate() { apt_whole "$R/said" install -s --allow-downgrades --allow-change-held-packages "$@"; }
torn() { # packages of the driver that were unpacked without what they depend on, and never configured: nothing has used them
  dpkg-query -W -f '${Config-Version}|'"$FORMAT" | sed -n 's/^|//p' | grep -E "$MEMBERS" | sed -nE 's/^([^|]*)\|.*\|.U.?$/\1/p'; }
# apt begins nothing while they are there, and neither completes nor removes them along with the rest.
simulate "$@" || { torn=$(torn); [ -n "$torn" ] && dpkg --remove $torn && simulate "$@"; } || { tail -n 25 "$R/said"; back; }
gone=$(foreign Remv <"$R/said")
[ -z "$gone" ] || { echo "error: this would also remove" $gone "which is not part of the driver; remove it yourself first or choose another package set"; back; }
held=$(apt-mark showhold); moved=$(foreign Inst <"$R/said")
[ -z "$moved" ] || { echo "error: this would change" $moved "which is held (apt-mark showhold) and not part of the driver; release the hold yourself first or choose another version"; back; }
kernels=$(sed -n 's/^Inst linux-image-\(unsigned-\)*\([^ ]*\) (.*/\2/p' "$R/said" | while read -r k; do
  [ -e "/boot/vmlinuz-$k" ] || [ -e "/lib/modules/$k" ] || echo "$k"; done)
[ -z "$kernels" ] || { echo "error: this would also install kernel" $kernels "which is not part of the driver; install it with the state kernel first, or set precompiled: false"; back; }
# shellcheck disable=SC2034 # apt_fetch reads it
MAY_GO=1
apt_fetch $ALSO "$@" || back
effect fetched
