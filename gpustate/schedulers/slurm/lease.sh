# shellcheck shell=sh
# Prints the Lease of a Slurm cluster: its version, then its content. With VERSION it is replaced by
# CONTENT, if that is still its version; otherwise the exit status is 99. It is a file where
# slurmctld keeps its state, which its backup shares.
# shellcheck disable=SC2154 # VERSION, CONTENT: set by the loader
folder=$(scontrol show config 2>/dev/null | sed -n 's/^StateSaveLocation *= *//p')
[ -d "$folder" ] && [ -w "$folder" ] || folder=/var/lib/gpustate
lease=$folder/gpustate.lease
[ -n "$VERSION" ] || {
  [ ! -e "$lease" ] || cat "$lease"
  exit 0
}
mkdir -p "$folder" && : >>"$lease.lock" || exit 1
exec 9<"$lease.lock"
flock -w 10 9 || {
  echo "$lease.lock is locked by another process"
  exit 1
}
version=0
[ ! -e "$lease" ] || read -r version <"$lease"
[ "$version" = "$VERSION" ] || exit 99
rm -f "$lease.new"
printf '%s\n%s\n' "$((version + 1))" "$CONTENT" >"$lease.new" && sync "$lease.new" &&
  chown --reference="$folder" "$lease.new" "$lease.lock" && mv -f "$lease.new" "$lease"
