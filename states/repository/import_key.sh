# shellcheck shell=sh
# Imports the keys IDS from the file KEY into rpm's database, and records in RECORD which were new.
rpm_wait || exit 1
for k in $IDS; do rpm -q "gpg-pubkey-$k" >/dev/null 2>&1 || new="${new-} $k"; done
[ -n "${new-}" ] || {
  effect same
  exit 0
}
for k in $new; do echo "$k"; done >>"$RECORD"
sync "$RECORD"
rpm --import "$KEY"
effect imported
