# shellcheck shell=sh
# Prints podman's version, its hooks that name NVIDIA with the packages that own them, and its configuration, as rows.
# Reads FOLDERS (of hooks), CONFS (its files) and PATTERNS (of hooks, for originals). It comes after blob, known and print_blobs.
p=$(command -v podman) && { v=$(timeout -k 2 20 "$p" --version); echo "version=${v##* }"; }
for f in $FOLDERS; do
  for h in "$f"/*.json; do
    [ -f "$h" ] && grep -qs nvidia "$h" || continue
    blob hook "$h" "$h"
    o=$(dpkg-query -S "$h" 2>/dev/null || rpm -qf "$h" 2>/dev/null) && echo "owner=$h ${o%%:*}"
  done
done
for f in $CONFS /etc/containers/containers.conf.d/*.conf; do [ -f "$f" ] && blob conf "$f" "$f"; done
set -f; set -- $PATTERNS; set +f; known "$@"
print_blobs
:
