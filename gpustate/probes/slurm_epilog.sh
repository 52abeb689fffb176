# shellcheck shell=sh
# Removes the job's number from the files in FOLDER, and those that are empty then; Slurm's epilog.
# Ends with 0 always.
# shellcheck disable=SC2154 # FOLDER: set by the loader; the others by slurmd
cd "$FOLDER" 2>/dev/null || exit 0
exec 9<. && flock 9
for gpu in [0-9]*; do
  grep -qsx "$SLURM_JOB_ID" "$gpu" || continue
  if grep -vx "$SLURM_JOB_ID" "$gpu" >.next; then mv .next "$gpu"; else rm -f "$gpu" .next; fi
done
exit 0
