# shellcheck shell=sh
# Removes the keys recorded in RECORD from rpm's database, except those that another repository
# needs.
[ -e "$RECORD" ] || {
  effect removed
  exit 0
}
rpm_wait || exit 1
while read -r k; do
  [ "$(cat /var/lib/gpustate/*.imported | grep -cx "$k")" -gt 1 ] ||
    ! rpm -q "gpg-pubkey-$k" >/dev/null 2>&1 || rpm -e --allmatches "gpg-pubkey-$k"
done <"$RECORD"
rm -f "$RECORD"
effect removed
