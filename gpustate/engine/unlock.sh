# shellcheck shell=sh
# Releases the lock of PERSON for REASON, as they stand in its info, or that of anybody with
# FORCE=1. Exits with 8 if another person holds it, or a run.
[ -d "$G/lock" ] || {
  echo "not locked"
  exit 0
}
[ -n "$FORCE" ] || {
  grep -qF "$PERSON" "$G/lock/info" && grep -qF "$REASON" "$G/lock/info"
} || {
  printf 'held '
  cat "$G/lock/info"
  exit 8
}
rm -rf "$G/lock"
echo unlocked
