# shellcheck shell=sh
# Prints the Lease of a Slurm cluster: its version, then its content. With VERSION it is replaced by CONTENT, if that is still
# its version; otherwise the exit status is 99. It is a file where slurmctld keeps its state, which its backup shares.
# shellcheck disable=SC2154 # VERSION, CONTENT: set by the loader
d=$(scontrol show config 2>/dev/null | sed -n 's/^StateSaveLocation *= *//p')
[ -d "$d" ] && [ -w "$d" ] || d=/var/lib/gpustate
f=$d/gpustate.lease
[ -n "$VERSION" ] || { [ ! -e "$f" ] || cat "$f"; exit 0; }
mkdir -p "$d" && : >>"$f.lock" || exit 1
exec 9<"$f.lock"
flock -w 10 9 || { echo "$f.lock is locked by another process"; exit 1; }
v=0; [ ! -e "$f" ] || read -r v <"$f"
[ "$v" = "$VERSION" ] || exit 99
rm -f "$f.new"
printf '%s\n%s\n' "$((v + 1))" "$CONTENT" >"$f.new" && sync "$f.new" && chown --reference="$d" "$f.new" "$f.lock" && mv -f "$f.new" "$f"
