# shellcheck shell=sh
# Prints podman's version, its hooks that name NVIDIA with the packages that own them, and its
# configuration, as rows. Reads FOLDERS (of hooks), CONFS (its files) and PATTERNS (of hooks, for
# originals). It comes after blob, known and print_blobs.
program=$(command -v podman) && {
  version=$(timeout -k 2 20 "$program" --version)
  echo "version=${version##* }"
}
for folder in $FOLDERS; do
  for hook in "$folder"/*.json; do
    [ -f "$hook" ] && grep -qs nvidia "$hook" || continue
    blob hook "$hook" "$hook"
    owner=$(dpkg-query -S "$hook" 2>/dev/null || rpm -qf "$hook" 2>/dev/null) &&
      echo "owner=$hook ${owner%%:*}"
  done
done
for folder in $CONFS /etc/containers/containers.conf.d/*.conf; do
  [ -f "$folder" ] && blob conf "$folder" "$folder"
done
set -f
set -- $PATTERNS
set +f
known "$@"
print_blobs
:
