# shellcheck shell=sh
# Deletes package lists that apt cannot read, and its caches of them, and updates all.
# Reads LISTS, a pattern of their paths; calls torn. apt complains of one at a time.
apt_wait
for _ in 1 2 3 4 5 6 7 8 9; do
  bad=$(torn | grep -oE "$LISTS" | sort -u)
  [ -n "$bad" ] || break
  rm -f $bad /var/cache/apt/pkgcache.bin /var/cache/apt/srcpkgcache.bin
done
apt update -o APT::Update::Error-Mode=any || echo 'not every repository could be read'
apt_lists_kept
effect read
