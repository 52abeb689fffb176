# shellcheck shell=sh
# Downloads the packages given as arguments. Ends before anything changes if a package that is not part of the driver would be
# removed. Reads R; FORMAT and MEMBERS (how dpkg-query prints a package, pattern of the driver's), ALSO (further packages);
# calls back, which rolls back and ends.
foreign() { while read -r w n _; do [ "$w" = Remv ] || [ "$w" = Purg ] || continue
  dpkg-query -W -f "$FORMAT" "$n" | grep -qE "$MEMBERS" || echo "$n"; done; }
apt_ready || back
apt_whole "$R/said" install -s --allow-downgrades --allow-change-held-packages "$@" || { tail -n 25 "$R/said"; back; }
gone=$(foreign <"$R/said")
[ -z "$gone" ] || { echo "error: this would also remove" $gone "which is not part of the driver; remove it yourself first or choose another package set"; back; }
# shellcheck disable=SC2034 # apt_fetch reads it
MAY_GO=1
apt_fetch $ALSO "$@" || back
effect fetched
